"""Updates of reinforcement learning in the sizes of LeanRL: SAC's and PPO's for continuous actions.

SAC: critic, actor and targets in one unit, the temperature fixed. PPO: one minibatch.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

from benchmarks.callables.program import Goal, Program, Row, Sample, adam_options
from benchmarks.harness.modes import Tensors

OBSERVED, ACTIONS = 17, 6
LOG_STD = (-5.0, 2.0)
"""Least and most of the policy's logarithmic deviation."""
DISCOUNT, TEMPERATURE, POLYAK = 0.99, 0.2, 0.005
CLIPPED, VALUE_WEIGHT, MOST_NORM = 0.2, 0.5, 0.5


class Critic(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(OBSERVED + ACTIONS, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, observed: Any, action: Any) -> Any:
        return self.layers(torch.cat([observed, action], 1))


class Actor(nn.Module):
    """A normal distribution, squashed by tanh."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(OBSERVED, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.mean = nn.Linear(hidden, ACTIONS)
        self.log_std = nn.Linear(hidden, ACTIONS)

    def forward(self, observed: Any) -> tuple[Any, Any]:
        """An action that is drawn, and the logarithm of its density."""
        found = self.body(observed)
        least, most = LOG_STD
        log_std = least + 0.5 * (most - least) * (torch.tanh(self.log_std(found)) + 1)
        # Checking the arguments would wait for the GPU.
        normal = Normal(self.mean(found), log_std.exp(), validate_args=False)
        drawn = normal.rsample()
        action = torch.tanh(drawn)
        density = normal.log_prob(drawn) - torch.log(1 - action.pow(2) + 1e-6)
        return action, density.sum(1, keepdim=True)


class SAC(Program):
    def __init__(self, device: torch.device, hidden: int) -> None:
        super().__init__()
        self.actor = Actor(hidden).to(device)
        self.critics = nn.ModuleList([Critic(hidden), Critic(hidden)]).to(device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.modules |= {"actor": self.actor, "critics": self.critics, "targets": self.targets}
        options = adam_options(device)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4, **options)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=1e-3, **options)
        self.optimizers |= {"actor_adam": self.actor_optimizer, "adam": self.critic_optimizer}

    def unit(self, *inputs: Any) -> Any:
        observed, action, reward, following, ended = inputs
        critic_loss = self._update_critics(observed, action, reward, following, ended)
        actor_loss = self._update_actor(observed)
        with torch.no_grad():
            ours, theirs = list(self.targets.parameters()), list(self.critics.parameters())
            torch._foreach_lerp_(ours, theirs, POLYAK)
        return critic_loss, actor_loss

    def _update_critics(
        self, observed: Any, action: Any, reward: Any, following: Any, ended: Any
    ) -> Any:
        self.critic_optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            chosen, density = self.actor(following)
            values = [critic(following, chosen) for critic in self.targets]
            ahead = torch.min(*values) - TEMPERATURE * density
            wanted = reward + (1 - ended) * DISCOUNT * ahead
        losses = [F.mse_loss(critic(observed, action), wanted) for critic in self.critics]
        loss = losses[0] + losses[1]
        loss.backward()
        self.critic_optimizer.step()
        return loss.detach()

    def _update_actor(self, observed: Any) -> Any:
        """Leaves gradients in the critics, too, as CleanRL does; their next update drops them."""
        self.actor_optimizer.zero_grad(set_to_none=True)
        chosen, density = self.actor(observed)
        values = [critic(observed, chosen) for critic in self.critics]
        loss = (TEMPERATURE * density - torch.min(*values)).mean()
        loss.backward()
        self.actor_optimizer.step()
        return loss.detach()


def _layer(inputs: int, outputs: int, scale: float = math.sqrt(2)) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, scale)
    nn.init.zeros_(made.bias)
    return made


def _net(hidden: int, outputs: int, scale: float) -> nn.Module:
    return nn.Sequential(
        _layer(OBSERVED, hidden),
        nn.Tanh(),
        _layer(hidden, hidden),
        nn.Tanh(),
        _layer(hidden, outputs, scale),
    )


class Agent(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.critic = _net(hidden, 1, 1.0)
        self.mean = _net(hidden, ACTIONS, 0.01)
        self.log_std = nn.Parameter(torch.zeros(1, ACTIONS))

    def forward(self, observed: Any, action: Any) -> tuple[Any, Any, Any]:
        """The action's log density, the entropy, and the value."""
        mean = self.mean(observed)
        normal = Normal(mean, self.log_std.expand_as(mean).exp(), validate_args=False)
        return normal.log_prob(action).sum(1), normal.entropy().sum(1), self.critic(observed)


class PPO(Program):
    def __init__(self, device: torch.device, hidden: int) -> None:
        super().__init__()
        self.agent = Agent(hidden).to(device)
        self.parameters_ = list(self.agent.parameters())
        options = adam_options(device)
        self.optimizer = torch.optim.Adam(self.parameters_, lr=3e-4, eps=1e-5, **options)
        self.modules["agent"] = self.agent
        self.optimizers["adam"] = self.optimizer

    def unit(self, *inputs: Any) -> Any:
        observed, action, density, advantage, returned, value = inputs
        self.optimizer.zero_grad(set_to_none=True)
        found, entropy, estimate = self.agent(observed, action)
        ratio = (found - density).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = torch.clamp(ratio, 1 - CLIPPED, 1 + CLIPPED)
        policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
        value_loss = _value_loss(estimate.view(-1), returned, value)
        loss = policy_loss + VALUE_WEIGHT * value_loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters_, MOST_NORM, foreach=True)
        self.optimizer.step()
        return policy_loss.detach(), value_loss.detach(), entropy.mean().detach(), norm


