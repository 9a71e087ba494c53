"""Calls of compiled callables that go past Dynamo's guards by themselves.

That a call which differs does not, is in test_freeze.py ("led"), whose comparison this is."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from places import Place, only_graph
from torch import nn

import pygraph
from pygraph.frontends.compile import past_guards
from pygraph.frontends.compile.backend import backend
from pygraph.frontends.compile.guarded import StateBuilder
from pygraph.frontends.compile.past_guards import PastGuards, leads
from pygraph.torch_private import dynamo
from pygraph.torch_private.dynamo import Guarded

pytestmark = pytest.mark.usefixtures("without_gradients")

CALLS = 6
"""Until calls are led: warmed up, linked, and two that are watched."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() * self.scale

    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 2


def compile_for(place: Place, function: Any, **options: Any) -> Any:
    return place.compile(function, dynamic=False, launch="before_guards", **options)


def warmed(compiled: Any, *example: Any) -> Any:
    for _ in range(CALLS):
        compiled(*example)
    return compiled


def served(through: PastGuards | None) -> int:
    assert through is not None, "calls stay with Dynamo"
    return through._calls.served


def frames_of(function: Callable[[], Any]) -> list[str]:
    found: list[str] = []
    sys.setprofile(lambda frame, *_: found.append(frame.f_code.co_name))
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def _in_place(place: Place, net: Net) -> Any:
    net.compile(backend="pygraph", options={"device": place.name, "compiler": "aot"}, dynamic=False)
    return net


@pytest.mark.parametrize(
    "make",
    [
        compile_for,
        lambda place, net: compile_for(place, net.doubled),
        lambda place, net: compile_for(place, lambda x: net(x) + 1),
        lambda place, net: compile_for(place, nn.Sequential(net.linear, nn.ReLU())),
        _in_place,
    ],
    ids=["module", "method", "function", "module of torch's", "module in place"],
)
def test_calls_go_past_the_guards(place: Place, make: Any) -> None:
    net = Net().to(place.torch)
    compiled = warmed(make(place, net), place.randn(2, 4))
    through, replays = leads(compiled), only_graph().replays
    before = served(through)
    for _ in range(3):
        x = place.randn(2, 4)
        found, graph = compiled(x), only_graph()
        with torch.compiler.set_stance("force_eager"):
            assert torch.allclose(found, compiled(x))
    assert served(through) == before + 3
    assert graph.replays == replays + 3 and graph.past_guards and not graph.before_guards
    x = place.randn(2, 4)
    assert "is_exporting" not in frames_of(lambda: compiled(x)), "Dynamo's part of a call"


def test_not_with_launch_after_guards(place: Place) -> None:
    for launch in ("after_guards", "always"):
        compiled = place.compile(Net().to(place.torch), launch=launch)
        assert leads(warmed(compiled, place.randn(2, 4))) is None
        assert not pygraph.report().graphs[-1].past_guards


