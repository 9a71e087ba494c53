"""pygraph.capture: whole training steps, beside the same steps as they are."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from callable_support import UNGRAPHED, Program, agree, runs_as_it_is, state_of
from places import Place
from torch import nn
from torch.nn import functional as F

import pygraph
from pygraph.reporting import GRAPHED

Make = Callable[[Place], nn.Module]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unsqueeze(0)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = torch.softmax(q @ k.transpose(1, 2) / 3, -1) @ v
        return (x + self.out(y)).squeeze(0)


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 8), nn.Linear(8, 8)
        self.decode.weight = self.encode.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(torch.tanh(self.encode(x)))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(32, 8),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.view(-1, 1, 2, 4))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros_like(x)
        for _ in range(3):
            hidden = self.cell(x, hidden)
        return hidden


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embedding((x.abs() * 3).long() % 10).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 8)),
    "norms": lambda: nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(8), nn.GroupNorm(2, 8)
    ),
    "residual": lambda: nn.Sequential(*(Residual(nn.Linear(8, 8)) for _ in range(3))),
    "attention": Attention,
    "tied": Tied,
    "convolution": Convolution,
    "recurrent": Recurrent,
    "embedded": Embedded,
}


MOMENTUM = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def training(
    place: Place,
    *,
    model: str = "mlp",
    optimizer: Callable[..., Any] = MOMENTUM,
    none: bool = True,
    zero: str = "begin",
    clip: bool = False,
    wrap: Callable[[Any], Any] = lambda model: model,
) -> Program:
    """A program that trains `model`. `zero`: where gradients are dropped: "begin", "end", or in
    every second call: "accumulate"."""
    net = MODELS[model]().to(place.torch)
    used = wrap(net)
    steps = optimizer(net.parameters())

    def step(x: torch.Tensor, y: torch.Tensor, last: bool = True) -> Any:
        if zero == "begin":
            steps.zero_grad(set_to_none=none)
        out = used(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        if last:
            steps.step()
            if zero != "begin":
                steps.zero_grad(set_to_none=none)
        return loss, out.detach()

    def inputs(number: int) -> Any:
        batch = place.randn(4, 8), place.randn(4, 8)
        return (*batch, bool(number % 2)) if zero == "accumulate" else batch

    return Program(step, lambda: state_of(net, steps), inputs)


@pytest.mark.parametrize("model", MODELS)
def test_models_train_as_they_do_uncaptured(place: Place, model: str) -> None:
    """Over 200 steps."""
    calls = 200 if place.name == "cuda" else 40
    report = agree(place, functools.partial(training, place, model=model), calls=calls)
    assert report.bytes_copied == 0


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.05),
    "sgd one by one": functools.partial(MOMENTUM, foreach=False, nesterov=True),
    "sgd foreach": functools.partial(torch.optim.SGD, lr=0.05, foreach=True, weight_decay=0.1),
    "sgd fused": functools.partial(torch.optim.SGD, lr=0.05, fused=True, momentum=0.9),
    "adam fused": functools.partial(torch.optim.Adam, lr=0.05, fused=True),
    "adamw fused": functools.partial(torch.optim.AdamW, lr=0.05, fused=True, amsgrad=True),
}  # fmt: skip
ON_A_GPU: dict[str, Callable[..., Any]] = {
    "adam capturable": functools.partial(torch.optim.Adam, lr=0.05, capturable=True),
    "adamw one by one": functools.partial(
        torch.optim.AdamW, lr=0.05, capturable=True, foreach=False
    ),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.01, capturable=True),
    "adamax": functools.partial(torch.optim.Adamax, lr=0.01, capturable=True),
    "nadam": functools.partial(torch.optim.NAdam, lr=0.01, capturable=True),
    "radam": functools.partial(torch.optim.RAdam, lr=0.01, capturable=True),
}


@pytest.mark.parametrize("name", [*OPTIMIZERS, *ON_A_GPU])
def test_optimizers(place: Place, name: str) -> None:
    if place.name == "twin" and name in ON_A_GPU:
        pytest.skip("capturable optimizers need parameters on a GPU")
    make = {**OPTIMIZERS, **ON_A_GPU}[name]
    agree(place, functools.partial(training, place, optimizer=make, model="norms"), calls=12)


@pytest.mark.parametrize("none", [True, False], ids=["to none", "to zero"])
@pytest.mark.parametrize("zero", ["begin", "end"])
@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
def test_gradients_are_dropped_and_clipped(place: Place, none: bool, zero: str, clip: bool) -> None:
    build = functools.partial(training, place, none=none, zero=zero, clip=clip)
    agree(place, build, calls=12)


@pytest.mark.parametrize("none", [True, False], ids=["to none", "to zero"])
def test_gradients_accumulate(place: Place, none: bool) -> None:
    """Two programs: one that adds up gradients, one that takes a step besides."""
    build = functools.partial(training, place, zero="accumulate", none=none)
    agree(place, build, calls=16, replays=16 - UNGRAPHED - 3)
    assert len([g for g in pygraph.report().graphs if g.state == GRAPHED]) == 2


@pytest.mark.parametrize("every", [1, 3], ids=["dropped", "accumulated"])
def test_gradients_that_only_the_backward_names(place: Place, every: int) -> None:
    """The optimizer's step is outside, so no captured code reads or drops a gradient."""

    def build() -> Program:
        net = MODELS["mlp"]().to(place.torch)
        steps = MOMENTUM(net.parameters())

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return loss

        def between(number: int) -> None:
            if number % every == every - 1:
                steps.step()
                steps.zero_grad()

        def inputs(number: int) -> Any:
            return place.randn(4, 8), place.randn(4, 8)

        return Program(step, lambda: state_of(net, steps), inputs, between)

    # Two programs where gradients are added up: one that finds none, one that finds some.
    agree(place, build, calls=12, replays=12 - UNGRAPHED if every == 1 else range(5, 9))


