"""The speech models: TorchBench's speech_transformer and transformers' Speech2Text decoder."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.harness.program import Sample, Tensors
from benchmarks.paper.workloads.sources import torchbench_module

_IGNORED = -1
"""What speech_transformer pads targets with."""


def speech_transformer(tiny: bool) -> nn.Module:
    """With the sizes of TorchBench's configuration; four frames of 80 features are one input."""
    source = torchbench_module(
        "torchbenchmark.models.speech_transformer.speech_transformer.transformer"
    )
    features, words = (8, 16) if tiny else (4 * 80, 1014)
    layers, heads, width, model, inner = (2, 2, 8, 16, 32) if tiny else (6, 8, 64, 512, 2048)
    shape = (layers, heads, width, width, model, inner)
    encoder = source.Encoder(features, *shape, dropout=0.1, pe_maxlen=5000)
    decoder = source.Decoder(
        words - 2,
        words - 1,
        words,
        model,
        *shape,
        dropout=0.1,
        tgt_emb_prj_weight_sharing=1,
        pe_maxlen=5000,
    )
    return source.Transformer(encoder, decoder)


def recognize(model: Any, features: Any, lengths: Any, targets: Any) -> Tensors:
    predicted, expected = model(features, lengths, targets)
    return predicted, expected


def sample_recordings(batch: int, frames: int, size: int, words: int, length: int) -> Sample:
    """Recordings from long to short, always of the same lengths: the model asks for them."""

    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        nth = torch.arange(batch)
        lengths = frames - nth * (frames // (4 * batch))
        features = torch.randn(batch, frames, size, generator=generator)
        features *= (torch.arange(frames) < lengths[:, None]).unsqueeze(-1)
        targets = torch.randint(1, words - 2, (batch, length), generator=generator)
        padded = torch.arange(length) >= (length - nth * length // (2 * batch))[:, None]
        return features, lengths.int(), targets.masked_fill(padded, _IGNORED)

    return sample


class SpeechDecoder(nn.Module):
    """Speech2Text2ForCausalLM, which transformers had until version 4: the decoder and its head."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        source = import_module("transformers.models.speech_to_text")
        config = source.configuration_speech_to_text.Speech2TextConfig(
            use_cache=False, encoder_layerdrop=0.0, decoder_layerdrop=0.0, **options
        )
        self.decoder = source.modeling_speech_to_text.Speech2TextDecoder(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.head.weight = self.decoder.embed_tokens.weight

    def forward(self, words: Any) -> Any:
        return self.head(self.decoder(input_ids=words).last_hidden_state)


def speech_decoder(tiny: bool) -> nn.Module:
    if tiny:
        shape = {"vocab_size": 64, "d_model": 16, "decoder_layers": 1}
        shape |= {"decoder_attention_heads": 2, "decoder_ffn_dim": 32, "max_target_positions": 32}
        return SpeechDecoder(**shape)
    return SpeechDecoder(
        vocab_size=10_000,
        d_model=256,
        decoder_layers=6,
        decoder_attention_heads=4,
        decoder_ffn_dim=2048,
    )
