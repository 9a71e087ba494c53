"""The models that plans are shown of: random weights, default configurations, no downloads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

# Before transformers is imported: it must not look for anything outside this machine.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

Tensors = tuple[Any, ...]
Sample = Callable[[torch.Generator], Tensors]
MODEL_SEED = 0


class Unavailable(Exception):
    """A library that a workload needs is missing, or does not work beside this torch."""


@dataclass(frozen=True)
class Workload:
    """A model and where its inputs come from."""

    name: str
    batch: int
    build: Callable[[], nn.Module]
    sample: Sample
    library: str

    def make_model(self) -> nn.Module:
        """The model in eval mode, always with the same random weights."""
        torch.manual_seed(MODEL_SEED)
        with needing(self.library):
            return self.build().eval()

    def make_inputs(self, seed: int, device: Any) -> Tensors:
        """Inputs that depend on the seed alone."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(tensor.to(device) for tensor in self.sample(generator))


@contextmanager
def needing(library: str) -> Iterator[None]:
    """What is raised inside is Unavailable, if that is because the library does not work."""
    try:
        yield
    except (ImportError, RuntimeError, AttributeError) as error:
        if _works(library):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise Unavailable(f"{library}: {reason}") from error


def _works(library: str) -> bool:
    """Whether a library imports; torchvision beside another build of torch raises RuntimeError."""
    try:
        import_module(library)
    except (ImportError, RuntimeError, AttributeError):
        return False
    return True


class AsFunction(nn.Module):
    """A model as a function from tensors to a tuple of tensors, under autocast if wanted.

    The context is entered inside `forward`, so compiled modes pay for it once, while compiling.
    """

    def __init__(self, model: nn.Module, fields: tuple[str, ...] = (), autocast: bool = True):
        super().__init__()
        self.model = model
        self.fields = fields
        self.autocast = autocast and torch.cuda.is_available()

    def forward(self, *args: Any) -> Tensors:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.autocast):
            out = self.model(*args)
        if not self.fields:
            return (out,)
        return tuple(getattr(out, name) for name in self.fields)


class MLP(nn.Module):
    """Blocks of Linear and ReLU in fp16, initialised so that its input still shows at its end.

    With torch's default initialisation a deep stack forgets its input, and a replay of stale inputs
    would go unnoticed.
    """

    def __init__(self, blocks: int, width: int = 1024):
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(blocks):
            linear = nn.Linear(width, width, dtype=torch.float16)
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            layers += [linear, nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


WORKLOADS: dict[str, Workload] = {}

STAND_INS = {"alexnet": "resnet50", "densenet121": "resnet50", "vit_base_patch16_224": "vit_base"}
"""What a plan shows in place of a model whose library is missing."""


def _register(name: str, batch: int, library: str, sample: Sample) -> Callable[..., Any]:
    def add(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        WORKLOADS[name] = Workload(name, batch, build, sample, library)
        return build

    return add


def tokens(batch: int, length: int, vocabulary: int) -> Sample:
    return lambda generator: (torch.randint(vocabulary, (batch, length), generator=generator),)


def images(batch: int, size: int = 224) -> Sample:
    return lambda generator: (torch.randn(batch, 3, size, size, generator=generator),)


@_register("XLNetLMHeadModel", 1, "transformers", tokens(1, 512, 32000))
def _xlnet() -> nn.Module:
    from transformers import XLNetConfig, XLNetLMHeadModel

    return AsFunction(XLNetLMHeadModel(XLNetConfig(use_mems_eval=False)), ("logits",))


@_register("DebertaV2ForQuestionAnswering", 1, "transformers", tokens(1, 512, 128100))
def _deberta() -> nn.Module:
    from transformers import DebertaV2Config, DebertaV2ForQuestionAnswering

    model = DebertaV2ForQuestionAnswering(DebertaV2Config())
    return AsFunction(model, ("start_logits", "end_logits"))


@_register("MobileBertForQuestionAnswering", 16, "transformers", tokens(16, 128, 30522))
def _mobilebert() -> nn.Module:
    from transformers import MobileBertConfig, MobileBertForQuestionAnswering

    model = MobileBertForQuestionAnswering(MobileBertConfig())
    return AsFunction(model, ("start_logits", "end_logits"))


@_register("alexnet", 2, "torchvision", images(2))
def _alexnet() -> nn.Module:
    return AsFunction(import_module("torchvision.models").alexnet())


@_register("densenet121", 8, "torchvision", images(8))
def _densenet() -> nn.Module:
    return AsFunction(import_module("torchvision.models").densenet121())


@_register("vit_base_patch16_224", 1, "timm", images(1))
def _vit() -> nn.Module:
    timm = import_module("timm")
    return AsFunction(timm.create_model("vit_base_patch16_224", pretrained=False))


def _register_mlp(blocks: int) -> None:
    def sample(generator: torch.Generator) -> Tensors:
        return (torch.randn(16, 1024, generator=generator).half(),)

    @_register(f"mlp-{blocks}", 16, "torch", sample)
    def build() -> nn.Module:
        return AsFunction(MLP(blocks), autocast=False)


for _blocks in (1, 8, 32):
    _register_mlp(_blocks)


@_register("resnet50", 1, "transformers", images(1))
def _resnet_stand_in() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return AsFunction(ResNetForImageClassification(ResNetConfig()), ("logits",))


@_register("vit_base", 1, "transformers", images(1))
def _vit_stand_in() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return AsFunction(ViTForImageClassification(ViTConfig()), ("logits",))


def find(names: str) -> list[Workload]:
    """The workloads of a list with commas; every name must be known."""
    return [WORKLOADS[name] for name in chosen(names, WORKLOADS)]


def chosen(names: str | None, known: Iterable[str], kind: str = "model") -> list[str]:
    """The names of a list with commas, all where there is none; KeyError with those that there are,
    where one is not known."""
    known = list(known)
    found = [name.strip() for name in names.split(",")] if names else known
    for name in found:
        if name not in known:
            raise KeyError(f"no {kind} {name!r}: there are {', '.join(known)}")
    return found
