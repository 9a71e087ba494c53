"""Models of transformers as a program calls them, without a word about graphs. They ask torch
whether a capture is on, and build attention masks then that they leave out otherwise: a call and
its replay must have the same bits all the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from callable_support import deterministic, snapshot
from places import Place

import pygraph
from pygraph.capturing.tensors import same_bits

transformers = pytest.importorskip("transformers")

CALLS = 8
WORDS = 101
SIZES = {"vocab_size": WORDS, "hidden_size": 128, "intermediate_size": 128}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}


def bert() -> Any:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **LAYERS))


def gpt2() -> Any:
    sizes = {"n_embd": 128, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **sizes))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **LAYERS))


def t5() -> Any:
    sizes = {"d_model": 128, "d_kv": 64, "d_ff": 128, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(vocab_size=WORDS, decoder_start_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


def words(place: Place) -> torch.Tensor:
    return torch.randint(WORDS, (2, 64), device=place.torch)


@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
@pytest.mark.parametrize("make", [bert, gpt2, llama, t5])
def test_a_model_of_transformers(place: Place, make: Callable[[], Any], train: bool) -> None:
    dtype = torch.float32 if place.name == "twin" else torch.bfloat16

    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        model = make().to(place.torch, dtype).train(train)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def step(ids: torch.Tensor) -> torch.Tensor:
            if not train:
                with torch.no_grad():
                    return model(input_ids=ids, labels=ids).logits
            optimizer.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        called = wrap(step)
        torch.manual_seed(1)
        found: list[Any] = []
        for _ in range(CALLS):
            found += snapshot(called(words(place)))
        return found + snapshot(list(model.parameters()))

    with deterministic(place):
        expected = run(lambda step: step)
        found = run(functools.partial(pygraph.capture, device=place.name))
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
    (graph,) = pygraph.report().graphs
    assert graph.replays == CALLS - 3, str(pygraph.report())


@pytest.mark.parametrize("make", [bert, llama])
def test_masks_of_padding(place: Place, make: Callable[[], Any]) -> None:
    """transformers looks at what is in a mask, but not while it is captured."""
    dtype = torch.float32 if place.name == "twin" else torch.bfloat16
    model = make().to(place.torch, dtype).eval()

    def function(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=mask).logits

    captured = pygraph.capture(function, device=place.name)
    with torch.no_grad(), deterministic(place):
        for length in range(40, 40 + CALLS):
            ids, mask = words(place), torch.arange(64, device=place.torch).expand(2, 64) < length
            assert same_bits(captured(ids, mask.long()), function(ids, mask.long()))
    (graph,) = pygraph.report().graphs
    assert graph.replays == CALLS - 3, str(pygraph.report())
