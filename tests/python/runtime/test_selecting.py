"""Who serves the calls of a proven program: on the twin, with a judge who knows the answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph import _engine
from pygraph.decide import selection
from pygraph.decide.selection import Decision
from pygraph.frontends.compile import past_guards, speculation
from pygraph.frontends.compile.options import Options
from pygraph.reporting import FALLBACK, GRAPHED, Report
from pygraph.runtime import machine, registry
from pygraph.torch_private import dynamo

CALLS = 200
DYNAMIC = {"device": "twin", "launch": "after_guards"}
Judge = Callable[[Any, bool, str], Decision | None]


def decides(graph: bool, idle: bool | None = None, at: int = 8) -> Judge:
    def judge(pairs: Any, over: bool, question: str) -> Decision | None:
        if len(pairs) < at and not over:
            return None
        return Decision(graph, "host", len(pairs), {"host": 9.0}, {"host": 7.0}, idle)

    return judge


@pytest.fixture(autouse=True)
def measuring(monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> Iterator[None]:
    """On the twin, too, and without waiting for the time that it may take."""
    _engine.grant_exploration(60.0)
    monkeypatch.setattr(Options, "selects", property(lambda self: self.select))
    # By real clocks, which may have anything to say beside other processes.
    monkeypatch.setattr(selection, "won_when_proven", lambda callable_s, graph_s: False)
    pygraph.reset()
    yield
    pygraph.reset()


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def run(compiled: Any, eager: Any, calls: int = CALLS, batch: int = 4) -> None:
    """Every call is right, whoever serves it."""
    with torch.no_grad():
        for _ in range(calls):
            x = torch.randn(batch, 8)
            assert torch.equal(compiled(x), eager(x))


def compile_twin(function: Any, **options: Any) -> Any:
    options = {"device": "twin", "launch": "after_guards", **options}
    return torch.compile(function, backend="pygraph", options=options)


def test_both_take_turns_and_then_the_better_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def judge(pairs: Any, over: bool, question: str) -> Decision | None:
        seen.append(len(pairs))
        for each in (clocks for pair in pairs for clocks in pair):
            assert 0 < each.host < 1e6
            assert each.period > each.host
            assert math.isnan(each.device)  # the twin's clock says nothing of a device's
        return decides(True)(pairs, over, question)

    monkeypatch.setattr(selection, "judge", judge)
    eager = model()
    compiled = compile_twin(eager)
    run(compiled, eager)
    (graph,) = pygraph.report().graphs
    assert seen == [12]
    assert graph.state == GRAPHED
    assert graph.calls - graph.replays == 2 + 26  # 13 turns of two calls, and the warm-up
    assert [str(each) for each in graph.selection] == [
        "9.0 us with it, 7.0 us without (until the call returned, medians of 12 calls each)"
    ]
    assert "a graph serves: 9.0 us with it" in str(pygraph.report())


def test_a_graph_that_does_not_pay_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "judge", decides(False))
    eager = model()
    compiled = compile_twin(eager)
    run(compiled, eager)
    (graph,) = pygraph.report().graphs
    replays = graph.replays
    assert graph.state == FALLBACK
    assert graph.reason is not None and graph.reason.startswith("a graph does not pay: 9.0 us")
    assert "runs without a graph: 9.0 us with it, 7.0 us without" in str(pygraph.report())
    run(compiled, eager)
    assert pygraph.report().graphs[0].replays == replays


def test_calls_of_a_graph_that_does_not_pay_do_not_come_to_python(
    monkeypatch: pytest.MonkeyPatch, heard: list[list[Any]]
) -> None:
    monkeypatch.setattr(selection, "judge", decides(False))
    eager = model()
    compiled = compile_twin(eager)
    run(compiled, eager)
    heard.clear()
    run(compiled, eager)
    assert heard == []


def test_the_bound_is_looked_at_and_a_change_opens_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def judge(pairs: Any, over: bool, question: str) -> Decision | None:
        asked.append(len(pairs))
        # The twin's stream is always idle when a call comes: so it never is as decided.
        return decides(len(asked) == 1, idle=False if len(asked) == 1 else None)(
            pairs, over, question
        )

    monkeypatch.setattr(selection, "judge", judge)
    compiled = compile_twin(lambda x: x + 1)
    eager = lambda x: x + 1  # noqa: E731
    run(compiled, eager, 1024 * 4)
    assert asked == [12]
    run(compiled, eager, 1024)
    assert asked == [12, 12]
    (graph,) = pygraph.report().graphs
    assert graph.state == FALLBACK
    assert len(graph.selection) == 1


def test_what_is_found_to_stand_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def judge(pairs: Any, over: bool, question: str) -> Decision | None:
        asked.append(len(pairs))
        return decides(False)(pairs, over, question)

    monkeypatch.setattr(selection, "judge", judge)
    compiled = compile_twin(lambda x: x + 1)
    run(compiled, lambda x: x + 1, 1024 * 6)
    assert asked == [12]


def test_a_judge_that_fails_leaves_the_graph(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def judge(pairs: Any, over: bool, question: str) -> Decision | None:
        raise ValueError("no judge")

    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    monkeypatch.setattr(selection, "judge", judge)
    eager = model()
    run(compile_twin(eager), eager)
    (graph,) = pygraph.report().graphs
    assert graph.state == GRAPHED
    assert len(unraisable) == 1


def test_each_size_is_decided_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False])
    monkeypatch.setattr(selection, "judge", lambda *args: decides(next(answers))(*args))
    eager = model()
    compiled = torch.compile(eager, backend="pygraph", options=DYNAMIC, dynamic=True)
    run(compiled, eager, batch=4)
    run(compiled, eager, batch=6)
    (graph,) = [each for each in pygraph.report().graphs if each.replays]
    assert [(each.sizes, each.graph) for each in graph.selection] == [("4", True), ("6", False)]
    assert graph.state == GRAPHED
    replays = graph.replays
    run(compiled, eager, batch=6)
    assert pygraph.report().graphs[0].replays == replays
    run(compiled, eager, batch=4)
    assert pygraph.report().graphs[0].replays == replays + CALLS


def test_sizes_that_do_not_pay_end_the_making_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "judge", decides(False))
    eager = model()
    compiled = torch.compile(eager, backend="pygraph", options=DYNAMIC, dynamic=True)
    for batch in (4, 5, 6, 7, 9):
        run(compiled, eager, batch=batch)
    (graph,) = [each for each in pygraph.report().graphs if each.replays]
    assert len(graph.selection) == 3
    assert graph.programs == 3


def test_training_is_right_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward by the graph and a backward without, and the other way round."""
    monkeypatch.setattr(selection, "judge", decides(True, at=64))
    eager, ours = model(), model()
    ours.load_state_dict(eager.state_dict())
    compiled = compile_twin(ours)
    for _ in range(400):
        x = torch.randn(4, 8)
        for each, parameters in ((eager, eager), (compiled, ours)):
            parameters.zero_grad()
            each(x).square().sum().backward()
        for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
            assert mine.grad is not None and theirs.grad is not None
            assert torch.allclose(mine.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    graphs = pygraph.report().graphs
    assert len(graphs) == 2
    assert all(each.selection[0].pairs == 64 for each in graphs)


def cache(x: torch.Tensor, kept: torch.Tensor, n: int) -> torch.Tensor:
    kept[n].copy_(x.sum(0))
    return kept.sum() + x


def views(x: torch.Tensor, kept: torch.Tensor, n: int) -> tuple[Any, ...]:
    y = x * 2
    return y, y[1:], x.view(-1), kept


def grows(x: torch.Tensor, kept: torch.Tensor, n: int) -> torch.Tensor:
    return x.repeat(n + 1, 1) @ kept.T


def scaled(x: torch.Tensor, kept: torch.Tensor, n: float) -> torch.Tensor:
    return x * n + kept.mean()


def returns_numbers(x: torch.Tensor, kept: torch.Tensor, n: int) -> tuple[Any, ...]:
    return x.sum().to("cpu"), x + kept[0]


def breaks(x: torch.Tensor, kept: torch.Tensor, n: int) -> torch.Tensor:
    y = torch.relu(x)
    torch._dynamo.graph_break()
    return y @ kept.T


@pytest.mark.parametrize("launch", ["before_guards", "after_guards"])
@pytest.mark.parametrize("function", [cache, views, grows, scaled, returns_numbers, breaks])
def test_calls_of_all_kinds_are_right_whoever_serves_them(
    monkeypatch: pytest.MonkeyPatch, function: Any, launch: str
) -> None:
    served: list[str] = []

    def judge(pairs: Any, over: bool, question: str) -> Decision | None:
        served.append(question)
        return decides(len(served) % 2 == 0, at=24)(pairs, over, question)

    monkeypatch.setattr(selection, "judge", judge)
    options = {"device": "twin", "launch": launch}
    compiled = torch.compile(function, backend="pygraph", options=options)
    mine, theirs = torch.zeros(4, 4), torch.zeros(4, 4)
    kept: list[tuple[Any, Any]] = []
    with torch.no_grad():
        for n in range(500):
            x = torch.randn(3, 4)
            number = 0.5 * n if function is scaled else n % 2
            got, wanted = compiled(x, mine, number), function(x.clone(), theirs, number)
            kept = [*kept[-3:], (got, wanted)]  # results of earlier calls stay as they were
            for one, other in kept:
                for a, b in zip(*map(as_tuple, (one, other)), strict=True):
                    assert torch.equal(a, b) or a is mine
            assert torch.equal(mine, theirs)
    assert served
    assert 0 < pygraph.report().replays < 500 * len(pygraph.report().graphs)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_dropout_goes_on_in_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are drawn in the order of the calls, whoever serves them."""
    monkeypatch.setattr(selection, "judge", decides(True, at=64))

    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    drawn = []
    for options in ({}, {"select": "always"}, {"select": "never"}):
        torch._dynamo.reset()
        torch.manual_seed(3)
        compiled = compile_twin(draw, **options)
        drawn.append([compiled(torch.ones(16)) for _ in range(60)])
    for one, other in zip(drawn[0], drawn[1], strict=True):
        assert torch.equal(one, other)
    for one, other in zip(drawn[0], drawn[2], strict=True):
        assert torch.equal(one, other)


def test_never_makes_no_graph() -> None:
    eager = model()
    run(compile_twin(eager, select="never"), eager)
    (graph,) = pygraph.report().graphs
    assert (graph.state, graph.replays, graph.calls) == (FALLBACK, 0, CALLS)
    assert graph.reason == "the option 'select' is \"never\""


def test_what_was_much_faster_when_it_was_proven_needs_no_contest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def judge(pairs: Any, over: bool, question: str) -> Decision | None:
        asked.append(question)
        return None

    monkeypatch.setattr(selection, "judge", judge)
    monkeypatch.setattr(selection, "won_when_proven", lambda callable_s, graph_s: True)
    eager = model()
    run(compile_twin(eager), eager)
    (graph,) = pygraph.report().graphs
    assert (graph.replays, graph.undecided, asked) == (CALLS - 2, 0, [])
    assert [each.by for each in graph.selection] == ["proof"]
    assert "(in its proof, on the device)" in str(pygraph.report())


def test_always_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "judge", decides(False))
    eager = model()
    run(compile_twin(eager, select="always"), eager)
    (graph,) = pygraph.report().graphs
    assert (graph.replays, graph.selection) == (CALLS - 2, [])


def test_the_model_reads_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "judge", decides(False))
    eager = model()
    run(compile_twin(eager, select="model"), eager)
    (graph,) = pygraph.report().graphs
    assert graph.replays == CALLS - 2
    assert [each.by for each in graph.selection] == ["model"]
    assert "(of host time, predicted)" in str(graph.selection[0])


def test_the_model_may_be_against_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pygraph.decide.cost_model.with_graph", lambda contents: 1e6)
    eager = model()
    run(compile_twin(eager, select="model"), eager)
    (graph,) = pygraph.report().graphs
    assert (graph.state, graph.replays) == (FALLBACK, 0)


@pytest.mark.parametrize("options", [{"require": "full"}, {"debug": "paranoid"}])
def test_required_and_repeatedly_proven_graphs_always_serve(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(selection, "judge", decides(False))
    eager = model()
    run(compile_twin(eager, **options), eager)
    (graph,) = pygraph.report().graphs
    assert graph.state == GRAPHED
    assert graph.selection == []


def test_another_value_names_those_that_there_are() -> None:
    with pytest.raises(Exception, match="option 'select' is 'sometimes'; it must be one of"):
        compile_twin(lambda x: x + 1, select="sometimes")(torch.ones(2))


def test_a_report_is_read_back_with_its_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "judge", decides(False))
    eager = model()
    run(compile_twin(eager), eager)
    report = pygraph.report()
    assert Report.from_dict(report.to_dict()) == report


# -------------------------------------------------------------------- arguments that are copied


def reads_often(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [x * float(n) + y for n in range(1, 40)]


def run_often(compiled: Any, calls: int = CALLS) -> None:
    kept = [torch.randn(8) for _ in range(5)]
    for n in range(calls):
        x, y = kept[n % 5].clone(), kept[(n + 1) % 5].clone()
        for mine, theirs in zip(compiled(x, y), reads_often(x, y), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("copied", [True, False])
def test_arguments_that_many_nodes_mention_are_copied_where_that_pays(
    monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    answers = iter([not copied, True])
    monkeypatch.setattr(selection, "judge", lambda *args: decides(next(answers))(*args))
    compiled = compile_twin(reads_often)
    run_often(compiled)
    (graph,) = pygraph.report().graphs
    patching, serving = graph.selection
    assert (patching.graph, serving.graph) == (not copied, True)
    assert patching.about == "2 arguments of 64 B, mentioned by 78 nodes"
    word = "copied" if copied else "patched"
    line = f"  {word}: 2 arguments of 64 B, mentioned by 78 nodes: 9.0 us patched, 7.0 us copied ("
    assert line in str(pygraph.report())
    before = graph.copies, graph.replays
    run_often(compiled)
    (graph,) = pygraph.report().graphs
    assert graph.replays - before[1] == CALLS
    assert graph.copies - before[0] == (2 * CALLS if copied else 0)


def test_few_nodes_are_patched_and_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "costs", lambda device: pytest.fail("nobody needs to know"))
    monkeypatch.setattr(selection, "judge", decides(True))
    eager = model()
    run(compile_twin(eager), eager)
    (graph,) = pygraph.report().graphs
    assert [each.about for each in graph.selection] == [""]


def test_what_the_graph_writes_is_never_copied() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        for n in range(1, 10):
            x.mul_(float(n)).add_(1.0)
        return x + 1

    compiled = compile_twin(write, select="always")
    for _ in range(5):
        compiled(torch.randn(8))
    assert pygraph.report().replays == 3
    (found,) = registry._graphs
    (program,) = [each.program for each in found._signatures.with_program]
    assert set(program.copyable) == {0}
    with pytest.raises(ValueError, match="argument 0 cannot be copied"):
        program.copy_arguments([0])


# ------------------------------------------------------------------------- before the guards or not


def by_question(**answers: Decision) -> Judge:
    return lambda pairs, over, question: answers[question]


def answer(graph: bool, clock: Any = "caller") -> Decision:
    return Decision(graph, clock, 8, {"caller": 9.0}, {"caller": 7.0}, None)


def hooks_of(compiled: Any) -> list[Any]:
    return [each for each in dynamo.hooks_of(compiled) if _engine.is_speculation_hook(each)]


@pytest.mark.usefixtures("behind_dynamo")
@pytest.mark.parametrize(
    ("early", "stays"),
    [(answer(True), True), (answer(False), False), (answer(True, clock=None), False)],
)
def test_launches_before_the_guards_stay_only_where_they_pay(
    monkeypatch: pytest.MonkeyPatch, early: Decision, stays: bool
) -> None:
    monkeypatch.setattr(selection, "judge", by_question(callable=answer(True), early=early))
    eager = model()
    compiled = compile_twin(eager, launch="before_guards")
    run(compiled, eager, 60)
    assert len(hooks_of(compiled)) == 1
    assert pygraph.report().graphs[0].undecided == 1
    run(compiled, eager)
    (graph,) = pygraph.report().graphs
    assert graph.undecided == 0
    assert [each.what for each in graph.selection] == ["callable", "early"]
    assert graph.before_guards == stays
    assert len(hooks_of(compiled)) == int(stays)
    where = "before" if stays else "behind"
    assert f"launched {where} the guards: 9.0 us before the guards, 7.0 us behind them (" in str(
        pygraph.report()
    )
    replays = graph.replays
    run(compiled, eager)
    assert pygraph.report().graphs[0].replays == replays + CALLS


@pytest.mark.usefixtures("behind_dynamo")
def test_what_runs_without_a_graph_has_nothing_in_front_of_its_guards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "judge", by_question(callable=answer(False)))
    eager = model()
    compiled = compile_twin(eager, launch="before_guards")
    run(compiled, eager)
    (graph,) = pygraph.report().graphs
    assert (graph.state, graph.undecided) == (FALLBACK, 0)
    assert hooks_of(compiled) == []
    run(compiled, eager)


@pytest.mark.usefixtures("behind_dynamo")
def test_the_bound_is_looked_at_behind_the_question_of_guards_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def judge(pairs: Any, over: bool, question: str) -> Decision | None:
        asked.append(question)
        found = answer(True)
        # The twin's stream is always idle when a call comes.
        return dataclasses.replace(found, idle=False) if len(asked) == 1 else found

    monkeypatch.setattr(selection, "judge", judge)
    eager = model()
    compiled = compile_twin(eager, launch="before_guards")
    run(compiled, eager, 400)
    assert asked == ["callable", "early"]
    run(compiled, eager, 1024 * 5)
    assert asked == ["callable", "early", "callable"]


@pytest.mark.usefixtures("behind_dynamo")
def test_each_graph_of_a_callable_is_asked_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = by_question(callable=answer(True), early=answer(False))
    monkeypatch.setattr(selection, "judge", late)
    eager = model()
    compiled = torch.compile(
        eager,
        backend="pygraph",
        options={"device": "twin", "launch": "before_guards"},
        dynamic=False,
    )
    run(compiled, eager, batch=4)
    assert hooks_of(compiled) == []
    kept = by_question(callable=answer(True), early=answer(True))
    monkeypatch.setattr(selection, "judge", kept)
    run(compiled, eager, batch=6)  # compiled anew, with an entry point of its own
    assert len(hooks_of(compiled)) == 1
    assert [each.before_guards for each in pygraph.report().graphs] == [False, True]
    run(compiled, eager, batch=4)
    run(compiled, eager, batch=6)


# ------------------------------------------------------------------------- past the guards or not


def of_last_call(compiled: Any) -> list[Any]:
    """How many calls went past the guards, and how many launched before them."""
    through = past_guards.leads(compiled)
    served = 0 if through is None else through._calls.served
    return [served, speculation.counts(compiled)[0]]


@pytest.mark.parametrize("clock", ["caller", None], ids=["told", "not told"])
def test_calls_stay_past_the_guards_where_that_costs_no_more(
    monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    monkeypatch.setattr(
        selection, "judge", by_question(callable=answer(True), past=answer(True, clock))
    )
    eager = model()
    compiled = compile_twin(eager, launch="before_guards")
    run(compiled, eager, 60)
    assert past_guards.leads(compiled) is not None and len(hooks_of(compiled)) == 1
    assert of_last_call(compiled)[0] == 0, "both ways have not taken turns yet"
    assert pygraph.report().graphs[0].undecided == 1
    run(compiled, eager)
    (graph,) = pygraph.report().graphs
    assert [each.what for each in graph.selection] == ["callable", "past"]
    assert (graph.undecided, graph.past_guards, graph.before_guards) == (0, True, False)
    with torch.compiler.set_stance("force_eager"):
        compiled(torch.randn(4, 8))
    assert hooks_of(compiled) == [], "behind the next call that does not go past them"
    assert "calls go past the guards: 9.0 us past the guards, 7.0 us before them (" in str(
        pygraph.report()
    )
    (before, _), replays = of_last_call(compiled), graph.replays
    run(compiled, eager)
    assert of_last_call(compiled)[0] == before + CALLS
    assert pygraph.report().graphs[0].replays == replays + CALLS


def test_turns_are_taken_past_the_guards_and_by_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(pairs: Any, over: bool, question: str) -> Decision | None:
        if question == "past":
            clocked.extend(each for pair in pairs for each in pair)
        return answer(True) if question == "callable" or over else None

    clocked: list[Any] = []
    monkeypatch.setattr(selection, "judge", never)
    eager = model()
    compiled = compile_twin(eager, launch="before_guards")
    run(compiled, eager, 160)
    assert pygraph.report().graphs[0].undecided == 1
    ways = []
    for _ in range(40):
        before = of_last_call(compiled)
        run(compiled, eager, 1)
        ways.append([now - then for now, then in zip(of_last_call(compiled), before, strict=True)])
    assert ways.count([1, 0]) >= 10, "past the guards"
    assert ways.count([0, 0]) + ways.count([0, 1]) >= 10, "by Dynamo"
    assert clocked and all(each.period > each.host for each in clocked), "not to their ends"


@pytest.mark.parametrize("clock", ["caller", None], ids=["told", "not told"])
def test_calls_go_back_where_a_launch_before_the_guards_costs_less(
    monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    """Also where that cannot be told from one behind them, which has not won against anything."""
    answers = by_question(callable=answer(True), past=answer(False), early=answer(True, clock))
    monkeypatch.setattr(selection, "judge", answers)
    eager = model()
    compiled = compile_twin(eager, launch="before_guards")
    run(compiled, eager, 400)
    (graph,) = pygraph.report().graphs
    assert [each.what for each in graph.selection] == ["callable", "past", "early"]
    assert (graph.undecided, graph.past_guards, graph.before_guards) == (0, False, True)
    assert past_guards.leads(compiled) is None and len(hooks_of(compiled)) == 1
    replays = graph.replays
    run(compiled, eager)
    assert pygraph.report().graphs[0].replays == replays + CALLS


def test_what_cannot_go_past_the_guards_is_asked_about_those(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> Any:
        raise past_guards.NotFrozen("for the test")

    monkeypatch.setattr(past_guards.Example, "learn", refuse)
    answers = by_question(callable=answer(True), early=answer(True))
    monkeypatch.setattr(selection, "judge", answers)
    eager = model()
    compiled = compile_twin(eager, launch="before_guards")
    run(compiled, eager, 400)
    (graph,) = pygraph.report().graphs
    assert [each.what for each in graph.selection] == ["callable", "early"]
    assert (graph.undecided, graph.past_guards, graph.before_guards) == (0, False, True)


def test_no_call_goes_past_the_guards_to_a_graph_that_does_not_pay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "judge", by_question(callable=answer(False)))
    eager = model()
    compiled = compile_twin(eager, launch="before_guards")
    run(compiled, eager, 400)
    (graph,) = pygraph.report().graphs
    assert graph.state == FALLBACK
    assert past_guards.leads(compiled) is None and hooks_of(compiled) == []
