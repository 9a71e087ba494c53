"""pygraph.capture: tensors that a callable is given on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pygraph

Step = Callable[..., Any]
Make = Callable[[int], tuple[Any, ...]]


def same(left: Any, right: Any) -> bool:
    return left.device == right.device and torch.equal(left, right)


def served(step: Step, make: Make, calls: int = 10) -> int:
    """Runs calls both ways and compares. Returns how many were replayed."""
    captured = pygraph.capture(step)
    kept = []
    for number in range(calls):
        given = make(number)
        wanted = step(*given)
        found = captured(*given)
        for each in given:  # the caller's again
            if isinstance(each, torch.Tensor) and each.device.type == "cpu" and each.dim():
                each.fill_(0)
        assert same(found, wanted), number
        kept.append((found, wanted))
    assert all(same(found, wanted) for found, wanted in kept)
    return pygraph.report().replays


def host(*sizes: int) -> Make:
    return lambda _: (torch.randn(*sizes), None)


BRINGS: dict[str, Callable[[Any, Any], Any]] = {
    "to": lambda x, w: x.to("cuda") @ w,
    "cuda": lambda x, w: x.cuda(non_blocking=True) @ w,
    "with a type": lambda x, w: x.to("cuda", torch.float16).float() @ w,
    "a view": lambda x, w: x[1:, :].to("cuda") @ w,
    "transposed": lambda x, w: x.t().to("cuda").t() @ w,
    "copied into": lambda x, w: torch.empty_like(w)[:4].copy_(x) @ w,
    "written there": lambda x, w: x.to("cuda").mul_(2) @ w,
    "returned": lambda x, w: x.to("cuda").clone(),
    "twice": lambda x, w: x.to("cuda") @ w + x.to("cuda"),
}


@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("way", BRINGS)
def test_an_argument_is_brought(way: str, pinned: bool) -> None:
    weight = torch.randn(8, 8, device="cuda")

    def make(number: int) -> tuple[Any, ...]:
        x = torch.randn(4, 8)
        return (x.pin_memory() if pinned else x,)

    assert served(lambda x: BRINGS[way](x, weight), make) == 7


def test_in_containers_and_beside_the_device() -> None:
    def step(batch: dict[str, Any], y: torch.Tensor) -> torch.Tensor:
        return batch["x"].to("cuda") * y + batch["more"][0].to("cuda").sum()

    def make(_: int) -> tuple[Any, ...]:
        return {"x": torch.randn(8), "more": [torch.arange(3)]}, torch.randn(8, device="cuda")

    assert served(step, make) == 7


def test_a_training_step_moves_its_batch() -> None:
    def build() -> tuple[Step, torch.nn.Module]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(net.cuda().parameters(), fused=True)

        def step(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            x, labels = x.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), labels)
            loss.backward()
            optimizer.step()
            return loss

        return step, net

    plain, wanted = build()
    step, net = build()
    captured = pygraph.capture(step)
    with torch.enable_grad():
        for _ in range(12):
            batch = torch.randn(16, 8), torch.randint(3, (16,))
            assert torch.equal(captured(*batch), plain(*batch))
    for left, right in zip(net.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(left, right)
    assert pygraph.report().replays >= 8


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


AS_IT_IS: dict[str, tuple[Step, Make, str]] = {
    "computed with": (lambda x, _: x.sum().to("cuda") * 2, host(4), "computes with argument"),
    "written": (lambda x, _: x.add_(1).to("cuda"), host(4), "computes with argument"),
    "read by NumPy": (lambda x, _: x.to("cuda") * float(x.numpy().sum()), host(4), "numpy"),
    "returned": (lambda x, _: x.to("cuda"), host(4), "do not return or rebind the same"),
    "in an object": (
        lambda batch: batch.x.to("cuda", non_blocking=True) * 2,
        lambda _: (Batch(torch.randn(4).pin_memory()),),
        "stands in an object",
    ),
}


@pytest.mark.parametrize("what", AS_IT_IS)
def test_what_is_done_on_the_host_runs_as_it_is(what: str) -> None:
    step, make, reason = AS_IT_IS[what]
    captured = pygraph.capture(step)
    for number in range(10):
        torch.manual_seed(number)
        wanted = step(*make(number))
        torch.manual_seed(number)
        assert same(captured(*make(number)), wanted)
    assert pygraph.report().replays == 0
    assert reason in str(pygraph.report())


def test_what_requires_grad_runs_as_it_is() -> None:
    captured = pygraph.capture(lambda x: x.to("cuda").square().sum().backward())
    with torch.enable_grad():
        for _ in range(6):
            x = torch.randn(4, requires_grad=True)
            captured(x)
            assert torch.equal(x.grad, 2 * x)
    assert "requires grad, and is on the host" in str(pygraph.report())
