"""Soft actor-critic: an update of two critics, an actor and the targets is one graph. The replay
buffer, and what acts in the environment, stay outside."""

import copy
import functools

import torch
from torch import nn
from torch.nn import functional as F

import pygraph

device, place = ("cuda", "cuda") if torch.cuda.is_available() else ("cpu", "twin")
OBSERVED, ACTIONS, BATCH = 6, 2, 16


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(OBSERVED + ACTIONS, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, observed, action):
        return self.net(torch.cat([observed, action], 1))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(OBSERVED, 32), nn.ReLU(), nn.Linear(32, 2 * ACTIONS))

    def forward(self, observed, noise):
        mean, log_std = self.net(observed).chunk(2, 1)
        log_std = log_std.clamp(-5, 2)
        action = torch.tanh(mean + log_std.exp() * noise)
        density = -0.5 * noise.square() - log_std - torch.log(1 - action.square() + 1e-6)
        return action, density.sum(1, keepdim=True)


class ReplayBuffer:
    """On the device, so that a batch is one gather and no copy."""

    def __init__(self, size):
        self.rows = torch.zeros(size, 2 * OBSERVED + ACTIONS + 2, device=device)
        self.added = 0

    def add(self, *row):
        self.rows[self.added % len(self.rows)] = torch.cat(row)
        self.added += 1

    def sample(self):
        places = torch.randint(min(self.added, len(self.rows)), (BATCH,), device=device)
        return self.rows[places].split([OBSERVED, ACTIONS, 1, OBSERVED, 1], 1)


def learner(capture):
    actor = Actor().to(device)
    critics = nn.ModuleList([Critic(), Critic()]).to(device)
    targets = copy.deepcopy(critics).requires_grad_(False)
    actor_adam = torch.optim.Adam(actor.parameters(), lr=3e-4, fused=True)
    critic_adam = torch.optim.Adam(critics.parameters(), lr=1e-3, fused=True)

    @capture
    def update(observed, action, reward, following, ended, noise):
        with torch.no_grad():
            chosen, density = actor(following, noise[0])
            ahead = torch.min(*(each(following, chosen) for each in targets)) - 0.2 * density
            wanted = reward + (1 - ended) * 0.99 * ahead
        critic_loss = sum(F.mse_loss(each(observed, action), wanted) for each in critics)
        critic_adam.zero_grad()
        critic_loss.backward()
        critic_adam.step()

        chosen, density = actor(observed, noise[1])
        value = torch.min(*(each(observed, chosen) for each in critics))
        actor_loss = (0.2 * density - value).mean()
        actor_adam.zero_grad()
        actor_loss.backward()
        actor_adam.step()

        with torch.no_grad():  # the targets follow
            torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)
        return critic_loss.detach(), actor_loss.detach()

    return actor, update


def train(capture, steps=24):
    actor, update = learner(capture)
    buffer, observed, losses = ReplayBuffer(64), torch.zeros(OBSERVED, device=device), []
    for _ in range(steps):
        with torch.no_grad():
            noise = torch.randn(1, ACTIONS, device=device)
            action = actor(observed.unsqueeze(0), noise)[0].squeeze(0)
        following = observed * 0.9 + 0.1 * torch.randn_like(observed)  # an environment
        reward, ended = -following.norm().view(1), torch.zeros(1, device=device)
        buffer.add(observed, action, reward, following, ended)
        observed = following
        # Drawn here: with torch 2.12 or newer a graph draws no random numbers on a GPU.
        losses.append(update(*buffer.sample(), torch.randn(2, BATCH, ACTIONS, device=device)))
    return losses, actor.state_dict()


torch.manual_seed(0)
expected = train(lambda update: update)
torch.manual_seed(0)
found = train(functools.partial(pygraph.capture, device=place))
torch.testing.assert_close(found, expected)
report = pygraph.report()
print(report)
assert report.replays == 24 - 3, report.replays