def test_a_call_with_gradients_stays(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = compile_for(place, net)
    with torch.enable_grad():
        for _ in range(CALLS):
            compiled(place.randn(2, 4)).sum().backward()
    assert leads(compiled) is None
    assert all(each.grad is not None for each in net.parameters())


def test_each_of_several_graphs_is_reached(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = compile_for(place, net)
    for rows in (2, 3, 5):
        warmed(compiled, place.randn(rows, 4))
    through = leads(compiled)
    before = served(through)
    for rows in (5, 2, 3, 2):
        x = place.randn(rows, 4)
        assert torch.allclose(compiled(x), net(x))
    assert served(through) == before + 4


def test_there_are_not_more_of_them_than_are_looked_through(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_guards, "_MOST_EXAMPLES", 2)
    net = Net().to(place.torch)
    compiled = compile_for(place, net)
    for rows in (2, 3, 5):
        warmed(compiled, place.randn(rows, 4))
    through = leads(compiled)
    before = served(through)
    for rows in (5, 2, 3, 5):
        x = place.randn(rows, 4)
        assert torch.allclose(compiled(x), net(x))
    assert served(through) == before + 2
    assert [each.past_guards for each in pygraph.report().graphs] == [True, True, False]


def test_what_changes_while_it_is_learned_is_not_taken_for_what_was_compiled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, between the guards of a call and the look at what they look at."""
    net, learn, learned = Net().to(place.torch), past_guards.Example.learn, []

    def change_before(*given: Any) -> Any:
        learned.append(1)
        net.scale = 3.0 if len(learned) == 2 else net.scale
        return learn(*given)

    monkeypatch.setattr(past_guards.Example, "learn", change_before)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    assert len(learned) >= 2
    for _ in range(CALLS):
        x = place.randn(2, 4)
        assert torch.allclose(compiled(x), net(x))


def test_what_was_learned_goes_with_the_code(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    through = leads(compiled)
    before = served(through)
    torch.compiler.reset()
    gc.collect()
    x = place.randn(2, 4)
    assert torch.allclose(compiled(x), net(x))
    assert served(through) == before, "code that was dropped has served a call"
    warmed(compiled, x)
    assert served(leads(compiled)) > before, "the new code's calls are led again"


def test_the_code_is_compiled_again_where_a_guard_fails(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    for scale in (3.0, 2.0, 3.0):
        net.scale = scale
        x = place.randn(2, 4)
        warmed(compiled, x)
        before = served(leads(compiled))
        assert torch.allclose(compiled(x), net(x))
        assert served(leads(compiled)) == before + 1


def test_a_stance_is_obeyed(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    through, x = leads(compiled), place.randn(2, 4)
    before = served(through)
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(compiled(x), net(x))
        assert served(through) == before
    compiled(x)
    assert served(through) == before + 1


@pytest.mark.parametrize("whole", [True, False])
def test_it_goes_back_where_most_calls_are_of_other_kinds(place: Place, whole: bool) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net if whole else net.forward), place.randn(2, 4))
    assert leads(compiled) is not None
    with torch.compiler.set_stance("force_eager"):
        for _ in range(past_guards._FIRST_CALLS + 1):
            compiled(place.randn(2, 4))
    assert leads(compiled) is None
    assert not only_graph().past_guards
    x, replays = place.randn(2, 4), only_graph().replays
    assert torch.allclose(compiled(x), net(x))
    assert only_graph().replays == replays + 1, "the graph serves behind the guards"


def test_dropped_graphs(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    pygraph.reset()
    for _ in range(CALLS):
        x = place.randn(2, 4)
        assert torch.allclose(compiled(x), net(x))


def test_what_cannot_be_compared_stays_with_dynamo(place: Place) -> None:
    """An object among the arguments. Its graph is launched before the guards."""

    class Scale:
        def __init__(self) -> None:
            self.value = 3.0

    compiled = warmed(
        compile_for(place, lambda x, scale: x * scale.value), place.randn(3), scale := Scale()
    )
    assert leads(compiled) is None
    assert only_graph().before_guards
    x = place.randn(3)
    assert torch.equal(compiled(x, scale), x * 3.0)


def test_a_function_with_side_effects_keeps_them(place: Place) -> None:
    kept: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        kept.append(1)
        return x + 1

    compiled = warmed(compile_for(place, function), place.randn(3))
    assert leads(compiled) is None
    assert len(kept) == CALLS


def test_hooks_of_the_module_run(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    assert leads(compiled) is not None
    seen: list[Any] = []
    net.register_forward_hook(lambda *_: seen.append(1))
    compiled.register_forward_pre_hook(lambda *_: seen.append(2))
    compiled(place.randn(2, 4))
    assert sorted(set(seen)) == [1, 2]


def test_an_error_of_the_caller_is_the_callers(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    with pytest.raises(TypeError, match="missing"):
        compiled()
    with pytest.raises(Exception, match=r"shape|size"):
        compiled(place.randn(2, 5))
    x = place.randn(2, 4)
    assert torch.allclose(compiled(x), net(x))


def test_an_error_of_ours_is_not(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(past_guards.Example, "learn", fail)
    net = Net().to(place.torch)
    compiled, x = compile_for(place, net), place.randn(2, 4)
    for _ in range(CALLS):
        assert torch.allclose(compiled(x), net(x))
    assert leads(compiled) is None


def test_an_argument_is_not_kept(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = compile_for(place, net)
    for _ in range(CALLS):
        x = place.randn(2, 4)
        compiled(x)
        gone = weakref.ref(x)
        del x
        assert gone() is None, "held behind its call"
    assert leads(compiled) is not None


@pytest.mark.parametrize("whole", [True, False], ids=["module", "method"])
def test_a_program_that_is_let_go_is_gone(place: Place, whole: bool) -> None:
    """Also one that has what was compiled of it."""
    net = Net().to(place.torch)
    net.__dict__["fast"] = warmed(
        compile_for(place, net if whole else net.doubled), place.randn(2, 4)
    )
    through = leads(net.fast)
    assert through is not None
    gone = weakref.ref(net), weakref.ref(through), weakref.ref(net.linear.weight)
    del net, through
    torch.compiler.reset()
    gc.collect()
    assert [each() for each in gone] == [None] * 3


def test_threads_that_come_while_it_is_learned(place: Place) -> None:
    net = Net().to(place.torch)
    compiled, wrong = compile_for(place, net), []
    given = [place.randn(2, 4) for _ in range(60)]  # a proof looks at who draws besides
    compiled(given[0])

    def work() -> None:
        with torch.no_grad():
            wrong.extend(x for x in given if not torch.allclose(compiled(x), net(x)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert leads(compiled) is not None


def test_code_around_it_is_compiled_with_what_is_within(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    function = warmed(compile_for(place, lambda x: net.linear(x)), place.randn(2, 4))
    assert leads(compiled) is not None and leads(function) is not None
    around = torch.compile(
        lambda x: compiled(x) + function(x), backend="eager", fullgraph=True, dynamic=False
    )
    x = place.randn(2, 4)
    assert torch.allclose(around(x), net(x) + net.linear(x))


def test_what_it_looks_like_does_not_change(place: Place) -> None:
    def function(x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        """Doubles."""
        return x * scale

    compiled = compile_for(place, function)
    before = inspect.signature(compiled), compiled.__doc__, compiled.__name__
    warmed(compiled, place.randn(3))
    assert leads(compiled) is not None
    assert (inspect.signature(compiled), compiled.__doc__, compiled.__name__) == before
    x = place.randn(3)
    assert torch.equal(compiled(x, scale=3.0), x * 3.0)
    assert dynamo.is_compiled(compiled)


def test_a_copy_of_a_module_is_a_program_of_its_own(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    other = copy.deepcopy(compiled)
    other.linear.weight.zero_()
    other.linear.bias.fill_(1.0)
    x = place.randn(2, 4)
    assert torch.equal(other(x), torch.full((2, 4), 2.0, device=place.torch))
    assert torch.allclose(compiled(x), net(x))


def functions_run_in(call: Callable[[], Any]) -> list[str]:
    """The names of Python's, by their order."""
    found: list[str] = []
    sys.setprofile(lambda frame, event, _: event == "call" and found.append(frame.f_code.co_name))
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_nothing_of_torchs_stands_in_front_of_a_modules_call(place: Place) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    x = place.randn(2, 4)
    run = functions_run_in(lambda: compiled(x))
    assert run[:2] == ["<lambda>", "__call__"]
    assert not {"_wrapped_call_impl", "_call_impl"} & {*run}
    assert torch.allclose(compiled(x), net(x))
    assert torch.allclose(compiled.forward(x), net(x)), "who calls its forward goes by the guards"


def test_hooks_on_what_torch_compile_returned(place: Place) -> None:
    seen: list[Any] = []

    def hook(module: nn.Module, inputs: Any, result: Any) -> Any:
        seen.append(result)
        return result + 1

    net, x = Net().to(place.torch), place.randn(2, 4)
    compiled = warmed(compile_for(place, net), x)
    handle = compiled.register_forward_hook(hook)
    assert torch.allclose(compiled(x), net(x) + 1) and len(seen) == 1
    handle.remove()
    through = leads(compiled)
    before = served(through)
    assert torch.allclose(compiled(x), net(x)) and len(seen) == 1
    assert served(through) == before + 1


def test_hooks_that_were_there_before(place: Place) -> None:
    """They run around what is led."""
    seen: list[Any] = []
    net, x = Net().to(place.torch), place.randn(2, 4)
    compiled = compile_for(place, net)
    compiled.register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    warmed(compiled, x)
    through, count = leads(compiled), len(seen)
    before = served(through)
    assert torch.allclose(compiled(x), net(x))
    assert (served(through), len(seen)) == (before + 1, count + 1)


def test_another_forward_on_what_torch_compile_returned(place: Place) -> None:
    net, x = Net().to(place.torch), place.randn(2, 4)
    compiled = warmed(compile_for(place, net), x)
    compiled.forward = lambda x: x - 1
    assert torch.equal(compiled(x), x - 1)


def test_modules_of_other_backends_are_called_as_before(place: Place) -> None:
    warmed(compile_for(place, Net().to(place.torch)), place.randn(2, 4))
    seen: list[Any] = []
    other = torch.compile(net := Net().to(place.torch), backend="eager")
    other.register_forward_hook(lambda *given: seen.append(given))
    x = place.randn(2, 4)
    assert torch.allclose(other(x), net(x)) and len(seen) == 1
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        other()


@pytest.mark.parametrize("broken", [False, True])
def test_a_led_module_within_what_is_compiled(place: Place, broken: bool) -> None:
    net = Net().to(place.torch)
    compiled = warmed(compile_for(place, net), place.randn(2, 4))
    assert leads(compiled) is not None

    def around(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if broken:
            torch._dynamo.graph_break()
        return compiled(x) + 1

    outer = torch.compile(around, backend="eager")
    for _ in range(CALLS):
        x = place.randn(2, 4)
        assert torch.allclose(outer(x), net(x * 2) + 1)


@pytest.mark.parametrize("far", [False, True])
def test_who_calls_has_what_is_called(
    place: Place, far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking through all objects takes long, and is done where nobody near has it."""
    asked: list[Any] = []
    original = gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *of: asked.append(of) or original(*of))
    x = place.randn(4, 4)
    if far:
        held = [compile_for(place, lambda x: x.relu() * 2)]
        for _ in range(CALLS):
            held[0](x)
        (compiled,) = held
    else:
        compiled = warmed(compile_for(place, Net().to(place.torch)), x)
    assert leads(compiled) is not None
    assert bool(asked) == far


def test_what_guards_have_named_is_not_followed_again() -> None:
    """Guards name the whole way to each thing: of a net as deep as this they would be followed
    ten times as often as there are things."""
    followed: list[str] = []

    class Step:
        def __init__(self, within: Any) -> None:
            self.within = within

        def __getattribute__(self, name: str) -> Any:
            if name in ("within", "number"):
                followed.append(name)
            return object.__getattribute__(self, name)

    here = Step(None)
    for _ in range(10):
        here.number, here = 1, Step(here)
    sources = ["L['it']" + ".within" * n for n in range(10)]
    asked = [Guarded(each, frozenset({"TYPE_MATCH"})) for each in sources]
    asked += [Guarded(each + ".number", frozenset({"EQUALS_MATCH"})) for each in sources[1:]]
    builder = StateBuilder((), {})
    builder.see(asked, {"it": here}, {}, frozenset())
    assert len(followed) == len(asked) - 1


def test_a_wrapper_of_another_make_is_left_alone() -> None:
    def made_by_another_torch(*args: Any, _more: int = 3, **kwargs: Any) -> Any:
        return args, kwargs

    code = made_by_another_torch.__code__
    assert not dynamo.divert(made_by_another_torch, print)
    assert made_by_another_torch.__code__ is code


def test_leading_and_leading_back() -> None:
    seen: list[Any] = []

    def make(one: int) -> types.FunctionType:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return one, args, kwargs

        return wrapper

    wrapper = make(1)
    inner = dynamo.copied(wrapper)
    assert dynamo.divert(wrapper, lambda *args, **kwargs: seen.append((args, kwargs)))
    wrapper(3, a=4)
    assert seen == [((3,), {"a": 4})]
    assert inner(3, a=4) == make(1)(3, a=4)
    dynamo.lead_back(wrapper, inner)
    assert wrapper(3, a=4) == (1, (3,), {"a": 4})
    assert dynamo.diverted_to(wrapper) is None


def test_a_context_that_a_backend_asks_for_is_entered(place: Place) -> None:
    entered: list[int] = []

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        entered.append(1)
        yield

    def compile_with_pygraph(graph: Any, inputs: Any) -> Any:
        return backend(graph, inputs, options={"device": place.name, "compiler": "aot"})

    compile_with_pygraph.backend_ctx_ctor = context  # type: ignore[attr-defined]
    compiled = torch._dynamo.optimize(compile_with_pygraph)(Net().to(place.torch))
    warmed(compiled, place.randn(2, 4))
    assert leads(compiled) is None
    assert len(entered) == CALLS
