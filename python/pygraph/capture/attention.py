"""The random states that attention returns beside its results.

Its backward draws the same dropout mask from them. Without dropout nobody writes or reads them:
they are uninitialised memory, or what stood on the stack, on the host or on the device as torch
likes (aten/src/ATen/native/transformers/cuda/attention.cu). They have no value that a proof could
ask for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_DROPOUT = "dropout_p"
_STATES = frozenset(("philox_seed", "philox_offset", "rng_state", "unused"))


@functools.cache
def _schema(operator: Any) -> tuple[int, Any, tuple[int, ...]] | None:
    """Where an operator takes the share to drop, what that is by default, and which of its results
    are states. None for one without dropout or states."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    states = tuple(i for i, result in enumerate(schema.returns) if result.name in _STATES)
    for position, argument in enumerate(schema.arguments):
        if argument.name == _DROPOUT and states:
            return position, argument.default_value, states
    return None


def idle_states(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[torch.Tensor]:
    """The states among the results of an operator that has just run without dropout."""
    known = _schema(operator)
    if known is None:
        return []
    position, default, states = known
    share = args[position] if position < len(args) else kwargs.get(_DROPOUT, default)
    found = [result[i] for i in states] if share == 0 else []
    return [state for state in found if isinstance(state, torch.Tensor)]
