"""Five models that a CPU runs in seconds, with random weights: for the twin, whose results are
compared bit for bit, and for a GPU. Architectures have their real sizes; inputs are small."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al., 2015, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """11.7 million parameters (He et al., 2015, table 1)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = (64, 64, 128, 256, 512)
        blocks: list[nn.Module] = []
        for stage in range(1, 5):
            blocks.append(_Block(widths[stage - 1], widths[stage], 1 if stage == 1 else 2))
            blocks.append(_Block(widths[stage], widths[stage], 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        out: torch.Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


class UNet(nn.Module):
    """Down and up again with skip connections (Ronneberger et al., 2015, whose width is 64), with
    padded convolutions and batch norm, as it is built today. The first activations must be kept
    until the last layers, which is what packing by lifetime is about."""

    def __init__(self, width: int = 32, depth: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            self._double(3 if level == 0 else widths[level - 1], widths[level])
            for level in range(depth + 1)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(widths[level + 1], widths[level], 2, stride=2)
            for level in reversed(range(depth))
        )
        self.merge = nn.ModuleList(
            self._double(2 * widths[level], widths[level]) for level in reversed(range(depth))
        )
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _double(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            skipped.append(x)
        skipped.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skipped.pop(), up(x)], 1))
        out: torch.Tensor = self.head(x)
        return out


class LSTMClassifier(nn.Module):
    """An embedding, two layers of LSTM, and a linear head on the last state."""

    def __init__(self, words: int = 5000, width: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        _, (state, _) = self.lstm(self.embedding(tokens))
        out: torch.Tensor = self.head(state[-1])
        return out


class _GPT2(nn.Module):
    """The logits. The mask is given because transformers, making one, looks at its values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = torch.full((length, length), -3e38, device=tokens.device).triu(1)[None, None]
        out: torch.Tensor = self.model(
            tokens, attention_mask=mask, use_cache=False, return_dict=False
        )[0]
        return out


class _Bert(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(tokens, return_dict=False)[0]
        return out


def _bert_mini() -> nn.Module:
    """4 layers, width 256, 4 heads: 11 million parameters (Turc et al., 2019)."""
    import transformers

    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    return _Bert(transformers.BertModel(config))


def _gpt2() -> nn.Module:
    """12 layers, width 768: 124 million parameters (Radford et al., 2019)."""
    import transformers

    return _GPT2(transformers.GPT2LMHeadModel(transformers.GPT2Config()))


def _images(size: int, batch: int = 1) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(batch, 3, size, size)


def _tokens(words: int, length: int, batch: int = 1) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, words, (batch, length))


_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "resnet18": (ResNet18, _images(64, 2)),
    "bert-mini": (_bert_mini, _tokens(30522, 32, 2)),
    "gpt2": (_gpt2, _tokens(50257, 16)),
    "lstm": (LSTMClassifier, _tokens(5000, 24, 2)),
    "unet": (UNet, _images(64)),
}

NAMES = tuple(_MODELS)


def find(name: str) -> str:
    """`name`, if there is such a model; raises KeyError with those that there are."""
    if name not in _MODELS:
        raise KeyError(f"no small model {name!r}: there are {', '.join(NAMES)}")
    return name


def build(name: str) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """A model in eval mode, and what makes a fresh input for it."""
    make, fresh_input = _MODELS[name]
    return make().eval(), fresh_input
