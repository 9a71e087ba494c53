"""Real models on the CPU twin: capture, probe, link, replay at other addresses, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import twin_support
from torch import nn

from pygraph.demo import small_models


def functional(model: nn.Module) -> tuple[Callable[[list[Any]], Any], list[torch.Tensor]]:
    """`model` as a function of one list (its parameters, its buffers, then its inputs), and the
    former two: nothing of it stands in a closure."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    values = [value.detach() for value in (*model.parameters(), *model.buffers())]

    def function(given: list[Any]) -> Any:
        state = dict(zip(names, given[: len(names)], strict=True))
        return torch.func.functional_call(model, state, tuple(given[len(names) :]))

    return function, values


@pytest.mark.parametrize("name", small_models.NAMES)
def test_a_model_moves_bit_for_bit(name: str) -> None:
    if name in ("bert-mini", "gpt2"):
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, fresh_input = small_models.build(name)
    function, state = functional(model)
    with twin_support.twin_memory(), torch.no_grad():
        twin_support.check(function, [fresh_input()], [fresh_input()], state)
