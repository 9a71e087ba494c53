"""A training loop whose whole step is one graph: gradient scaler, clipping, AdamW, a scheduler,
accumulation, a checkpoint, and torch.compile inside."""

import copy
import functools

import torch
from torch import nn
from torch.nn import functional as F

import pygraph

device, place = ("cuda", "cuda") if torch.cuda.is_available() else ("cpu", "twin")
capture = functools.partial(pygraph.capture, device=place)


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def batches(count):
    for _ in range(count):
        yield torch.randn(8, 16, device=device), torch.randint(4, (8,), device=device)


def mixed_precision(capture):
    """fp16 with a gradient scaler on a GPU; the CPU has bf16, which needs none."""
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=1024, enabled=device == "cuda")
    half = torch.float16 if device == "cuda" else torch.bfloat16

    @capture
    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=half):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), norm

    figures = [step(x, y) for x, y in batches(12)]
    return figures, model.state_dict()  # .item() only now, outside of the step


def scheduled(capture):
    """A scheduler changes the optimizer between two calls."""
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)

    @capture
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for x, y in batches(15):
        losses.append(step(x, y))
        scheduler.step()  # on the host, so behind the step and not in it
    return losses, model.state_dict()


def accumulating(capture):
    """Gradients of four batches are added up before the optimizer's step."""
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    @capture
    def step(x, y, last):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if last:  # a Python bool: each of its values has a graph
            optimizer.step()
            optimizer.zero_grad()
        return loss

    losses = [step(x, y, number % 4 == 3) for number, (x, y) in enumerate(batches(32))]
    return losses, model.state_dict()


def resumed(capture):
    """State is loaded in the middle of the training, and the next call uses it."""
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    @capture
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x, y) for x, y in batches(6)]
    checkpoint = copy.deepcopy({"model": model.state_dict(), "adamw": optimizer.state_dict()})
    losses += [step(x, y) for x, y in batches(6)]
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["adamw"])
    losses += [step(x, y) for x, y in batches(6)]
    return losses, model.state_dict()


def compiled(capture):
    """Kernels of torch.compile inside the graph. The twin cannot record Inductor's code."""
    model = network().to(device)
    forward = torch.compile(model, backend="inductor" if device == "cuda" else "aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    @capture
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return [step(x, y) for x, y in batches(12)], model.state_dict()


def check(recipe, at_least):
    """Trains twice from the same seed, as it is and captured."""
    torch.manual_seed(0)
    expected = recipe(lambda step: step)
    pygraph.reset()
    torch.manual_seed(0)
    found = recipe(capture)
    torch.testing.assert_close(found, expected)
    report = pygraph.report()
    print(f"{recipe.__name__}: {report.replays} of {report.calls} calls replayed")
    assert report.replays >= at_least, report


check(mixed_precision, at_least=9)
check(scheduled, at_least=8)
check(accumulating, at_least=20)
check(resumed, at_least=12)
check(compiled, at_least=9)
