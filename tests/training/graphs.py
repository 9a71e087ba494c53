"""Models that gather and scatter: bags of embeddings, and messages along the edges of a graph.

On a GPU their gradients are added up by atomics, in an order that differs from run to run.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from training.workload import Setup, Training


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Dense features and bags of categories, and how they agree (Naumov et al., 2019)."""

    def __init__(self, dense: int, rows: list[int], width: int, hidden: int) -> None:
        super().__init__()
        self.bottom = _perceptron(dense, hidden, width)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(count, width, mode="mean" if place % 2 else "sum")
            for place, count in enumerate(rows)
        )
        for table in self.tables:
            bound = table.num_embeddings**-0.5
            nn.init.uniform_(table.weight, -bound, bound)
        vectors = len(rows) + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))
        self.top = _perceptron(width + vectors * (vectors - 1) // 2, hidden, hidden, 1)

    def forward(
        self, dense: torch.Tensor, indices: list[torch.Tensor], offsets: torch.Tensor
    ) -> torch.Tensor:
        x = self.bottom(dense)
        bags = [table(given, offsets) for table, given in zip(self.tables, indices, strict=True)]
        stacked = torch.stack([x, *bags], 1)
        agreement = stacked @ stacked.transpose(1, 2)
        flat = agreement[:, self.pairs[0], self.pairs[1]]
        out: torch.Tensor = self.top(torch.cat([x, flat], 1)).squeeze(1)
        return out


def dlrm(setup: Setup) -> Training:
    batch, dense, per_bag = setup.pick(4, 256), setup.pick(5, 13), setup.pick(3, 8)
    rows = setup.pick([11, 23, 7], [100_000, 5_000, 20_000, 300, 1_000, 40, 10_000, 2_500])
    model = setup.place(DLRM(dense, rows, setup.pick(8, 64), setup.pick(16, 256)))
    optimiser = torch.optim.Adagrad(model.parameters(), lr=0.01)
    compiled = setup.compile(model)

    def step(index: int) -> list[torch.Tensor]:
        indices = [setup.integers(count, batch * per_bag) for count in rows]
        starts = setup.integers(per_bag, batch)
        starts[0] = 0
        offsets = torch.arange(batch, device=setup.device) * per_bag + starts
        optimiser.zero_grad()
        outputs = compiled(setup.normal(batch, dense), indices, offsets)
        loss = F.binary_cross_entropy_with_logits(outputs, setup.integers(2, batch).float())
        loss.backward()
        optimiser.step()
        return [loss.detach(), outputs.detach()]

    return Training([model], [optimiser], step)


# ------------------------------------------------------------------------------------------ GNN


class Messages(nn.Module):
    """Each node takes the sum and the largest of what its neighbours say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.say = _perceptron(2 * width, width, width)
        self.take = nn.Linear(3 * width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        said = self.say(torch.cat([x[source], x[target]], 1))
        total = torch.zeros_like(x).index_add(0, target, said)
        largest = torch.zeros_like(x).scatter_reduce(
            0, target[:, None].expand_as(said), said, "amax", include_self=True
        )
        out: torch.Tensor = x + F.relu(self.norm(self.take(torch.cat([x, total, largest], 1))))
        return out


class GNN(nn.Module):
    """Rounds of messages; a prediction per graph of the batch."""

    def __init__(self, features: int, width: int, rounds: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.rounds = nn.ModuleList(Messages(width) for _ in range(rounds))
        self.head = _perceptron(width, width, 1)

    def forward(
        self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, graph: torch.Tensor
    ) -> torch.Tensor:
        x = self.enter(x)
        for messages in self.rounds:
            x = messages(x, source, target)
        place = graph[:, None].expand_as(x)
        pooled = x.new_zeros(4, x.shape[1]).scatter_add(0, place, x) * (4 / x.shape[0])
        out: torch.Tensor = self.head(pooled).squeeze(1)
        return out


def gnn(setup: Setup) -> Training:
    nodes, edges = setup.pick(12, 4096), setup.pick(30, 32768)
    features, width = setup.pick(5, 16), setup.pick(8, 128)
    model = setup.place(GNN(features, width, setup.pick(2, 3)))
    optimiser = torch.optim.Adamax(model.parameters(), lr=2e-3)
    compiled = setup.compile(model)

    def step(index: int) -> list[torch.Tensor]:
        source, target = setup.integers(nodes, 2, edges)
        graph = setup.integers(4, nodes)
        optimiser.zero_grad()
        outputs = compiled(setup.normal(nodes, features), source, target, graph)
        loss = F.huber_loss(outputs, setup.normal(4))
        loss.backward()
        optimiser.step()
        return [loss.detach(), outputs.detach()]

    return Training([model], [optimiser], step)