def _value_loss(estimate: Any, returned: Any, value: Any) -> Any:
    clipped = value + torch.clamp(estimate - value, -CLIPPED, CLIPPED)
    return 0.5 * torch.max((estimate - returned) ** 2, (clipped - returned) ** 2).mean()


def transitions(batch: int) -> Sample:
    """Of a replay buffer."""

    def sample(generator: torch.Generator, _: int) -> Tensors:
        observed, following = torch.randn(2, batch, OBSERVED, generator=generator)
        action = torch.rand(batch, ACTIONS, generator=generator) * 2 - 1
        reward = torch.randn(batch, 1, generator=generator)
        ended = (torch.rand(batch, 1, generator=generator) < 0.05).float()
        return observed, action, reward, following, ended

    return sample


def minibatch(batch: int) -> Sample:
    """Of a rollout, whose policy was near the one that is updated."""

    def sample(generator: torch.Generator, _: int) -> Tensors:
        observed = torch.randn(batch, OBSERVED, generator=generator)
        action = torch.randn(batch, ACTIONS, generator=generator)
        noise, advantage, returned, value = torch.randn(4, batch, generator=generator)
        density = Normal(0.0, 1.0).log_prob(action).sum(1) + 0.1 * noise
        return observed, action, density, advantage, returned, value

    return sample


def rows(tiny: bool) -> list[Row]:
    batch, hidden = (8, 8) if tiny else (256, 256)
    minibatch_size, narrow = (8, 8) if tiny else (64, 64)
    return [
        Row(
            "sac",
            "an update of SAC: two critics, actor, targets by polyak averaging, Adam",
            batch,
            lambda device: SAC(device, hidden),
            transitions(batch),
            random=True,
            goal=Goal(1.05, "floor"),
            timeline=True,
        ),
        Row(
            "ppo",
            "an update of PPO on one minibatch: clipped losses and gradients, Adam",
            minibatch_size,
            lambda device: PPO(device, narrow),
            minibatch(minibatch_size),
            goal=Goal(1.05, "floor"),
        ),
    ]
