"""Checkpointing with random numbers: the operators that save the generator's state and go back.

`torch.utils.checkpoint` computes activations again in the backward, with the random numbers of the
forward. AOTAutograd makes two higher-order operators of that (torch/_prims/rng_prims.py): one saves
the default generator's state and runs an operator, one runs an operator with a state that was
saved. A replay draws from the default generator itself, so both become nodes of a graph by two
small operators: one returns the state, one exchanges it. On GPUs it makes a third one of both
instead, which lends the state of a generator that is passed to the default one: what it runs stands
between two nodes that exchange the two generators' states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pygraph.torch_private.dispatch import HigherOrderOperator

#: Records one operator: the operator, its arguments, its keyword arguments.
Record = Callable[[Any, Any, Any], Any]

_library = torch.library.Library("pygraph_twin", "DEF")
_library.define("generator_state() -> Tensor")
_library.define("exchange_generator_state(Tensor state) -> Tensor")
_library.define("exchange_with(Generator generator) -> Tensor")

#: What a capture has in memory for a generator that was passed: the address of an object.
ADDRESS_BYTES = 8


def _state() -> torch.Tensor:
    return torch.random.default_generator.get_state()


def _exchange(state: torch.Tensor) -> torch.Tensor:
    """Sets the state and returns the one before. What is no state is refused by the generator,
    whose state stays."""
    before = _state()
    torch.random.default_generator.set_state(state)
    return before


#: All states are of one size.
_BYTES = _state().numel()


def _like_a_state(*_: Any) -> torch.Tensor:
    return torch.empty(_BYTES, dtype=torch.uint8, device="cpu")


def _exchange_with(generator: torch.Generator) -> torch.Tensor:
    """Exchanges the states of a generator and the default one; returns the state lent."""
    lent = generator.get_state()
    generator.set_state(_exchange(lent))
    return lent


for _name, _kernel in (
    ("generator_state", _state),
    ("exchange_generator_state", _exchange),
    ("exchange_with", _exchange_with),
):
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    # What it returns is known by this; it is never tried on a made-up state (predict.py).
    torch.library.register_fake(f"pygraph_twin::{_name}", _like_a_state, lib=_library)

_STATE = torch.ops.pygraph_twin.generator_state.default
_EXCHANGE = torch.ops.pygraph_twin.exchange_generator_state.default
_EXCHANGE_WITH = torch.ops.pygraph_twin.exchange_with.default


def is_higher_order(func: Any) -> bool:
    return isinstance(func, HigherOrderOperator)


def record(func: Any, args: Any, kwargs: Any, with_operator: Record) -> Any:
    """Records one of the three higher-order operators by `with_operator`; NotImplemented for any
    other."""
    name = func.name()
    if name == "run_and_save_rng_state":
        operator, *rest = args
        return with_operator(_STATE, (), {}), with_operator(operator, tuple(rest), kwargs)
    if name == "run_with_rng_state":
        state, operator, *rest = args
        before = with_operator(_EXCHANGE, (state,), {})
        result = with_operator(operator, tuple(rest), kwargs)
        with_operator(_EXCHANGE, (before,), {})
        return result
    if name == "graphsafe_run_with_rng_state":
        operator, *rest = args
        own = {key: value for key, value in kwargs.items() if key != "rng_state"}
        generator = (kwargs["rng_state"],)
        with_operator(_EXCHANGE_WITH, generator, {})
        result = with_operator(operator, tuple(rest), own)
        with_operator(_EXCHANGE_WITH, generator, {})
        return result
    return NotImplemented
