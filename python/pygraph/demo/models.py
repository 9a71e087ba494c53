"""The programs that are measured: random weights, default configurations, nothing downloaded.

A model is built where it will run: drawing the 900 million weights of the largest takes a CPU many
seconds. Programs build on the CPU and move the model, which leaves behind the tensors that are
neither parameters nor buffers; those are put back there, since captures have to cope with them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

# Before transformers is imported: it must not look for anything outside this machine.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

log = logging.getLogger(__name__)

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
    real: bool = True
    """Counts in the geometric means; the MLPs only show how cost grows with the kernels."""
    autocast: bool = True
    """Weights in fp32 and bf16 autocast, or else in the type that the model has."""

    def make_model(self, device: Any = "cpu") -> nn.Module:
        """The model in eval mode, always with the same random weights for one kind of device."""
        return build_on(torch.device(device), self.build, self.library, _as_if_moved).eval()

    def make_inputs(self, seed: int, device: Any) -> Tensors:
        """Inputs that depend on the seed alone."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(tensor.to(device) for tensor in self.sample(generator))


def build_on(
    device: torch.device,
    build: Callable[[], nn.Module],
    library: str,
    built: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> nn.Module:
    """With the weights of MODEL_SEED, where it will run if that can be; `built` is called with what
    was built there. Unavailable where the library does not work."""
    torch.manual_seed(MODEL_SEED)
    try:
        if device.type == "cpu":
            return build()
        try:
            with device:
                return built(build()).to(device)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            log.debug("a model of %s is built on the CPU", library, exc_info=True)
        torch.manual_seed(MODEL_SEED)
        return build().to(device)
    except (ImportError, RuntimeError, AttributeError) as error:
        if _works(library):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise Unavailable(f"{library}: {reason}") from error


def _as_if_moved(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, value.cpu())
    return model


def _works(library: str) -> bool:
    """Whether a library imports; torchvision beside another build of torch raises RuntimeError."""
    try:
        import_module(library)
    except (ImportError, RuntimeError, AttributeError):
        return False
    return True


class Program(nn.Module):
    """A model as a function from tensors to a tuple of tensors, under autocast if wanted.

    The context is entered inside `forward`, so compiled modes pay for it once, while compiling.
    `precise` switches it off: the reference that rounding errors are measured against.
    """

    def __init__(self, model: nn.Module, fields: tuple[str, ...] = (), autocast: bool = True):
        super().__init__()
        self.model = model
        self.fields = fields
        self.autocast = autocast and torch.cuda.is_available()
        self.precise = False

    def forward(self, *args: Any) -> Tensors:
        enabled = self.autocast and not self.precise
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
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


def _register(name: str, batch: int, library: str, **options: Any) -> Callable[..., Any]:
    def add(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        WORKLOADS[name] = Workload(name, batch, build, library=library, **options)
        return build

    return add


def tokens(batch: int, length: int, vocabulary: int) -> Sample:
    return lambda generator: (torch.randint(vocabulary, (batch, length), generator=generator),)


def images(batch: int, size: int = 224) -> Sample:
    return lambda generator: (torch.randn(batch, 3, size, size, generator=generator),)


@_register("XLNetLMHeadModel", 1, "transformers", sample=tokens(1, 512, 32000))
def _xlnet() -> nn.Module:
    from transformers import XLNetConfig, XLNetLMHeadModel

    return Program(XLNetLMHeadModel(XLNetConfig(use_mems_eval=False)), ("logits",))


@_register("DebertaV2ForQuestionAnswering", 1, "transformers", sample=tokens(1, 512, 128100))
def _deberta() -> nn.Module:
    from transformers import DebertaV2Config, DebertaV2ForQuestionAnswering

    model = DebertaV2ForQuestionAnswering(DebertaV2Config())
    return Program(model, ("start_logits", "end_logits"))


@_register("MobileBertForQuestionAnswering", 16, "transformers", sample=tokens(16, 128, 30522))
def _mobilebert() -> nn.Module:
    from transformers import MobileBertConfig, MobileBertForQuestionAnswering

    model = MobileBertForQuestionAnswering(MobileBertConfig())
    return Program(model, ("start_logits", "end_logits"))


@_register("alexnet", 2, "torchvision", sample=images(2))
def _alexnet() -> nn.Module:
    return Program(import_module("torchvision.models").alexnet())


@_register("densenet121", 8, "torchvision", sample=images(8))
def _densenet() -> nn.Module:
    return Program(import_module("torchvision.models").densenet121())


@_register("vit_base_patch16_224", 1, "timm", sample=images(1))
def _vit() -> nn.Module:
    timm = import_module("timm")
    return Program(timm.create_model("vit_base_patch16_224", pretrained=False))


def _register_mlp(blocks: int) -> None:
    def sample(generator: torch.Generator) -> Tensors:
        return (torch.randn(16, 1024, generator=generator).half(),)

    @_register(f"mlp-{blocks}", 16, "torch", sample=sample, real=False, autocast=False)
    def build() -> nn.Module:
        return Program(MLP(blocks), autocast=False)


for _blocks in (1, 8, 32):
    _register_mlp(_blocks)

MEASURED = tuple(WORKLOADS)
"""What a measurement takes unless told otherwise; the stand-ins below are for plans only."""


@_register("resnet50", 1, "transformers", sample=images(1))
def _resnet_stand_in() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return Program(ResNetForImageClassification(ResNetConfig()), ("logits",))


@_register("vit_base", 1, "transformers", sample=images(1))
def _vit_stand_in() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return Program(ViTForImageClassification(ViTConfig()), ("logits",))


def find(names: str | None) -> list[Workload]:
    """The workloads of a list with commas; every name must be known."""
    return [WORKLOADS[name] for name in chosen(names or ",".join(MEASURED), WORKLOADS)]


def chosen(names: str | None, known: Iterable[str], kind: str = "model") -> list[str]:
    """The names of a list with commas, all where there is none; KeyError with those that there are,
    where one is not known."""
    known = list(known)
    found = [name.strip() for name in names.split(",")] if names else known
    for name in found:
        if name not in known:
            raise KeyError(f"no {kind} {name!r}: there are {', '.join(known)}")
    return found
