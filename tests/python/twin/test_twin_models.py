"""Real models on the CPU twin: capture, probe, link, replay at other addresses, bit for bit."""

from __future__ import annotations

import pytest
import torch
import twin_support

from pygraph.demo import small_models


@pytest.mark.parametrize("name", small_models.NAMES)
def test_a_model_moves_bit_for_bit(name: str) -> None:
    if name in ("bert-mini", "gpt2"):
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, fresh_input = small_models.build(name)
    function, state = small_models.functional(model)
    with twin_support.twin_memory(), torch.no_grad():
        twin_support.check(function, [fresh_input()], [fresh_input()], state)