def test_gradients_that_are_kept_stay_what_they_were(place: Place) -> None:
    program = training(place)
    captured = pygraph.capture(program.step, device=place.name)
    kept = []
    for number in range(8):
        captured(*program.inputs(number))
        gradients = [g for g in program.state() if isinstance(g, torch.Tensor)][4:8]
        kept.append((gradients, [each.clone() for each in gradients]))
    for gradients, copies in kept:
        assert all(map(torch.equal, gradients, copies))


def test_the_steps_of_a_program_without_gradients_are_not_applied_by_proofs(place: Place) -> None:
    """A parameter moves by one step a call, whichever way the call takes."""
    weight = nn.Parameter(torch.zeros(4, device=place.torch))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    @pygraph.capture(device=place.name)
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for number in range(8):
        step()
        assert weight.tolist() == [-(number + 1.0)] * 4
    assert pygraph.report().graphs[-1].replays == 8 - UNGRAPHED


def test_moving_averages_and_target_networks(place: Place) -> None:
    def build() -> Program:
        net, target = nn.Linear(8, 8).to(place.torch), nn.Linear(8, 8).to(place.torch)
        average = torch.optim.swa_utils.AveragedModel(net)
        steps = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            steps.zero_grad()
            loss = (net(x) - target(x).detach()).square().mean()
            loss.backward()
            steps.step()
            with torch.no_grad():
                for mine, theirs in zip(target.parameters(), net.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
                for mine, theirs in zip(average.parameters(), net.parameters(), strict=True):
                    mine.mul_(0.9).add_(theirs, alpha=0.1)
            return loss

        return Program(
            step, lambda: state_of(net, target, average), lambda number: (place.randn(4, 8),)
        )

    agree(place, build)


def test_two_optimizers_and_switched_gradients(place: Place) -> None:
    """A generator and a discriminator, whose parameters do without gradients for a while."""

    def build() -> Program:
        g, d = MODELS["mlp"]().to(place.torch), MODELS["norms"]().to(place.torch)
        g_steps = torch.optim.SGD(g.parameters(), lr=0.1)
        d_steps = torch.optim.SGD(d.parameters(), lr=0.1, momentum=0.5)

        def step(real: torch.Tensor, noise: torch.Tensor) -> Any:
            for each in d.parameters():
                each.requires_grad_(True)
            d_steps.zero_grad()
            fake = g(noise)
            d_loss = d(fake.detach()).mean() - d(real).mean()
            d_loss.backward()
            d_steps.step()
            for each in d.parameters():
                each.requires_grad_(False)
            g_steps.zero_grad()
            g_loss = -d(fake).mean()
            g_loss.backward()
            g_steps.step()
            return {"g": g_loss.detach(), "d": d_loss.detach()}

        return Program(
            step,
            lambda: state_of(g, d, g_steps, d_steps),
            lambda number: (place.randn(4, 8), place.randn(4, 8)),
        )

    agree(place, build)


def test_hooks_on_modules_tensors_and_gradients(place: Place) -> None:
    def build() -> Program:
        net = MODELS["mlp"]().to(place.torch)
        net[0].register_forward_hook(lambda module, args, out: out * 2)
        net[2].register_full_backward_hook(lambda module, inputs, outputs: None)
        net[0].weight.register_hook(lambda gradient: gradient * 0.5)
        steps = torch.optim.SGD(net.parameters(), lr=0.1)
        steps.register_step_post_hook(lambda optimizer, args, kwargs: None)

        def step(x: torch.Tensor) -> torch.Tensor:
            steps.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            steps.step()
            return loss

        return Program(step, lambda: state_of(net), lambda number: (place.randn(4, 8),))

    agree(place, build)


@pytest.mark.parametrize("when", ["gradient", "accumulated"])
def test_hooks_that_a_weight_gets_later(place: Place, when: str) -> None:
    """And what they read besides."""

    def build() -> Program:
        net = MODELS["mlp"]().to(place.torch)
        steps = torch.optim.SGD(net.parameters(), lr=0.1)
        share = {"of it": 0.5}

        def step(x: torch.Tensor) -> torch.Tensor:
            steps.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            steps.step()
            return loss

        def scale(parameter: torch.Tensor) -> None:
            parameter.grad.mul_(share["of it"])

        def between(number: int) -> None:
            weight = net[0].weight
            if number == 5 and when == "gradient":
                weight.register_hook(lambda gradient: gradient * share["of it"])
            elif number == 5:
                weight.register_post_accumulate_grad_hook(scale)
            elif number == 11:
                share["of it"] = 0.25

        return Program(step, lambda: state_of(net), lambda number: (place.randn(4, 8),), between)

    agree(place, build, calls=17, replays=range(8, 13))


def test_what_is_kept_of_a_result_that_waits_does_not_wait(place: Place) -> None:
    net, cache = nn.Linear(8, 3).to(place.torch), {"out": torch.zeros(4, 3, device=place.torch)}

    @pygraph.capture(device=place.name)
    def step(x: torch.Tensor) -> Any:
        out = net(x)
        cache["out"] = out.detach()
        return out, out.detach()

    for _ in range(8):
        out, detached = step(place.randn(4, 8))
        assert out.requires_grad
        assert not cache["out"].requires_grad
        assert not detached.requires_grad
        assert out.data_ptr() == cache["out"].data_ptr() == detached.data_ptr()
        net.zero_grad()
        out.sum().backward()
        assert torch.equal(net.bias.grad, torch.full_like(net.bias, 4))


def test_an_optimizer_in_the_backward(place: Place) -> None:
    def build() -> Program:
        net = MODELS["mlp"]().to(place.torch)
        steps = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

        def update(parameter: torch.Tensor) -> None:
            steps[parameter].step()
            steps[parameter].zero_grad()

        for each in net.parameters():
            each.register_post_accumulate_grad_hook(update)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = net(x).square().mean()
            loss.backward()
            return loss

        return Program(step, lambda: state_of(net), lambda number: (place.randn(4, 8),))

    agree(place, build)


def test_mixed_precision(place: Place) -> None:
    kind = place.torch.type
    dtype = torch.bfloat16 if kind == "cpu" else torch.float16

    def build() -> Program:
        net = MODELS["mlp"]().to(place.torch)
        steps = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler(kind, init_scale=2.0**10, growth_interval=3)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            steps.zero_grad()
            with torch.autocast(kind, dtype=dtype):
                loss = F.mse_loss(net(x).float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(steps)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(steps)
            scaler.update()
            return loss

        def inputs(number: int) -> Any:
            x = place.randn(4, 8)
            if number in (4, 9):  # gradients overflow: no step is taken
                x = x * float("inf")
            return x, place.randn(4, 8)

        return Program(step, lambda: [*state_of(net, steps), scaler._scale], inputs)

    if place.name == "twin":
        pytest.skip("torch has no gradient scaling for CPU tensors that works without a read")
    agree(place, build, calls=14)


@pytest.mark.parametrize("what", ["read", "moved"])
def test_gradients_of_the_step_before(place: Place, what: str) -> None:
    """Are read before they are dropped, or given to other parameters."""

    def build() -> Program:
        net = nn.Linear(8, 8, bias=False).to(place.torch)
        other = nn.Linear(8, 8, bias=False).to(place.torch)
        for each in (net, other):
            each.weight.grad = torch.ones_like(each.weight)

        def step(x: torch.Tensor) -> Any:
            before = net.weight.grad.norm() if what == "read" else None
            if what == "moved":
                other.weight.grad = net.weight.grad
            net.weight.grad = None
            net(x).square().mean().backward()
            return before

        return Program(step, lambda: state_of(net, other), lambda number: (place.randn(4, 8),))

    # One that the engine does not take is given up before the end.
    agree(place, build, calls=20)


def test_a_host_that_counts_is_told_of(place: Place) -> None:
    """Adam without `capturable` counts its steps on the host."""
    make = functools.partial(torch.optim.Adam, lr=0.05)
    reason = runs_as_it_is(place, functools.partial(training, place, optimizer=make), calls=6)
    if place.name == "cuda":
        assert "make it with fused=True or capturable=True" in reason
    else:
        assert "aten._local_scalar_dense" in reason


def test_state_that_is_loaded_is_used(place: Place) -> None:
    program = training(place, model="norms")
    captured = pygraph.capture(program.step, device=place.name)
    net = next(
        each.cell_contents
        for each in program.step.__closure__ or ()
        if isinstance(each.cell_contents, nn.Module)
    )
    optimizer = next(
        each.cell_contents
        for each in program.step.__closure__ or ()
        if isinstance(each.cell_contents, torch.optim.Optimizer)
    )
    for number in range(6):
        captured(*program.inputs(number))
    weights, moments = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    batch = program.inputs(0)
    first, _ = captured(*batch)
    second, _ = captured(*batch)
    assert not torch.equal(first, second)
    net.load_state_dict(weights)
    optimizer.load_state_dict(moments)  # new tensors in new dictionaries
    again, _ = captured(*batch)
    assert torch.equal(first, again)
    assert sum(graph.replays for graph in pygraph.report().graphs) >= 8 - UNGRAPHED


def test_torch_compile_inside_a_step(place: Place) -> None:
    wrap = functools.partial(torch.compile, backend="aot_eager")
    agree(place, functools.partial(training, place, wrap=wrap, model="norms"), calls=12)


def test_gradients_are_taken_over_and_not_copied(place: Place) -> None:
    """As autograd does with those that nobody else refers to."""

    def build(*, accumulate: bool) -> Program:
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(place.torch)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = net(x).square().mean()
            if accumulate:
                net.zero_grad()
                loss.backward()
            else:
                gradients = torch.autograd.grad(loss, tuple(net.parameters()))
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter.grad = gradient
            return loss

        return Program(step, lambda: state_of(net), lambda _: (place.randn(4, 8),))

    accumulated = agree(place, functools.partial(build, accumulate=True))
    pygraph.reset()
    alone = agree(place, functools.partial(build, accumulate=False))
    assert accumulated.nodes == alone.nodes


@pytest.mark.parametrize("way", ["data", "set_"])
def test_a_tensor_that_gets_other_memory(place: Place, way: str) -> None:
    """The same object in the same place; a capture would leave it on memory of its own."""

    def build() -> Program:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).to(place.torch)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            out = net(x)
            out.square().mean().backward()
            optimizer.step()
            for parameter in net.parameters():
                if way == "data":
                    parameter.data = parameter.data * 0.75
                else:
                    with torch.no_grad():
                        parameter.set_(parameter.detach() * 0.75)
            return out.detach()

        return Program(step, lambda: state_of(net), lambda _: (place.randn(3, 4),))

    agree(place, build, calls=12, replays=range(1))
    assert "weight got other memory" in str(pygraph.report())


@pytest.mark.parametrize("foreach", [False, True])
def test_writes_that_change_nothing_at_first_are_counted(place: Place, foreach: bool) -> None:
    """Foreach operators are not counted by torch while the callable is watched."""
    net = nn.Linear(4, 3).to(place.torch)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5, foreach=foreach)

    @pygraph.capture(device=place.name)
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()

    nn.init.zeros_(net.bias)
    for call in range(8):
        x = torch.zeros(2, 4, device=place.torch) if call < 5 else place.randn(2, 4)
        before, version = net.weight.detach().clone(), net.weight._version
        step(x)
        assert torch.equal(net.weight, before) == (call < 5)
        assert call < UNGRAPHED or net.weight._version > version
    assert pygraph.report().graphs[-1].replays >= 4  # the first call makes the optimizer's state


def test_a_write_that_changes_nothing_is_copied_back_later(place: Place) -> None:
    """A memory that the graph cannot take is copied, and what is written is copied back."""
    state = torch.zeros(64, device=place.torch)

    def step(x: torch.Tensor, into: torch.Tensor) -> None:
        into.add_(x)

    fast = pygraph.capture(step, device=place.name)
    for _ in range(5):
        fast(torch.zeros_like(state), state)
    misaligned = torch.zeros(65, device=place.torch)[1:]
    fast(torch.ones_like(state), misaligned)
    assert misaligned.sum().item() == 64
