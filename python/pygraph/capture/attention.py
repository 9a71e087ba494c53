"""The random states that attention takes and returns beside its results.

Its backward draws the same dropout mask from them. Some kernels take them on the device while they
are captured, and else on the host. Without dropout nobody writes or reads them: they are
uninitialised memory, or what stood on the stack, on the host or on the device as torch likes
(aten/src/ATen/native/transformers/cuda/attention.cu). They have no value that a proof could ask
for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph.capture.device import CaptureFailed
from pygraph.operators.table import DROPOUT, SEEDS, STATES
from pygraph.torch_private.dispatch import schema_if_any


@functools.cache
def _taken(operator: Any) -> dict[str, tuple[int, Any]]:
    """Position and default of the seeds that an operator takes, and of the share that it drops."""
    schema = schema_if_any(operator)
    return {
        argument.name: (position, argument.default_value)
        for position, argument in enumerate(schema.arguments if schema is not None else ())
        if argument.name in SEEDS or argument.name == DROPOUT
    }


@functools.cache
def _returned(operator: Any) -> tuple[int, ...]:
    """Which of an operator's results are states."""
    schema = schema_if_any(operator)
    results = enumerate(schema.returns if schema is not None else ())
    return tuple(position for position, result in results if result.name in STATES)


def _given(operator: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    position, default = _taken(operator)[name]
    return args[position] if position < len(args) else kwargs.get(name, default)


def require_seeds_on_device(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises CaptureFailed for one on the host: its address would be read on the device, which ends
    the process."""
    for name in SEEDS.intersection(_taken(operator)):
        seed = _given(operator, name, args, kwargs)
        if isinstance(seed, torch.Tensor) and seed.device.type == "cpu":
            raise CaptureFailed(f"{operator} reads a random seed on the host", str(operator))


def idle_states(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[torch.Tensor]:
    """The states among the results of an operator that has just run without dropout."""
    states = _returned(operator)
    if not states or DROPOUT not in _taken(operator):
        return []
    found = [result[i] for i in states] if _given(operator, DROPOUT, args, kwargs) == 0 else []
    return [state for state in found if isinstance(state, torch.Tensor)]
