"""Threads that share compiled code are served by its graphs, all of them, on the twin and on the
GPU: a call waits for another one's launch, and for nothing else."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits
from sizes_support import scale
from training_support import Net, fresh, net

import pygraph
from pygraph.capturing import views
from pygraph.decide.signatures import SignatureRules
from pygraph.runtime.compiled_graph import CompiledGraph

CALLS = 500
#: Of calls that a graph is there for.
REPLAYED = 0.95


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # a thread loses the GIL wherever it can
    try:
        with fresh(request.param) as here:
            yield here
    finally:
        sys.setswitchinterval(interval)


def together(*works: Callable[[], Any]) -> None:
    """In a thread each; raises what one of them raised."""
    raised: list[BaseException] = []

    def guarded(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "threads wait for each other"
    if raised:
        raise raised[0]


def served() -> tuple[int, int]:
    """Calls and replays of all graphs so far."""
    report = pygraph.report()
    return report.calls, report.replays


Step = Callable[[Net, Any, torch.Tensor], list[torch.Tensor]]


def infer(module: Net, called: Any, x: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return [called(x)]


def train(module: Net, called: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Forward and backward, and gradients of this thread's own."""
    loss = called(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, list(module.parameters()))]


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
@pytest.mark.parametrize(("step", "lengths"), [(infer, [5]), (infer, [3, 4, 5, 6]), (train, [5])])
def test_threads_that_share_a_model_are_served_by_its_graphs(
    place: Place, step: Step, lengths: list[int], threads: int
) -> None:
    module = net(place)
    fast = place.compile(module, dynamic=len(lengths) > 1)
    plain = torch.compile(module, backend="aot_eager", dynamic=len(lengths) > 1)
    given = [[place.randn(length, 6) for length in lengths * 4] for _ in range(threads)]
    expected = [[step(module, plain, x) for x in own] for own in given]
    for _ in range(3):
        for x in given[0][: len(lengths)]:
            step(module, fast, x)
    calls, replays = served()

    def work(number: int) -> None:
        for call in range(CALLS):
            each = call % len(given[number])
            assert_bits(step(module, fast, given[number][each]), expected[number][each])

    together(*[functools.partial(work, number) for number in range(threads)])
    calls, replays = served()[0] - calls, served()[1] - replays
    assert calls >= CALLS * threads
    assert replays >= REPLAYED * calls


def test_threads_are_served_while_one_of_them_links(place: Place) -> None:
    sizes = SignatureRules(at_once=8)
    graph = place.graphed(scale, sizes=sizes)
    x = place.randn(8)
    for _ in range(3):
        graph.dispatcher([x, 0])

    def serve() -> None:
        own = place.randn(8)
        for _ in range(CALLS):
            assert_bits(graph.dispatcher([own, 0]), [own * 0])

    def link() -> None:
        for factor in range(1, 8):
            for _ in range(3):
                assert_bits(graph.dispatcher([x, factor]), [x * factor])

    together(link, serve, serve, serve)
    report = graph.refresh_report()
    assert report.programs == 8
    # Each of the seven has two calls without a graph, in which one of each other thread's waits.
    assert report.replays >= report.calls - 2 - 7 * (2 + 3)


def test_threads_do_not_draw_the_same_random_numbers(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor any but those that one thread would have drawn; from two graphs that share a generator,
    and though a thread loses the GIL between a launch and its results."""
    threads, calls = 4, 100
    make = views.alias_maker

    def alias_maker(*given: Any) -> Any:
        made = make(*given)

        def slow(tensor: torch.Tensor) -> torch.Tensor:
            time.sleep(1e-5)
            return made(tensor)

        return slow

    monkeypatch.setattr(views, "alias_maker", alias_maker)

    def draw(given: list[Any]) -> list[Any]:
        return [torch.rand_like(given[0]), given[0][1:]]

    x = place.randn(8)
    with torch.no_grad():
        graphs = [place.graphed(draw), place.graphed(draw)]
        for graph in graphs * 3:
            graph.dispatcher([x])
        torch.manual_seed(7)
        expected = {tuple(torch.rand_like(x).tolist()) for _ in range(threads * calls)}
        torch.manual_seed(7)
        found: list[Any] = []

        def work(graph: CompiledGraph) -> None:
            found.extend(tuple(graph.dispatcher([x])[0].tolist()) for _ in range(calls))

        together(*[functools.partial(work, graphs[n % 2]) for n in range(threads)])
    assert sum(graph.refresh_report().replays for graph in graphs) == threads * calls + 2
    assert len(found) == threads * calls
    assert set(found) == expected


def test_a_call_inside_of_a_launch_does_not_wait_for_it() -> None:
    """On the twin operators run in it, on a GPU destructors may."""
    inner: list[Any] = []

    @torch.library.custom_op("pygraph_test::call_again", mutates_args=())
    def call_again(x: torch.Tensor) -> torch.Tensor:
        if calling:
            calling.clear()
            started = time.perf_counter()
            inner.append(graph.dispatcher([x + 1]))
            inner.append(time.perf_counter() - started)
        return x * 2

    call_again.register_fake(torch.empty_like)
    calling: list[bool] = []
    with fresh("twin") as twin, torch.no_grad():
        graph = twin.graphed(lambda given: [call_again(given[0])])
        x = twin.randn(8)
        for _ in range(3):
            graph.dispatcher([x])
        calling.append(True)
        replays = graph.refresh_report().replays
        assert_bits(graph.dispatcher([x]), [x * 2])
        results, seconds = inner
        assert_bits(results, [(x + 1) * 2])
        assert seconds < 0.5
        assert graph.refresh_report().replays == replays + 1


class Draws(torch.nn.Module):
    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.register_buffer("count", torch.zeros(8))
        self.counts = counts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.counts:
            self.count.add_(1)
        return torch.rand_like(x) * self.weight


@pytest.mark.parametrize("how", ["before the guards", "before the wrappers", "which writes"])
def test_launches_that_are_pending_draw_no_numbers_twice(place: Place, how: str) -> None:
    """One that writes cannot be launched again, so its numbers are its own from its launch on."""
    threads, calls = 4, 100
    module = Draws(how == "which writes").to(place.torch)
    fast = place.compile(module)
    x = place.randn(8)
    with torch.set_grad_enabled(how != "before the guards"):
        for _ in range(8):
            fast(x)
    report = pygraph.report().graphs[0]
    assert report.before_guards if how == "before the guards" else report.before_wrappers
    replays = report.replays
    found: list[Any] = []

    def work() -> None:
        with torch.set_grad_enabled(how != "before the guards"):
            found.extend(tuple(fast(x).detach().tolist()) for _ in range(calls))

    torch.manual_seed(7)
    together(*[work] * threads)
    assert len(set(found)) == threads * calls
    assert pygraph.report().replays - replays >= REPLAYED * threads * calls
