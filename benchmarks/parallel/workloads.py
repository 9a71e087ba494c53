"""What is measured: models whose kernels depend on few others (branchy), and some whose kernels
nearly all wait for the one before (other), where lanes can only lose.

Batches are 1 or small: kernels are short then, and one alone leaves most of a GPU unused. Weights
are random. Inference of vision and of small networks is in fp16, of transformers in bf16; what is
the paper's (benchmarks/paper) has the paper's precision. On a CPU everything is fp32. Each has a
tiny version of the same architecture, for trying it.
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
from benchmarks.paper.workloads import catalogue, inputs, language
from benchmarks.paper.workloads.inputs import Sampler, sized
from benchmarks.paper.workloads.vision import classify
from benchmarks.parallel import nets
from pygraph.demo.models import chosen
from pygraph.demo.small_models import UNet

BRANCHY, OTHER = "branchy", "other"
FP16, PURE_BF16 = "fp16", "bf16"
TYPES = {FP16: torch.float16, PURE_BF16: torch.bfloat16}
"""Of weights and inputs, by precision; of others fp32."""


@dataclass(frozen=True)
class Workload:
    """A model, and what it is called with."""

    name: str
    kind: str
    """BRANCHY or OTHER."""
    batch: int
    library: str
    """What the model is made with."""
    build: Callable[[bool], nn.Module]
    """The model; True for the tiny version."""
    call: Callable[..., Any]
    """From the model and its inputs to a tuple of tensors; in training to a loss."""
    sample: Sampler
    """True for the tiny version's inputs."""
    precision: str
    about: str
    trains: bool = False
    inputs: int = 8
    """Different ones that the clocks go around."""
    compared: Callable[[Tensors], Tensors] | None = None
    """What of the results is compared with eager, where rounding can change their shapes."""
    without_floor: str | None = None
    """Why an iteration is no single graph, where that is known."""
    by_hand: Callable[[Any], Callable[..., Any]] | None = None
    """The model in eager mode on several streams, where that is measured, too."""

    def dtype(self, device: torch.device) -> torch.dtype:
        wanted = TYPES.get(self.precision, torch.float32)
        return wanted if device.type == "cuda" else torch.float32

    def make_program(self, device: torch.device, tiny: bool) -> Program:
        """Always with the same weights for one kind of device."""
        model = build_on(device, partial(self.build, tiny), self.library)
        autocast = self.precision == BF16 and device.type == "cuda"
        program = Program(model.to(self.dtype(device)), self.call, autocast)
        return program.train(self.trains)

    def make_inputs(self, seed: int, device: torch.device, tiny: bool) -> Tensors:
        found = made_inputs(self.sample(tiny), seed, device)
        kind = self.dtype(device)
        return tuple(each.to(kind) if each.is_floating_point() else each for each in found)


def floats(many: int, *shape: int) -> Sample:
    return lambda generator, _: tuple(torch.randn(shape, generator=generator) for _ in range(many))


# ------------------------------------------------------------------------------ models


def _inception(tiny: bool) -> nn.Module:
    models = import_module("torchvision.models")
    model = models.inception_v3(weights=None, aux_logits=False, init_weights=False)
    return nets.settled(model, 75 if tiny else 299)


def _googlenet(tiny: bool) -> nn.Module:
    models = import_module("torchvision.models")
    model = models.googlenet(weights=None, aux_logits=False, init_weights=False)
    return nets.settled(model, 64 if tiny else 224)


def _hrnet(tiny: bool) -> nn.Module:
    name = "hrnet_w18_small" if tiny else "hrnet_w18"
    model = import_module("timm").create_model(name, pretrained=False)
    return nets.settled(model, 64 if tiny else 224)


def _detector(tiny: bool) -> nn.Module:
    shape = ("tinynet_e", 16, 1, 1, 5) if tiny else ("efficientnet_b0", 64, 3, 3, 90)
    return nets.settled(nets.Detector(*shape), 128 if tiny else 512)


def _unet(tiny: bool) -> nn.Module:
    return nets.settled(UNet(4, 2) if tiny else UNet(), 32 if tiny else 256)


def _bert(tiny: bool) -> nn.Module:
    library = import_module("transformers")
    return library.BertModel(library.BertConfig(**(language.TINY_BERT if tiny else {})))


def _gpt2(tiny: bool) -> nn.Module:
    """Without dropout, so that gradients can be compared with eager's."""
    options: dict[str, Any] = {f"{name}_pdrop": 0.0 for name in ("resid", "embd", "attn")}
    if tiny:
        options |= {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 32}
        options |= {"bos_token_id": 0, "eos_token_id": 0}
    return language.transformer("GPT2LMHeadModel", use_cache=False, **options)


def _towers(tiny: bool) -> nn.Module:
    return nets.Towers(4, 2, 16) if tiny else nets.Towers(4, 6, 512)


def _mixture(tiny: bool) -> nn.Module:
    return nets.mixture(1, 4, 16, 32) if tiny else nets.mixture(4, 8, 512, 2048)


def _heads(tiny: bool) -> nn.Module:
    return nets.Heads(4, 2, 16) if tiny else nets.Heads(8, 4, 512)


# ------------------------------------------------------------------------------ calls


