"""Programs at sizes where activations count: what memory and link time are measured on.

They stand apart from models.py, whose small batches are for host-bound latency. The classes of the
two overlap, the sizes do not.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from pygraph.demo.models import WORKLOADS, AsFunction, Sample, Workload, chosen, images, tokens
from pygraph.demo.small_models import UNet

LARGE: dict[str, Workload] = {}
"""In the order in which they are measured."""


class _Masked(nn.Module):
    """A language model called with tokens and their mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Any, mask: Any) -> Any:
        return self.model(input_ids=tokens, attention_mask=mask)


def _register(name: str, batch: int, library: str, sample: Sample) -> Callable[..., Any]:
    def add(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        LARGE[name] = Workload(name, batch, build, sample, library)
        return build

    return add


@_register("bert-large", 32, "transformers", tokens(32, 512, 30522))
def _bert() -> nn.Module:
    from transformers import BertConfig, BertForQuestionAnswering

    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    return AsFunction(BertForQuestionAnswering(config), ("start_logits", "end_logits"))


def _tokens_and_mask(generator: torch.Generator) -> Any:
    # With a mask: without one, GPT-2 looks for packed sequences, whose number depends on values.
    return (*tokens(8, 1024, 50257)(generator), torch.ones(8, 1024, dtype=torch.int64))


@_register("gpt2-medium", 8, "transformers", _tokens_and_mask)
def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)
    return AsFunction(_Masked(GPT2LMHeadModel(config)), ("logits",))


@_register("unet", 8, "torch", images(8, 512))
def _unet() -> nn.Module:
    return AsFunction(UNet(width=64))


@_register("densenet121-64", 64, "torchvision", images(64, 224))
def _densenet() -> nn.Module:
    return AsFunction(import_module("torchvision.models").densenet121())


@_register("mobilebert-128", 128, "transformers", tokens(128, 128, 30522))
def _mobilebert() -> nn.Module:
    from transformers import MobileBertConfig, MobileBertForQuestionAnswering

    model = MobileBertForQuestionAnswering(MobileBertConfig())
    return AsFunction(model, ("start_logits", "end_logits"))


@_register("vit-large", 64, "timm", images(64, 224))
def _vit() -> nn.Module:
    timm = import_module("timm")
    return AsFunction(timm.create_model("vit_large_patch16_224", pretrained=False))


def named(name: str) -> Workload:
    """A program of either size; KeyError where neither has that name."""
    return LARGE[name] if name in LARGE else WORKLOADS[name]


def find(names: str | None) -> list[Workload]:
    """The workloads of a list with commas, the small ones too; every name must be known."""
    return [named(name) for name in chosen(names or ",".join(LARGE), [*LARGE, *WORKLOADS])]
