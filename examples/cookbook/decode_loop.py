"""Decoding with a static cache: a token is one graph, whose position is a tensor. The loop does not
wait for the device: what it chooses stays there until the text is complete."""

import torch
from torch import nn
from torch.nn import functional as F

import pygraph

device, place = ("cuda", "cuda") if torch.cuda.is_available() else ("cpu", "twin")
TOKENS, WIDTH, HEADS, LENGTH = 50, 32, 4, 32


def rotated(x, angles):
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        cache = torch.zeros(2, 1, HEADS, LENGTH, WIDTH // HEADS)
        self.register_buffer("cache", cache)

    def forward(self, x, places, angles, seen):
        q, k, v = self.qkv(self.norms[0](x)).view(1, -1, 3 * HEADS, WIDTH // HEADS).chunk(3, 2)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        keys, values = self.cache
        keys.index_copy_(2, places, rotated(k, angles))  # in place, at places that are a tensor
        values.index_copy_(2, places, v)
        found = F.scaled_dot_product_attention(rotated(q, angles), keys, values, attn_mask=seen)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.register_buffer("all_places", torch.arange(LENGTH))
        speeds = 10000.0 ** -torch.arange(0, 1, 2 * HEADS / WIDTH)
        self.register_buffer("angles", torch.outer(torch.arange(LENGTH), speeds).repeat(1, 2))

    def forward(self, tokens, places):
        x, angles = self.embedding(tokens), self.angles[places]
        seen = self.all_places <= places.unsqueeze(1)  # all of the cache, with a mask
        for layer in self.layers:
            x = layer(x, places, angles, seen)
        return self.head(self.norm(x[:, -1:]))


torch.manual_seed(0)
model = Llama().to(device).eval()


@torch.inference_mode()
def next_token(token, position):
    """The next token and the next position, both on the device."""
    return model(token, position).argmax(-1), position + 1


@torch.inference_mode()
def generate(prompt, count, next_token):
    length = prompt.shape[1]
    # Prompts have many lengths, and a prefill keeps the GPU busy: it is not captured.
    token = model(prompt, torch.arange(length, device=device)).argmax(-1)
    position = torch.tensor([length], device=device)
    found = [token]
    for _ in range(count - 1):
        token, position = next_token(token, position)
        found.append(token)  # no call overwrites it
    return torch.cat(found, 1)


prompts = [torch.randint(TOKENS, (1, length), device=device) for length in (3, 7, 5)]
captured = pygraph.capture(next_token, device=place)
texts = [generate(prompt, 12, captured) for prompt in prompts]
report = pygraph.report()
print(report)

for prompt, text in zip(prompts, texts, strict=True):
    assert torch.equal(text, generate(prompt, 12, next_token)), text
print(texts[0].tolist())
assert report.replays == 3 * 11 - 3, report.replays
