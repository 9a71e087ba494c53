"""What a call returns decides the next call: an LSTM's state, and the actions of a policy."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from training.workload import Setup, Training

State = tuple[torch.Tensor, torch.Tensor]


class LSTMModel(nn.Module):
    """Embedding, two layers of LSTM with dropout between, logits for each next token."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.dropout = nn.Dropout(0.2)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        out, (hidden, cell) = self.lstm(self.dropout(self.embedding(tokens)), state)
        # In a graph, torch 2.11 returns them with a dimension too many on a GPU.
        shape = state[0].shape
        state = hidden.reshape(shape), cell.reshape(shape)
        return self.head(self.dropout(out)), state


def lstm(setup: Setup) -> Training:
    """Back-propagation is truncated: the state goes on, the gradients stop."""
    words, width = setup.pick(31, 4096), setup.pick(16, 256)
    batch, length = setup.pick(2, 32), setup.pick(4, 24)
    model = setup.place(LSTMModel(words, width))
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    compiled = setup.compile(model)
    zeros = torch.zeros(2, batch, width, device=setup.device)
    state: State = (zeros, zeros.clone())

    def step(index: int) -> list[torch.Tensor]:
        nonlocal state
        tokens = setup.integers(words, batch, length + 1)
        optimiser.zero_grad()
        logits, (hidden, cell) = compiled(tokens[:, :-1], state)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimiser.step()
        state = (hidden.detach(), cell.detach())
        return [loss.detach(), norm, *state]

    return Training([model], [optimiser], step)


# ------------------------------------------------------------------------- reinforcement learning


class Cart:
    """A cart that is to balance a pole (Barto, Sutton and Anderson, 1983), on the host."""

    def __init__(self, state: list[float]) -> None:
        self.x, self.speed, self.angle, self.turn = state

    def push(self, action: int) -> bool:
        """True while the pole stands."""
        force = 10.0 if action else -10.0
        sine, cosine = math.sin(self.angle), math.cos(self.angle)
        pull = (force + 0.05 * self.turn**2 * sine) / 1.1
        turning = (9.8 * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        moving = pull - 0.05 * turning * cosine / 1.1
        self.x += 0.02 * self.speed
        self.speed += 0.02 * moving
        self.angle += 0.02 * self.turn
        self.turn += 0.02 * turning
        return abs(self.x) < 2.4 and abs(self.angle) < 0.21

    def observation(self, device: str) -> torch.Tensor:
        return torch.tensor([[self.x, self.speed, self.angle, self.turn]], device=device)


def reinforce(setup: Setup) -> Training:
    """One step is one episode: many forward passes, the number of which their own results decide,
    and then one backward pass through all of them."""
    width, longest = setup.pick(16, 128), setup.pick(16, 48)
    policy = setup.place(
        nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2), nn.LogSoftmax(-1))
    )
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    compiled = setup.compile(policy)

    def step(index: int) -> list[torch.Tensor]:
        start = (setup.uniform(4) * 0.4 - 0.2).tolist()
        cart, stands = Cart(start), True
        chosen: list[torch.Tensor] = []
        while stands and len(chosen) < longest:
            log_probabilities = compiled(cart.observation(setup.device))
            action = int(torch.multinomial(log_probabilities.detach().exp(), 1).item())
            chosen.append(log_probabilities[0, action])
            stands = cart.push(action)
        steps_left = torch.arange(len(chosen), 0, -1, device=setup.device)
        returns = (1 - 0.99**steps_left) / 0.01
        advantage = (returns - returns.mean()) / (returns.std(correction=0) + 1e-3)
        optimiser.zero_grad()
        loss = -(torch.stack(chosen) * advantage).sum()
        loss.backward()
        optimiser.step()
        return [loss.detach(), *(each.detach() for each in chosen)]

    return Training([policy], [optimiser], step)
