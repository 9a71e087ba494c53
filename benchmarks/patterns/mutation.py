"""Memory that the forward writes: of inputs, of the model, and in the middle."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.patterns.pattern import WIDTH, Loaded, Pattern, Tensors, square

LENGTH = 256
"""Of the cache."""


class Accumulated(Loaded):
    def forward(self, x: Any, rows: Any) -> Any:
        y = self.head(x)
        summed = torch.zeros_like(y).index_put_((rows,), y, accumulate=True)
        return self.tail(summed)


class AccumulatedClean(Loaded):
    def forward(self, x: Any, rows: Any) -> Any:
        places = torch.arange(WIDTH, device=x.device)
        return self.tail((places[:, None] == rows[None, :]).float() @ self.head(x))


class MaskedWrite(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        y[x > 0.5] = 0
        return self.tail(y)


class MaskedWriteClean(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(torch.where(x > 0.5, 0.0, self.head(x)))


class InputWritten(Loaded):
    """A change of sign is exact, and however often it is done nothing vanishes."""

    def forward(self, x: Any) -> Any:
        x.neg_()
        return self.tail(self.head(x))

    def observe(self, inputs: Tensors, outputs: Any) -> Any:
        return outputs, inputs[0]


class InputWrittenClean(Loaded):
    def forward(self, x: Any) -> Any:
        x = -x
        return self.tail(self.head(x)), x


class ViewWritten(InputWritten):
    def forward(self, x: Any) -> Any:
        x[:, ::2].neg_()
        return self.tail(self.head(x))


class ViewWrittenClean(Loaded):
    def forward(self, x: Any) -> Any:
        odd = torch.arange(WIDTH, device=x.device) % 2 == 1
        x = torch.where(odd, x, -x)
        return self.tail(self.head(x)), x


class RunningMean(Loaded):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def restart(self) -> None:
        self.mean.zero_()

    def forward(self, x: Any) -> Any:
        y = self.head(x)
        self.mean.lerp_(y.mean(0), 0.1)
        return self.tail(y - self.mean)

    def observe(self, inputs: Tensors, outputs: Any) -> Any:
        return outputs, self.mean


class RunningMeanClean(Loaded):
    def forward(self, x: Any, mean: Any) -> Any:
        y = self.head(x)
        mean = torch.lerp(mean, y.mean(0), 0.1)
        return self.tail(y - mean), mean


class StepInt(Loaded):
    """Counts its calls in a Python int."""

    def restart(self) -> None:
        self.steps = 0

    def place(self, device: torch.device) -> None:
        self.restart()

    def forward(self, x: Any) -> Any:
        self.steps += 1
        return self.tail(self.head(x) * (1 + 1 / (1 + self.steps)))

    def observe(self, inputs: Tensors, outputs: Any) -> Any:
        return outputs, float(self.steps)


class StepTensor(Loaded):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def restart(self) -> None:
        self.steps.zero_()

    def forward(self, x: Any) -> Any:
        self.steps.add_(1)
        return self.tail(self.head(x) * (1 + 1 / (1 + self.steps)))

    def observe(self, inputs: Tensors, outputs: Any) -> Any:
        return outputs, self.steps


class StepClean(Loaded):
    def forward(self, x: Any, steps: Any) -> Any:
        steps = steps + 1
        return self.tail(self.head(x) * (1 + 1 / (1 + steps))), steps


class Cached(Loaded):
    """Writes a row of a cache, and attends to the rows up to there."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(LENGTH, WIDTH))

    def restart(self) -> None:
        self.cache.zero_()

    def attend(self, y: Any, position: Any) -> Any:
        scores = y[:1] @ self.cache.T
        there = torch.arange(LENGTH, device=y.device) <= position
        weights = scores.masked_fill(~there, float("-inf")).softmax(-1)
        return y + weights @ self.cache

    def forward(self, x: Any, position: Any) -> Any:
        y = self.head(x)
        self.cache[position] = y[0]
        return self.tail(self.attend(y, position))

    def observe(self, inputs: Tensors, outputs: Any) -> Any:
        return outputs, self.cache


class CachedTensor(Cached):
    def forward(self, x: Any, position: Any) -> Any:
        y = self.head(x)
        position = position.to(x.device)
        self.cache.index_copy_(0, position.view(1), y[:1])
        return self.tail(self.attend(y, position))


def with_rows(generator: torch.Generator) -> Tensors:
    return (*square(generator), torch.randint(WIDTH, (WIDTH,), generator=generator))


PATTERNS = (
    Pattern(
        "index_put",
        "index_put_ with accumulate=True",
        Accumulated,
        AccumulatedClean,
        with_rows,
    ),
    Pattern("masked_write", "x[mask] = 0", MaskedWrite, MaskedWriteClean),
    Pattern("input_written", "an input is changed in place", InputWritten, InputWrittenClean),
    Pattern("view_written", "a view of an input is changed", ViewWritten, ViewWrittenClean),
    Pattern(
        "running_mean",
        "a buffer is changed: a running mean",
        RunningMean,
        RunningMeanClean,
        further=lambda device: (torch.zeros(WIDTH, device=device),),
    ),
    Pattern(
        "step_int",
        "calls are counted in an attribute of the model",
        StepInt,
        StepClean,
        further=lambda device: (torch.zeros((), device=device),),
        one_copy_more=True,
    ),
    Pattern(
        "step_tensor",
        "calls are counted in a buffer",
        StepTensor,
        StepClean,
        further=lambda device: (torch.zeros((), device=device),),
    ),
    Pattern(
        "cache_int",
        "a KV cache, written at a position that is a Python int",
        Cached,
        CachedTensor,
        values=lambda k: (k % LENGTH,),
        one_copy_more=True,
    ),
    Pattern(
        "cache_tensor",
        "a KV cache, written at a position in a CPU tensor",
        CachedTensor,
        CachedTensor,
        values=lambda k: (torch.tensor(k % LENGTH),),
        one_copy_more=True,
    ),
)
