"""The random states that attention returns beside its results and that nobody writes.

They have no value that a proof could ask for. Which operators, and when: operators/table.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph.operators.known import given, known
from pygraph.operators.table import DROPOUT, STATES, Property
from pygraph.torch_private.dispatch import schema


@functools.cache
def _returned(operator: Any) -> tuple[int, ...]:
    """Which of an operator's results are such states, where nothing is dropped."""
    if not known(operator, Property.RETURNS_STATE):
        return ()
    results = enumerate(schema(operator).returns)
    return tuple(position for position, result in results if result.name in STATES)


def unwritten_states(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[torch.Tensor]:
    """The states among the results of an operator that has just run without dropout."""
    states = _returned(operator)
    if not states or given(operator, DROPOUT, args, kwargs) != 0:
        return []
    return [result[i] for i in states if isinstance(result[i], torch.Tensor)]
