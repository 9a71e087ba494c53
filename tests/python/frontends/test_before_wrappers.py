"""Graphs that are launched before the wrappers around them run (src/speculation)."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import Place, assert_bits
from training_support import fresh

from pygraph import _engine
from pygraph.runtime.compiled_graph import CompiledGraph

N = 12

Function = Callable[[list[Any]], list[Any]]


class Wrapped:
    """A graph of `function`, the wrappers around it, and the entry point that launches it before
    them.
    The caller's arguments reach the graph in the opposite order."""

    def __init__(self, place: Place, function: Function, arguments: list[Any]) -> None:
        self.graph: CompiledGraph = place.graphed(function)
        for _ in range(3):
            with torch.no_grad():
                self.graph.dispatcher(list(arguments))
        assert self.graph.refresh_report().state == "graphed", self.graph.report.blame
        self.wrappers: Callable[..., Any] = self.arrive
        self.seen: list[int] = []
        self.entry: Any = _engine.make_entry_point(lambda *given: self._called(*given))
        order = list(range(len(arguments)))[::-1]
        connected = self.entry, self.graph.dispatcher, len(order), order, None
        counts = _engine.connect_entry_point(*connected)
        self.graph.note_entry_point(True, counts, self)

    def _called(self, *given: Any) -> Any:
        self.seen.append(self.replays)
        return self.wrappers(*given)

    def arrive(self, *given: Any) -> Any:
        with torch.no_grad():
            return self.graph.dispatcher(list(given[::-1]))

    @property
    def replays(self) -> int:
        return self.graph.refresh_report().replays

    @property
    def counted(self) -> tuple[int, int, int]:
        """Calls, those of them that programs served, launches that were dropped."""
        dispatcher = self.graph.dispatcher
        return dispatcher.calls, dispatcher.replays, self.graph.refresh_report().dropped


def plain(given: list[Any]) -> list[Any]:
    x, y = given
    return [x * 2 + y, y - x]


def writing(given: list[Any]) -> list[Any]:
    x, y = given
    y.add_(1)
    return [x * y]


def drawing(given: list[Any]) -> list[Any]:
    x, y = given
    return [torch.rand_like(x) + y]


def pair(place: Place) -> list[Any]:
    return [place.randn(N), place.randn(N)]


def test_the_graph_is_launched_before_the_wrappers_run(place: Place) -> None:
    wrapped = Wrapped(place, plain, pair(place))
    before = wrapped.replays
    calls = wrapped.graph.report.calls
    for call in range(1, 4):
        y, x = pair(place)
        assert_bits(wrapped.entry(y, x), plain([x, y]))
        assert wrapped.seen[-1] == wrapped.replays == before + call
        assert wrapped.graph.report.calls == calls + call


@pytest.mark.parametrize("function", [writing, drawing])
def test_what_it_writes_and_draws_happens_once(place: Place, function: Function) -> None:
    wrapped = Wrapped(place, function, pair(place))
    for _ in range(3):
        y, x = pair(place)
        other = y.clone()
        torch.manual_seed(7)
        found = wrapped.entry(y, x)
        after = torch.rand(3, device=x.device)
        torch.manual_seed(7)
        assert_bits(found, function([x, other]))
        assert_bits([y, after], [other, torch.rand(3, device=x.device)])


def test_results_are_made_where_the_call_arrives(place: Place) -> None:
    """Under the wrappers' grad mode, and of what they hand over."""

    def viewing(given: list[Any]) -> list[Any]:
        return [given[0][2:], given[0], given[0] * given[1]]

    wrapped = Wrapped(place, viewing, pair(place))
    y, x = pair(place)
    x.requires_grad_()
    for call in (wrapped.entry, wrapped.arrive):
        view, same, product = call(y, x)
        assert same is x
        assert view.grad_fn is None and not product.requires_grad
        assert view.data_ptr() == x.data_ptr() + 8
        assert_bits([product], [(x * y).detach()])


def test_arguments_are_let_go_of(place: Place) -> None:
    wrapped = Wrapped(place, plain, pair(place))
    y, x = pair(place)
    before = sys.getrefcount(x), sys.getrefcount(y)
    inner = [x, y]
    wrapped.wrappers = lambda *_: wrapped.graph.dispatcher(inner)
    wrapped.entry(y, x)
    assert inner == [], "the callee of a boxed call drops its arguments"
    wrapped.wrappers = wrapped.arrive
    for _ in range(3):
        wrapped.entry(y, x)
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before


