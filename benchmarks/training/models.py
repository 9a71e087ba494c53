"""The training programs: random weights, nothing downloaded, each a module from the step's inputs
to its loss.

Precision is the model's: bf16 autocast around forward and loss for the transformers and ResNet-50,
fp32 for DCGAN and the recommender. TF32 is as torch has it by default: on in cuDNN's convolutions,
off in matrix products. Models are in train mode, dropout on as their configurations have it.

Each has a tiny version of the same architecture, which a CPU runs in milliseconds, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.harness.build import build_on
from benchmarks.harness.program import BF16, Program, Sample, Tensors, made_inputs
from benchmarks.paper.workloads import inputs, language
from benchmarks.training.nets import DCGAN, DeepRecommender, TinyConvNet
from pygraph.demo.models import chosen

FP32 = "fp32, TF32 in convolutions"


@dataclass(frozen=True)
class Training:
    """A program to train and where its inputs come from."""

    name: str
    batch: int
    library: str
    build: Callable[[], nn.Module]
    loss: Callable[..., Any]
    """Of the model and the step's inputs."""
    sample: Sample
    precision: str
    about: str
    random: bool
    """Draws random numbers in its forward, as dropout does."""

    def make_program(self, device: torch.device) -> Program:
        """In train mode, always with the same weights for one kind of device."""
        model = build_on(device, self.build, self.library)
        autocast = self.precision == BF16 and device.type == "cuda"
        return Program(model, self.loss, autocast).train()

    def make_inputs(self, seed: int, device: torch.device) -> Tensors:
        return made_inputs(self.sample, seed, device)


def _plain(model: Any, *inputs: Any) -> Any:
    return model(*inputs)


def _labelled(model: Any, tokens: Any, labels: Any) -> Any:
    return model(input_ids=tokens, labels=labels).loss


def _causal_language(model: Any, tokens: Any, mask: Any) -> Any:
    # With a mask: without one, GPT-2 looks for packed sequences, whose number depends on values.
    return model(input_ids=tokens, attention_mask=mask, labels=tokens).loss


def _classes(model: Any, images: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(model(images), labels)


def _sample_masked(batch: int, length: int, vocabulary: int) -> Sample:
    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        tokens = torch.randint(1, vocabulary, (batch, length), generator=generator)
        asked = torch.rand(batch, length, generator=generator) < 0.15
        return torch.where(asked, 0, tokens), torch.where(asked, tokens, -100)

    return sample


def _sample_images(batch: int, size: int, classes: int) -> Sample:
    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        images = torch.randn(batch, 3, size, size, generator=generator)
        return images, torch.randint(classes, (batch,), generator=generator)

    return sample


def _sample_images_and_noise(batch: int, noise: int) -> Sample:
    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        images = torch.rand(batch, 3, 64, 64, generator=generator) * 2 - 1
        return images, torch.randn(batch, noise, 1, 1, generator=generator)

    return sample


def _sample_ratings(batch: int, items: int, rated: int) -> Sample:
    """Dense rows with a few ratings from 1 to 5; put together on the device, they are large."""

    def sample(generator: torch.Generator, device: torch.device) -> Tensors:
        places = torch.randint(items, (batch, rated), generator=generator)
        ratings = torch.randint(1, 6, (batch, rated), generator=generator).float()
        # An item that is drawn twice has its larger rating: the order does not matter.
        empty = torch.zeros(batch, items, device=device)
        return (empty.scatter_reduce(1, places.to(device), ratings.to(device), "amax"),)

    return sample


def _bert(tiny: bool) -> nn.Module:
    return language.transformer("BertForMaskedLM", **(language.TINY_BERT if tiny else {}))


def _gpt2(tiny: bool) -> nn.Module:
    model = language.distil_gpt2(tiny)
    # Not found by the name of the class; transformers' warning about that would break the graph.
    model.loss_type = "ForCausalLM"
    return model


def _resnet50(tiny: bool) -> nn.Module:
    return TinyConvNet() if tiny else import_module("torchvision.models").resnet50()


def _recommender(tiny: bool) -> nn.Module:
    return DeepRecommender(50, (8, 8, 16)) if tiny else DeepRecommender(197951)


_two_texts = partial(inputs.two_texts, first=2)
"""0 and 1 are padding and the end of a sequence."""

NAMED: dict[str, tuple[Any, ...]] = {
    "dcgan": (
        *("torch", lambda tiny: DCGAN(8, 2) if tiny else DCGAN(), _plain, FP32, False),
        *(_sample_images_and_noise, (32, 100), (3, 8)),
        "the discriminator's step on a real and a generated batch, as TorchBench's; 64 x 64 pixels",
    ),
    "BERT-base": (
        *("transformers", _bert, _labelled, BF16, True),
        *(_sample_masked, (16, 128, 30522), (2, 8, 64)),
        "BertForMaskedLM, 16 x 128 tokens, 15% of them asked for",
    ),
    "DistilGPT2": (
        *("transformers", _gpt2, _causal_language, BF16, True),
        *(inputs.tokens_and_mask, (16, 512, 50257), (2, 8, 64)),
        "GPT2LMHeadModel with 6 layers, 16 x 512 tokens",
    ),
    "recommender": (
        *("torch", _recommender, _plain, FP32, True),
        *(_sample_ratings, (256, 197951, 200), (4, 50, 6)),
        "NVIDIA's DeepRecommender: 197951-512-512-1024-512-512-197951, SELU, dropout 0.8 on the "
        "code",
    ),
    "ResNet-50": (
        *("torchvision", _resnet50, _classes, BF16, False),
        *(_sample_images, (32, 224, 1000), (4, 16, 5)),
        "torchvision's, 32 x 3 x 224 x 224, cross entropy, contiguous layout",
    ),
    "MT5-small": (
        *("transformers", partial(language.t5, family="MT5"), _labelled, BF16, True),
        *(_two_texts, (16, 128, 250112), (2, 8, 64)),
        "MT5ForConditionalGeneration, 16 x 128 tokens to 16 x 128",
    ),
    "T5-small": (
        *("transformers", partial(language.t5, family="T5"), _labelled, BF16, True),
        *(_two_texts, (16, 128, 32128), (2, 8, 64)),
        "T5ForConditionalGeneration, 6 + 6 layers of width 512, 16 x 128 tokens to 16 x 128",
    ),
}
"""In the order in which they are measured: library, model, loss, precision, and whether random
numbers are drawn; what makes inputs, and its arguments, real and tiny (the batch comes first)."""


def _training(name: str, tiny: bool) -> Training:
    library, build, loss, precision, random, sample, real_sizes, tiny_sizes, about = NAMED[name]
    sizes = tiny_sizes if tiny else real_sizes
    library = "torch" if tiny and library == "torchvision" else library
    made = partial(build, tiny)
    return Training(
        name,
        sizes[0],
        library,
        made,
        loss,
        sample(*sizes),
        precision=precision,
        about=about,
        random=random,
    )


MODELS = {name: _training(name, False) for name in NAMED}
TINY = {name: _training(name, True) for name in NAMED}


def find(names: str | None, tiny: bool = False) -> list[Training]:
    """The programs of a list with commas; every name must be known."""
    known = TINY if tiny else MODELS
    return [known[name] for name in chosen(names, known)]
