"""Layers and operators as programs have them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.patterns.pattern import WIDTH, Loaded, Pattern, Tensors

DROPPED = 0.25
ROWS, CANDIDATES = 8, 16
"""Of sampling: sequences, and tokens to choose from."""
EXPERTS, CHOSEN = 4, 2
LENGTH = 8
"""Steps of the recurrent nets."""


class Checkpointed(Loaded):
    """Draws the same numbers in the forward and, once more, in the backward."""

    def dropped(self, x: Any) -> Any:
        return functional.dropout(self.head(x), DROPPED)

    def forward(self, x: Any) -> Any:
        y = checkpoint(self.dropped, x, use_reentrant=False)
        return self.tail(y).square().mean()


class CheckpointedClean(Loaded):
    """Keeps what it needs; the mask is drawn by its caller."""

    def forward(self, x: Any, mask: Any) -> Any:
        return self.tail(self.head(x) * mask).square().mean()


class Sampling(Loaded):
    def candidates(self, x: Any) -> Tensors:
        top = self.tail(self.head(x))[:ROWS].topk(CANDIDATES)
        return (top.values * 4).softmax(-1), top.indices


class Sampled(Sampling):
    def forward(self, x: Any) -> Tensors:
        chances, tokens = self.candidates(x)
        return tokens.gather(1, torch.multinomial(chances, 1)), chances


class SampledClean(Sampling):
    """torch.multinomial divides by such numbers, too."""

    def forward(self, x: Any, exponential: Any) -> Tensors:
        chances, tokens = self.candidates(x)
        return tokens.gather(1, (chances / exponential).argmax(-1, keepdim=True)), chances


@torch.library.custom_op("pygraph_patterns::normalized", mutates_args=())
def normalized(x: torch.Tensor) -> torch.Tensor:
    return x / float(x.abs().max())


@normalized.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class CustomOperator(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(normalized(self.head(x)))


class CustomOperatorClean(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        return self.tail(y / y.abs().max())


class Experts(Loaded):
    """Each row goes to two of the experts, which are visited in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(WIDTH, EXPERTS) * WIDTH**-0.5)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) * WIDTH**-0.5)

    def route(self, x: Any) -> Tensors:
        """By the input, so that rounding in the load sends no row elsewhere."""
        weights, chosen = (x @ self.router).softmax(-1).topk(CHOSEN)
        return weights / weights.sum(-1, keepdim=True), chosen

    def forward(self, x: Any) -> Any:
        y = self.head(x)
        weights, chosen = self.route(x)
        mixed = torch.zeros_like(y)
        for n in range(EXPERTS):
            rows, places = torch.where(chosen == n)
            made = torch.tanh(y[rows] @ self.experts[n])
            mixed.index_add_(0, rows, made * weights[rows, places, None])
        return self.tail(mixed)


class ExpertsClean(Experts):
    """All experts work on all rows, some with the weight 0."""

    def forward(self, x: Any) -> Any:
        y = self.head(x)
        weights, chosen = self.route(x)
        gates = torch.zeros(WIDTH, EXPERTS, device=x.device).scatter(1, chosen, weights)
        made = torch.tanh(y @ self.experts)
        return self.tail((made * gates.T[:, :, None]).sum(0))


class Recurrent(Loaded):
    kind: type[nn.Module]

    def __init__(self) -> None:
        super().__init__()
        self.net = self.kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Any) -> Any:
        results, _ = self.net(self.head(x).view(-1, LENGTH, WIDTH))
        return self.tail(results.reshape(-1, WIDTH))

    def unrolled(self, x: Any) -> Any:
        """The net as plain operators, step by step."""
        net = self.net
        x = x.view(-1, LENGTH, WIDTH)
        hidden = torch.zeros_like(x[:, 0])
        state = hidden
        results = []
        for step in range(LENGTH):
            given = functional.linear(x[:, step], net.weight_ih_l0, net.bias_ih_l0)
            kept = functional.linear(hidden, net.weight_hh_l0, net.bias_hh_l0)
            hidden, state = self.cell(given, kept, hidden, state)
            results.append(hidden)
        return torch.stack(results, 1).reshape(-1, WIDTH)

    def cell(self, given: Any, kept: Any, hidden: Any, state: Any) -> Tensors:
        raise NotImplementedError


class Lstm(Recurrent):
    kind = nn.LSTM


class LstmClean(Lstm):
    def cell(self, given: Any, kept: Any, hidden: Any, state: Any) -> Tensors:
        enter, forget, new, leave = (given + kept).chunk(4, -1)
        state = forget.sigmoid() * state + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * state.tanh(), state

    def forward(self, x: Any) -> Any:
        return self.tail(self.unrolled(self.head(x)))


class Gru(Recurrent):
    kind = nn.GRU


class GruClean(Gru):
    def cell(self, given: Any, kept: Any, hidden: Any, state: Any) -> Tensors:
        (reset, update, new), (r, z, n) = given.chunk(3, -1), kept.chunk(3, -1)
        update = (update + z).sigmoid()
        new = (new + (reset + r).sigmoid() * n).tanh()
        return (1 - update) * new + update * hidden, state

    def forward(self, x: Any) -> Any:
        return self.tail(self.unrolled(self.head(x)))


def drawn_mask(device: torch.device) -> Tensors:
    return (functional.dropout(torch.ones(WIDTH, WIDTH, device=device), DROPPED),)


def drawn_exponential(device: torch.device) -> Tensors:
    return (torch.empty(ROWS, CANDIDATES, device=device).exponential_(1),)


ABORTS = (
    "not run: torch aborts the process (captures_underway.empty() INTERNAL ASSERT FAILED), "
    "since the operator waits for a value while torch captures it"
)
TF32 = 1e-2
"""cuDNN's recurrent nets round to TF32."""

PATTERNS = (
    Pattern(
        "dropout_checkpoint",
        "dropout under a checkpoint, in training; the clean program has drawn before it is timed",
        Checkpointed,
        CheckpointedClean,
        further=drawn_mask,
        training=True,
        random=True,
    ),
    Pattern(
        "multinomial",
        "top-k sampling with torch.multinomial; the clean program has drawn before it is timed",
        Sampled,
        SampledClean,
        further=drawn_exponential,
        random=True,
    ),
    Pattern(
        "custom_operator",
        "an operator of the program's own that waits for a value",
        CustomOperator,
        CustomOperatorClean,
        ends_process={"reduce-overhead": ABORTS},
    ),
    Pattern("experts", "a mixture of experts: a loop with indices", Experts, ExpertsClean),
    Pattern("lstm", "nn.LSTM, on which Dynamo breaks", Lstm, LstmClean, tolerance=TF32),
    Pattern("gru", "nn.GRU, on which Dynamo breaks", Gru, GruClean, tolerance=TF32),
)