def lost(*_: Any) -> Any:
    return "the wrappers' own"


def test_a_call_that_does_not_arrive_is_the_wrappers(place: Place) -> None:
    wrapped = Wrapped(place, plain, pair(place))
    calls, replays, _ = wrapped.counted
    wrapped.wrappers = lost
    assert wrapped.entry(*pair(place)) == "the wrappers' own"
    assert wrapped.counted == (calls, replays, 1), "it was no call of the graph"
    wrapped.wrappers = wrapped.arrive
    y, x = pair(place)
    assert_bits(wrapped.entry(y, x), plain([x, y]))


def test_a_call_that_leaves_traces_must_arrive(place: Place) -> None:
    wrapped = Wrapped(place, writing, pair(place))
    wrapped.wrappers = lost
    with pytest.raises(RuntimeError, match="has not come"):
        wrapped.entry(*pair(place))


def test_a_call_that_does_not_arrive_has_drawn_nothing(place: Place) -> None:
    wrapped = Wrapped(place, drawing, pair(place))
    y, x = pair(place)
    torch.manual_seed(5)
    first, second = drawing([x, y]), drawing([x, y])
    torch.manual_seed(5)
    wrapped.wrappers = lost
    assert wrapped.entry(y, x) == "the wrappers' own"
    wrapped.wrappers = wrapped.arrive
    assert_bits(wrapped.entry(y, x), first)
    assert_bits(wrapped.entry(y, x), second)


def test_numbers_that_were_drawn_in_between_are_others(place: Place) -> None:
    """The launch has numbers that are not the call's any more, and the graph is launched again."""
    wrapped = Wrapped(place, drawing, pair(place))
    y, x = pair(place)

    def draw(*given: Any) -> Any:
        return place.randn(3), wrapped.arrive(*given)

    torch.manual_seed(5)
    expected = place.randn(3), drawing([x, y])[0]
    after = place.randn(3)
    torch.manual_seed(5)
    wrapped.wrappers = draw
    dropped = wrapped.counted[2]
    drawn, (found,) = wrapped.entry(y, x)
    assert_bits([drawn, found], expected)
    assert_bits([place.randn(3)], [after])
    assert wrapped.counted[2] == dropped + 1


def test_a_launch_that_has_written_is_the_calls_whatever_was_drawn(place: Place) -> None:
    """It cannot be made twice."""

    def both(given: list[Any]) -> list[Any]:
        x, y = given
        y.add_(1)
        return [torch.rand_like(x) + y]

    wrapped = Wrapped(place, both, pair(place))

    def draw(*given: Any) -> Any:
        place.randn(3)
        return wrapped.arrive(*given)

    wrapped.wrappers = draw
    y, x = pair(place)
    expected = y + 1
    wrapped.entry(y, x)
    assert_bits([y], [expected])


def test_an_error_of_the_wrappers_is_told_as_it_is(place: Place) -> None:
    wrapped = Wrapped(place, writing, pair(place))

    def fail(*_: Any) -> Any:
        raise KeyError("theirs")

    def fail_behind(*given: Any) -> Any:
        wrapped.arrive(*given)
        raise KeyError("later")

    for wrappers, text in ((fail, "theirs"), (fail_behind, "later")):
        wrapped.wrappers = wrappers
        with pytest.raises(KeyError, match=text):
            wrapped.entry(*pair(place))
    wrapped.wrappers = wrapped.arrive
    y, x = pair(place)
    other = y.clone()
    assert_bits(wrapped.entry(y, x), writing([x, other]))


def test_other_arguments_are_another_call(place: Place) -> None:
    wrapped = Wrapped(place, plain, pair(place))
    wrapped.wrappers = lambda *given: wrapped.arrive(*(each.clone() for each in given))
    before = wrapped.replays
    calls, replays, _ = wrapped.counted
    y, x = pair(place)
    assert_bits(wrapped.entry(y, x), plain([x, y]))
    assert wrapped.replays == before + 2
    assert wrapped.counted == (calls + 1, replays + 1, 1)
    wrapped.wrappers = lambda *given: [wrapped.arrive(*given), wrapped.arrive(*given)]
    for found in wrapped.entry(y, x):
        assert_bits(found, plain([x, y]))
    assert wrapped.replays == before + 4, "a second call with the same arguments is its own"
    assert wrapped.counted == (calls + 3, replays + 3, 1)


