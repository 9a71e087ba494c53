"""The language models: transformers' from their configurations, and TorchBench's BERT."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.harness.program import Sample, Tensors
from benchmarks.paper.workloads.sources import torchbench_module

TINY_BERT = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def transformer(name: str, **options: Any) -> Any:
    """A model of transformers from its own configuration with these options."""
    library = import_module("transformers")
    family = re.split("For|LMHead", name)[0]
    return getattr(library, name)(getattr(library, f"{family}Config")(**options))


def xlnet(tiny: bool) -> nn.Module:
    options: dict[str, Any] = {"use_mems_eval": False}
    if tiny:
        options |= {"vocab_size": 64, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
    return transformer("XLNetLMHeadModel", **options)


def t5(tiny: bool, family: str = "MT5") -> nn.Module:
    options: dict[str, Any] = {"use_cache": False, "decoder_start_token_id": 0}
    if tiny:
        options |= {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32}
        options |= {"num_layers": 1, "num_heads": 2}
    return transformer(f"{family}ForConditionalGeneration", **options)


def mobilebert(tiny: bool) -> nn.Module:
    options = {**TINY_BERT, "embedding_size": 16, "intra_bottleneck_size": 16} if tiny else {}
    return transformer("MobileBertForQuestionAnswering", **options)


def deberta_v2(tiny: bool) -> nn.Module:
    return transformer("DebertaV2ForQuestionAnswering", **(TINY_BERT if tiny else {}))


def deberta(tiny: bool) -> nn.Module:
    model = transformer("DebertaForMaskedLM", **(TINY_BERT if tiny else {}))
    from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention

    class Attention(DisentangledSelfAttention):
        """Adds the biases in the autocast's type. In fp32 they make the queries fp32 and the scores
        not, which the library then fills with a minimum that they cannot hold."""

        def transpose_for_scores(self, x: Any) -> Any:
            kind = x.device.type
            if torch.is_autocast_enabled(kind):
                x = x.to(torch.get_autocast_dtype(kind))
            return super().transpose_for_scores(x)

    for module in model.modules():
        if type(module) is DisentangledSelfAttention:
            module.__class__ = Attention
    return model


def blenderbot(tiny: bool) -> nn.Module:
    options: dict[str, Any] = {"use_cache": False}
    if tiny:
        options |= {"vocab_size": 64, "d_model": 16, "max_position_embeddings": 32}
        for side in ("encoder", "decoder"):
            options |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 32}
    return transformer("BlenderbotSmallForConditionalGeneration", **options)


def distil_gpt2(tiny: bool) -> nn.Module:
    options: dict[str, Any] = {"n_layer": 6, "use_cache": False}
    if tiny:
        options |= {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 32}
        options |= {"bos_token_id": 0, "eos_token_id": 0}
    return transformer("GPT2LMHeadModel", **options)


# ------------------------------------------------------------------------------ calls


def logits(model: Any, words: Any) -> Tensors:
    return (model(input_ids=words).logits,)


def sequence_logits(model: Any, words: Any, answer: Any) -> Tensors:
    return (model(input_ids=words, decoder_input_ids=answer).logits,)


def spans(model: Any, words: Any) -> Tensors:
    """Where answers start and end."""
    result = model(input_ids=words)
    return result.start_logits, result.end_logits


def masked_logits(model: Any, words: Any, mask: Any) -> Tensors:
    """With a mask: without one, GPT-2 looks for packed sequences, as many as values say."""
    return (model(input_ids=words, attention_mask=mask).logits,)


# ------------------------------------------------------------------------------ TorchBench's BERT

BERT_WORDS = 20005
"""20,000 words that TorchBench's corpus is drawn from, and five special tokens."""


def bert(tiny: bool) -> nn.Module:
    source = torchbench_module("torchbenchmark.models.BERT_pytorch.bert_pytorch.model")
    words, hidden, layers, heads = (64, 16, 2, 2) if tiny else (BERT_WORDS, 768, 12, 12)
    body = source.BERT(words, hidden=hidden, n_layers=layers, attn_heads=heads)
    return source.BERTLM(body, words)


def both_heads(model: Any, words: Any, segments: Any) -> Tensors:
    """Whether the second sentence follows, and the words: both as logarithms of probabilities."""
    return tuple(model(words, segments))


def sample_sentence_pairs(batch: int, length: int, vocabulary: int) -> Sample:
    """Pairs of sentences of one to three words, as in TorchBench's corpus, padded."""
    end, start, masked, first_word = 2, 3, 4, 5

    def sample(generator: torch.Generator, _: torch.device) -> Tensors:
        words = torch.randint(first_word, vocabulary, (batch, length), generator=generator)
        ends = torch.randint(1, 4, (batch, 2), generator=generator).cumsum(1)
        ends += torch.tensor([1, 2])  # the start, and the first sentence's end
        place = torch.arange(length)
        words[:, 0] = start
        words.scatter_(1, ends, end)
        segments = 2 - (place <= ends[:, :1]).long()
        inside = place <= ends[:, 1:]
        asked = torch.rand(batch, length, generator=generator) < 0.15
        words = torch.where(asked & (words >= first_word), masked, words)
        return words * inside, segments * inside

    return sample
