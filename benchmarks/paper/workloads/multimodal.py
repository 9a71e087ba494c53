"""The models of text and images: torchmultimodal's CLIP, and DALL-E 2 of dalle2-pytorch."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.harness.program import Sample, Tensors
from benchmarks.paper.workloads.sources import package_without_init, standing_in

CONTEXT, WORDS = 77, 49408


def clip(tiny: bool) -> nn.Module:
    source = import_module("torchmultimodal.models.clip.model")
    if not tiny:
        return source.clip_vit_b32()
    shape = {"embedding_dim": 16, "width": 16, "heads": 2, "layers": 1}
    images = source.CLIPViTEncoder(patch_size=8, image_size=32, **shape)
    texts = source.CLIPTextEncoder(dim_feedforward=32, vocab_size=64, **shape)
    return source.CLIP(images, texts)


def embed(model: Any, image: Any, texts: Any) -> Tensors:
    result = model(image, texts)
    return result.embeddings_a, result.embeddings_b


def sample_image_and_texts(size: int, texts: int, vocabulary: int) -> Sample:
    """Texts that end in the last word of the vocabulary, and are padded with zeros."""

    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        image = torch.randn(1, 3, size, size, generator=generator)
        words = torch.randint(1, vocabulary - 2, (texts, CONTEXT), generator=generator)
        ends = torch.randint(2, 10, (texts, 1), generator=generator)
        words[:, 0] = vocabulary - 2
        words.scatter_(1, ends, vocabulary - 1)
        return image, words * (torch.arange(CONTEXT) <= ends)

    return sample


# ------------------------------------------------------------------------------ DALL-E 2


def _pass_through(steps: Iterable[Any], **_: Any) -> Iterable[Any]:
    """In place of tqdm: no bars of progress, as in TorchBench's patch."""
    return steps


def _dalle2_pytorch() -> Any:
    """The package without its trainer and its quantizer, which DALL-E 2's forward doesn't use."""
    absent = {"vector_quantize_pytorch": {"VectorQuantize": None}}
    name = "dalle2_pytorch"
    package_without_init(name, _folder(name))
    with standing_in(absent):
        source: Any = import_module(f"{name}.{name}")
    source.tqdm = _pass_through
    for kind in (source.DiffusionPrior, source.Decoder, source.DALLE2):
        _stay_in_eval_mode(kind)
    return source


def _stay_in_eval_mode(kind: Any) -> None:
    """Its methods put all modules into eval mode and back, in every call. They are in it already,
    and Dynamo would trace a thousand modules three times."""
    for name, method in list(vars(kind).items()):
        if getattr(method, "__qualname__", "").startswith("eval_decorator."):
            switching = getattr(method, "__wrapped__", method)
            (plain,) = (cell.cell_contents for cell in switching.__closure__)
            setattr(kind, name, plain if switching is method else torch.no_grad()(plain))


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}")
    return Path(next(iter(spec.submodule_search_locations)))


def _openai_clip(tiny: bool) -> Any:
    """OpenAI's CLIP with the sizes of ViT-B/32 and random weights, in dalle2-pytorch's adapter,
    which asks `clip` to load it."""
    package: Any = package_without_init("clip", _folder("clip"))
    source = import_module("clip.model")
    # image: embedding, resolution, layers, width, patch; text: context, words, width, heads, layers
    shape = (512, 224, 12, 768, 32, CONTEXT, WORDS, 512, 8, 12)
    if tiny:
        shape = (16, 32, 1, 64, 8, CONTEXT, 64, 16, 2, 1)
    transforms = import_module("torchvision.transforms")
    normalize = transforms.Normalize(
        (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    )
    load = getattr(package, "load", None)
    package.load = lambda _: (source.CLIP(*shape), SimpleNamespace(transforms=[normalize]))
    try:
        return _dalle2_pytorch().OpenAIClipAdapter()
    finally:
        package.load = load


def dalle2(tiny: bool) -> nn.Module:
    """TorchBench's configuration: a prior of six layers and two U-Nets, one step of each."""
    source = _dalle2_pytorch()

    class Decoder(source.Decoder):  # type: ignore[name-defined]
        """Leaves all U-Nets where they are, as TorchBench's patch does."""

        def sample(self, **options: Any) -> Any:
            return super().sample(one_unet_in_gpu_at_time=False, **options)

    adapter = _openai_clip(tiny)
    width = 16 if tiny else 512
    network = {"depth": 1, "dim_head": 8, "heads": 2} if tiny else {"depth": 6, "heads": 8}
    first = {"dim": 16, "dim_mults": (1, 2)} if tiny else {"dim": 128, "dim_mults": (1, 2, 4, 8)}
    second = {"dim": 16, "dim_mults": (1, 2) if tiny else (1, 2, 4, 8, 16)}
    shared = {"image_embed_dim": width, "cond_dim": 16 if tiny else 128, "channels": 3}
    if tiny:
        shared |= {"attn_heads": 2, "attn_dim_head": 8}
    prior = source.DiffusionPrior(
        net=source.DiffusionPriorNetwork(dim=width, **network),
        clip=adapter,
        timesteps=1,
        cond_drop_prob=0.2,
    )
    unets = (
        source.Unet(text_embed_dim=width, cond_on_text_encodings=True, **first, **shared),
        source.Unet(**second, **shared),
    )
    decoder = Decoder(
        unet=unets,
        image_sizes=(16, 32) if tiny else (128, 256),
        clip=adapter,
        timesteps=1,
        sample_timesteps=(1, 1),
        image_cond_drop_prob=0.1,
        text_cond_drop_prob=0.5,
    )
    for unet in decoder.unets:
        # Made as zeros: the image would depend on nothing but the noise.
        unet.to_out.reset_parameters()
    device = torch.get_default_device()
    model: nn.Module = source.DALLE2(prior=prior, decoder=decoder).to(device).eval()
    # Once eagerly: einops keeps a table of the backends it has met, and Dynamo guards on it.
    model(torch.ones(1, 256, dtype=torch.int64, device=device))
    return model


def draw(model: Any, words: Any) -> Tensors:
    return (model(words),)