def test_calls_within_calls(place: Place) -> None:
    """Of the same graph with others, and of another one."""
    one, two = (Wrapped(place, function, pair(place)) for function in (plain, writing))
    inside: list[Any] = []

    def nested(*given: Any) -> Any:
        one.wrappers = one.arrive
        y, x = pair(place)
        other = y.clone()
        inside.append((one.entry(y, x), plain([x, other])))
        inside.append((two.entry(y, x), writing([x, other])))
        return one.arrive(*given)

    one.wrappers = nested
    before = one.replays, two.replays
    y, x = pair(place)
    assert_bits(one.entry(y, x), plain([x, y]))
    assert (one.replays, two.replays) == (before[0] + 2, before[1] + 1), "each was launched once"
    assert len(inside) == 2
    for found, expected in inside:
        assert_bits(found, expected)


def test_a_call_may_arrive_inside_of_another_one(place: Place) -> None:
    one, two = (Wrapped(place, function, pair(place)) for function in (plain, writing))
    before = one.replays, two.replays
    outer, inner = pair(place), pair(place)
    other = inner[0].clone()
    found: list[Any] = []

    def arrive_twice(*given: Any) -> Any:
        found.append(one.arrive(*outer))
        return two.arrive(*given)

    def call_inside(*_: Any) -> Any:
        assert_bits(two.entry(*inner), writing([inner[1], other]))
        return found.pop()

    one.wrappers, two.wrappers = call_inside, arrive_twice
    assert_bits(one.entry(*outer), plain(outer[::-1]))
    assert (one.replays, two.replays) == (before[0] + 1, before[1] + 1)


def test_another_graphs_call_with_the_same_arguments_is_no_arrival(place: Place) -> None:
    def other(given: list[Any]) -> list[Any]:
        return [given[0] - 3 * given[1]]

    one, two = (Wrapped(place, function, pair(place)) for function in (plain, other))

    def ask_the_other(*given: Any) -> Any:
        assert_bits(two.arrive(*given), other(list(given[::-1])))
        return one.arrive(*given)

    one.wrappers = ask_the_other
    y, x = pair(place)
    assert_bits(one.entry(y, x), plain([x, y]))


def test_another_threads_call_is_no_arrival(place: Place) -> None:
    wrapped = Wrapped(place, plain, pair(place))
    y, x = pair(place)
    elsewhere: list[Any] = []

    def meanwhile(*given: Any) -> Any:
        thread = threading.Thread(target=lambda: elsewhere.append(wrapped.arrive(*given)))
        thread.start()
        thread.join(60)
        assert wrapped.replays == before + 2, "it was launched for itself"
        return wrapped.arrive(*given)

    wrapped.wrappers = meanwhile
    before = wrapped.replays
    for found in (wrapped.entry(y, x), *elsewhere):
        assert_bits(found, plain([x, y]))
    assert wrapped.replays == before + 2


def test_fewer_arguments_are_no_arrival(place: Place) -> None:
    wrapped = Wrapped(place, plain, pair(place))

    def try_fewer(*given: Any) -> Any:
        with pytest.raises(ValueError, match="not enough values"):
            wrapped.graph.dispatcher([given[1]])
        return wrapped.arrive(*given)

    wrapped.wrappers = try_fewer
    before = wrapped.replays
    y, x = pair(place)
    assert_bits(wrapped.entry(y, x), plain([x, y]))
    assert wrapped.replays == before + 1


def test_an_arrival_leaves_a_graph_busy_that_another_thread_launches() -> None:
    """Three threads: one launches, one arrives meanwhile, and one that calls then finds the graph
    busy. Its addresses are the launching thread's."""
    inside, release, arrive = (threading.Event() for _ in range(3))
    blocking = threading.local()

    @torch.library.custom_op("pygraph_test::stop_here", mutates_args=())
    def stop_here(x: torch.Tensor) -> torch.Tensor:
        if getattr(blocking, "on", False):
            inside.set()
            assert release.wait(60)
        return x * 2

    stop_here.register_fake(torch.empty_like)
    with fresh("twin") as twin:
        wrapped = Wrapped(twin, lambda given: [stop_here(given[0]) + given[1]], pair(twin))
        found: dict[str, Any] = {}
        given = {name: pair(twin) for name in ("launching", "arriving", "calling")}
        departed = threading.Event()

        def wait_and_arrive(*arguments: Any) -> Any:
            departed.set()
            assert arrive.wait(60)
            return wrapped.arrive(*arguments)

        def launching() -> None:
            blocking.on = True
            found["launching"] = wrapped.arrive(*given["launching"])

        def arriving() -> None:
            found["arriving"] = wrapped.entry(*given["arriving"])

        def calling() -> None:
            found["calling"] = wrapped.arrive(*given["calling"])

        wrapped.wrappers = wait_and_arrive
        threads = [threading.Thread(target=work) for work in (arriving, launching, calling)]
        threads[0].start()
        assert departed.wait(60)
        threads[1].start()
        assert inside.wait(60)
        arrive.set()
        threads[0].join(60)
        replays = wrapped.replays
        threads[2].start()
        threads[2].join(10)
        waits = threads[2].is_alive()  # for the launching thread, behind it on the device
        launched = wrapped.replays - replays
        release.set()
        for thread in threads:
            thread.join(60)
        assert (waits, launched) == (False, 0), "the graph was launched by two threads at once"
        for name, (y, x) in given.items():
            assert_bits(found[name], [x * 2 + y])