def _detect(model: Any, images: Any) -> Tensors:
    return tuple(model(images))


def _one_result(model: Any, *given: Any) -> Tensors:
    return (model(*given),)


def _hidden(model: Any, words: Any) -> Tensors:
    return tuple(model(words, return_dict=False)[:2])


def _language_loss(model: Any, words: Any, mask: Any) -> Any:
    """The library's own breaks the graph: it warns of a missing name. With a mask: without one,
    GPT-2 looks for packed sequences, whose number depends on values."""
    logits = model(input_ids=words, attention_mask=mask).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


def _on_streams(program: Program) -> Callable[..., Tensors]:
    streams = nets.OnStreams(program.model)
    return lambda *given: (streams(*given),)


# ------------------------------------------------------------------------------ all of them


def _of_paper(name: str, kind: str, known: str, about: str, **changed: Any) -> Workload:
    """A workload of the paper's, under a name that says what it is."""
    each = catalogue.WORKLOADS[known]
    taken: dict[str, Any] = {
        "batch": each.batch,
        "sample": each.sample,
        "precision": each.precision,
    }
    taken |= {"library": each.needs[0], "compared": each.compared, **changed}
    return Workload(name, kind, build=each.build, call=each.call, about=about, **taken)


def _images(real: int, tiny: int) -> Sampler:
    return sized(inputs.images, (1, real), (1, tiny))


_branchy = partial(Workload, kind=BRANCHY, precision=FP16)

_ROWS = (
    _of_paper(
        "mask_rcnn",
        BRANCHY,
        "VM",
        "the paper's VM: several graphs, and sizes that depend on values",
        inputs=4,  # each has sizes of its own, which are captured one by one
        without_floor="sizes depend on values: an iteration is no single graph",
    ),
    _branchy(
        "hrnet",
        batch=1,
        library="timm",
        build=_hrnet,
        call=classify,
        sample=_images(224, 64),
        about="timm hrnet_w18: four resolutions beside each other",
    ),
    _branchy(
        "efficientdet",
        batch=1,
        library="timm",
        build=_detector,
        call=_detect,
        sample=_images(512, 128),
        about="timm efficientnet_b0, three cells of BiFPN, two heads over five levels",
    ),
    _branchy(
        "inception_v3",
        batch=1,
        library="torchvision",
        build=_inception,
        call=classify,
        sample=_images(299, 75),
        about="torchvision inception_v3: four branches a block, some of them split again",
    ),
    _branchy(
        "googlenet",
        batch=1,
        library="torchvision",
        build=_googlenet,
        call=classify,
        sample=_images(224, 64),
        about="torchvision googlenet: four branches a block",
    ),
    _branchy(
        "towers-4",
        batch=32,
        library="torch",
        build=_towers,
        call=_one_result,
        sample=sized(floats, (4, 32, 512), (4, 4, 16)),
        about="a recommender: four towers of six layers, joined by products and a head",
        by_hand=_on_streams,
    ),
    _branchy(
        "moe",
        batch=16,
        library="torch",
        build=_mixture,
        call=_one_result,
        sample=sized(floats, (1, 16, 512), (1, 4, 16)),
        about="four layers of eight experts; all of them run, summed up by weight",
    ),
    _branchy(
        "heads",
        batch=16,
        library="torch",
        build=_heads,
        call=_one_result,
        sample=sized(floats, (1, 16, 512), (1, 4, 16)),
        about="a trunk of two layers, and eight heads of four",
    ),
    _of_paper(
        "deberta",
        OTHER,
        "DBV2",
        "the paper's DBV2: DebertaV2ForQuestionAnswering, 512 words",
    ),
    _of_paper(
        "mt5",
        OTHER,
        "MTCG-I",
        "the paper's MTCG-I at batch 1: encoder and decoder, 128 words each",
        batch=1,
        sample=sized(inputs.two_texts, (1, 128, 250112), (1, 8, 64)),
    ),
    Workload(
        "gpt2_training",
        OTHER,
        batch=4,
        library="transformers",
        build=_gpt2,
        call=_language_loss,
        sample=sized(inputs.tokens_and_mask, (4, 128, 50257), (2, 8, 64)),
        precision=BF16,
        about="transformers GPT2LMHeadModel, 124 million parameters: loss and backward",
        trains=True,
    ),
    Workload(
        "bert",
        OTHER,
        batch=1,
        library="transformers",
        build=_bert,
        call=_hidden,
        sample=sized(inputs.tokens, (1, 128, 30522), (1, 8, 64)),
        precision=PURE_BF16,
        about="transformers BertModel, base, 128 words",
    ),
    Workload(
        "unet",
        OTHER,
        batch=1,
        library="torch",
        build=_unet,
        call=_one_result,
        sample=_images(256, 32),
        precision=FP16,
        about="a plain U-Net, 7.8 million parameters",
    ),
)

WORKLOADS: dict[str, Workload] = {each.name: each for each in _ROWS}
"""Those that take longest to compile come first."""


def find(names: str | None, _: bool = False) -> list[Workload]:
    """The workloads of a list with commas; KeyError names those that there are."""
    return [WORKLOADS[name] for name in chosen(names, WORKLOADS, "workload")]
