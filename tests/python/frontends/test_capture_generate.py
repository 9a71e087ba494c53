"""transformers' generate() with a captured forward: it brings a cache, and gets that very cache
back beside the logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import Place

import pygraph
from pygraph.reporting import GRAPHED

transformers = pytest.importorskip("transformers")

TOKENS = 6


@pytest.fixture
def model(place: Place) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
        attn_implementation="sdpa",
    )
    with torch.device(place.torch):
        return transformers.LlamaForCausalLM(config).eval()


def generate(model: Any, prompt: torch.Tensor) -> Any:
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
        pad_token_id=0,
    )


def test_tokens_are_the_same_and_replayed(place: Place, model: Any) -> None:
    plain = model.forward
    fast = pygraph.capture(plain, device=place.name)
    rounds = 5
    with torch.no_grad():
        for seed in range(rounds):
            torch.manual_seed(seed)
            prompt = torch.randint(64, (1, 5), device=place.torch)
            model.forward = plain
            expected = generate(model, prompt)
            model.forward = fast
            assert torch.equal(generate(model, prompt), expected)
    most = max(pygraph.report().graphs, key=lambda graph: graph.replays)
    assert most.state == GRAPHED
    assert most.replays >= rounds * (TOKENS - 1) - 4
    assert most.bytes_copied == 0