def test_each_thread_has_calls_of_its_own(place: Place) -> None:
    wrapped = Wrapped(place, plain, pair(place))
    both = threading.Barrier(2, timeout=30)

    def meet(*given: Any) -> Any:
        both.wait()  # both are launched, neither has arrived
        return wrapped.arrive(*given)

    wrapped.wrappers = meet
    given = [pair(place) for _ in range(2)]
    found: list[Any] = [None, None]

    def call(number: int) -> None:
        found[number] = wrapped.entry(*given[number])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for (y, x), results in zip(given, found, strict=True):
        assert_bits(results, plain([x, y]))


def test_what_no_graph_accepts_goes_the_long_way(place: Place) -> None:
    wrapped = Wrapped(place, plain, pair(place))
    before = wrapped.replays
    y, x = pair(place)
    wrapped.graph.hold(True)
    assert_bits(wrapped.entry(y, x), plain([x, y]))
    wrapped.graph.hold(False)
    assert wrapped.replays == before
    assert wrapped.seen == [before]
    assert_bits(wrapped.entry(y, x), plain([x, y]))
    assert wrapped.replays == before + 1


def test_a_launch_that_fails_is_served_by_the_callable_once() -> None:
    from pygraph.twin import faults

    with fresh("twin") as place:
        calls: list[int] = []

        def counted(given: list[Any]) -> list[Any]:
            calls.append(1)
            return writing(given)

        wrapped = Wrapped(place, counted, pair(place))
        y, x = pair(place)
        other = y.clone()
        made = len(calls)
        with faults.failing_call("cuGraphLaunch"):
            found = wrapped.entry(y, x)
        assert_bits(found, writing([x, other]))
        assert_bits([y], [other])
        assert len(calls) == made + 1
        assert wrapped.graph.refresh_report().state == "fallback"


def test_an_error_of_the_callable_behind_a_failed_launch_is_the_callers() -> None:
    from pygraph.twin import faults

    with fresh("twin") as place:
        broken: list[int] = []

        def breaking(given: list[Any]) -> list[Any]:
            if broken:
                raise KeyError("the callable's")
            return plain(given)

        wrapped = Wrapped(place, breaking, pair(place))
        broken.append(1)
        with faults.failing_call("cuGraphLaunch"), pytest.raises(KeyError, match="callable's"):
            wrapped.entry(*pair(place))
        assert wrapped.seen == [], "the wrappers did not run"


def test_what_the_callable_made_for_a_call_that_does_not_arrive_is_dropped() -> None:
    from pygraph.twin import faults

    with fresh("twin") as place:
        made: list[Any] = []

        def noted(given: list[Any]) -> list[Any]:
            results = plain(given)
            made.extend(map(weakref.ref, results))
            return results

        wrapped = Wrapped(place, noted, pair(place))
        wrapped.wrappers = lost
        made.clear()
        with faults.failing_call("cuGraphLaunch"):
            assert wrapped.entry(*pair(place)) == "the wrappers' own"
        assert [each() for each in made] == [None, None]


def test_results_that_cannot_be_made_are_an_error_where_arguments_were_written() -> None:
    def viewing(given: list[Any]) -> list[Any]:
        x, y = given
        y.add_(1)
        return [x[1:]]

    with fresh("twin") as place:
        wrapped = Wrapped(place, viewing, pair(place))

        class Unviewable(torch.Tensor):
            @classmethod
            def __torch_function__(cls, *_: Any, **__: Any) -> Any:
                raise KeyError("no view of this one")

        y, x = pair(place)
        with pytest.raises(KeyError, match="no view"):
            wrapped.entry(y, x.as_subclass(Unviewable))
