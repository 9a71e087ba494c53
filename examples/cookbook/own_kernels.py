"""An operator of one's own: a Triton kernel on a GPU, torch's operators on the CPU. In a captured
step, with a gradient; and one that waits for the device, which is refused."""

import torch
from torch import nn

import pygraph

device, place = ("cuda", "cuda") if torch.cuda.is_available() else ("cpu", "twin")

if device == "cuda":
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, y, out, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(x + at, at < count)
        b = tl.load(y + at, at < count)
        tl.store(out + at, a * tl.sigmoid(a) * b, at < count)


@torch.library.custom_op("cookbook::swiglu", mutates_args=())
def swiglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.is_cuda:
        return x * x.sigmoid() * y
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)  # of torch's allocator
    kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)  # the current stream
    return out


@swiglu.register_fake
def _(x, y):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)  # contiguous, as the result is


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def gradients(ctx, gradient):
    x, y = ctx.saved_tensors
    s = x.sigmoid()
    return gradient * y * (s + x * s * (1 - s)), gradient * x * s


swiglu.register_autograd(gradients, setup_context=save)


def train(capture, steps=10):
    torch.manual_seed(0)
    gate, up, down = (nn.Linear(*sizes).to(device) for sizes in ((8, 16), (8, 16), (16, 8)))
    weights = [*gate.parameters(), *up.parameters(), *down.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-2, fused=True)

    @capture
    def step(x):
        optimizer.zero_grad()
        loss = (down(swiglu(gate(x), up(x))) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return [step(torch.randn(32, 8, device=device)) for _ in range(steps)], weights


expected = train(lambda step: step)
found = train(pygraph.capture(device=place))
torch.testing.assert_close(found, expected)
report = pygraph.report()
print(report)
assert report.replays == 10 - 3, report.replays


# What is refused: the host waits for a value of the device.
@pygraph.capture(device=place)
def normalized(x, y):
    largest = x.abs().amax().item()
    return swiglu(x / largest, y)


for _ in range(4):  # works, without a graph
    x, y = torch.randn(2, 32, 8, device=device)
    torch.testing.assert_close(normalized(x, y), swiglu(x / x.abs().amax(), y))
(refused,) = (graph for graph in pygraph.report().graphs if graph.state == "fallback")
print(refused.name, refused.reason, refused.operator, refused.source, sep="\n")
