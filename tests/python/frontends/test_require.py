"""`options={"require": "full"}`: what raises, when, and what the error names. On the twin."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph import _engine
from pygraph.capturing import reference
from pygraph.frontends.compile import compilations, generated
from pygraph.planning import KINDS, Finding
from pygraph.reporting import GraphReport
from pygraph.twin import faults


@pytest.fixture(autouse=True)
def fresh(one_thread: None) -> Iterator[None]:
    torch._dynamo.reset()
    pygraph.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    _engine.twin_reset_faults()
    pygraph.reset()


def required(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    given = {"device": "twin", "require": "full", **options}
    return torch.compile(function, backend="pygraph", options=given)


def capturing() -> Any:
    """Dynamo keeps what has a size that depends on values, in place of a break."""
    return torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def raised(call: Callable[..., Any], *args: Any) -> pygraph.RequirementNotMet:
    with pytest.raises(pygraph.RequirementNotMet) as caught:
        call(*args)
    assert type(caught.value) is pygraph.RequirementNotMet
    return caught.value


def test_what_has_a_graph_never_raises() -> None:
    fast = required(lambda x: torch.relu(x) + 1)
    for n in range(6):
        x = torch.randn(4 + n // 5, 8)
        assert torch.equal(fast(x), torch.relu(x) + 1)
    assert pygraph.report().graphs[0].replays == 3


def test_the_error_is_pickled_whole() -> None:
    error = pygraph.RequirementNotMet("it waits", "graph 3", "aten.x", "a.py:7", "do not wait")
    again = pickle.loads(pickle.dumps(error))
    told = "require='full' is not met: graph 3: it waits: aten.x at a.py:7; needed: do not wait"
    assert str(again) == str(error) == told
    assert (again.source, again.remedy) == ("a.py:7", "do not wait")


def test_a_break_is_named_with_its_line() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()  # the line
        return y.cos()

    fast = required(function)
    for _ in range(2):
        error = raised(fast, torch.randn(4))
        line = function.__code__.co_firstlineno + 2
        assert error.source == f"test_require.py:{line}", error
        assert "graph_break" in error.reason and error.remedy
    assert not pygraph.report().calls


def test_a_break_in_front_of_all_operators_is_named_too() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.cos()

    error = raised(required(function), torch.randn(4))
    assert error.source == f"test_require.py:{function.__code__.co_firstlineno + 1}"


def test_a_break_elsewhere_is_no_matter() -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.cos()

    fast = required(torch.sin)
    torch.compile(other, backend="eager")(torch.randn(4))
    for _ in range(3):
        fast(torch.randn(4))
    assert pygraph.report().replays == 1


def test_a_failed_capture_raises_at_the_second_call_and_at_all_later_ones() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x, x > 0) * 2

    fast = required(function)
    with capturing():
        fast(torch.randn(8))
        errors = [raised(fast, torch.randn(8)) for _ in range(3)]
    for error in errors:
        assert error.graph == pygraph.report().graphs[0].name
        assert error.operator == "aten.masked_select.default", error
        assert error.source and error.source.endswith(
            f"test_require.py:{function.__code__.co_firstlineno + 1}"
        )
    assert errors[0].remedy == KINDS["data-dependent shape"].remedy


def test_a_failed_proof_raises() -> None:
    fast = required(lambda x: torch.relu(x @ x) + 1)
    fast(torch.randn(8, 8))
    with faults.hidden_pointers(-1):
        error = raised(fast, torch.randn(8, 8))
    assert "failed:" in error.reason


def test_memory_that_is_short_does_not_raise_until_it_is_tried_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "shortage", lambda *_: "nothing is free")
    fast = required(torch.sin)
    calls = 0
    with pytest.raises(pygraph.RequirementNotMet, match="nothing is free"):
        for calls in range(1000):  # noqa: B007
            fast(torch.randn(4))
    assert calls > 50


def test_a_size_that_is_not_to_have_a_graph_raises() -> None:
    fast = torch.compile(
        torch.sin,
        backend="pygraph",
        dynamic=True,
        options={"device": "twin", "require": "full", "capture_sizes": [8]},
    )
    for _ in range(3):
        fast(torch.randn(8))
    assert "capture_sizes" in raised(fast, torch.randn(9)).reason
    fast(torch.randn(8))


def test_reset_and_without_graphs_are_no_errors() -> None:
    from pygraph.runtime.registry import without_graphs

    fast = required(torch.sin)
    for _ in range(3):
        fast(torch.randn(8))
    with without_graphs():
        fast(torch.randn(8))
    pygraph.reset()
    fast(torch.randn(8))


def test_a_graph_that_is_held_runs_although_it_was_given_up() -> None:
    from pygraph.runtime.registry import without_graphs

    fast = required(lambda x: torch.linalg.eigh(x)[0] + 1)
    x = torch.eye(4)
    for _ in range(2):
        assert "leaves its library unusable" in raised(fast, x).reason
    with without_graphs():
        assert torch.equal(fast(x), torch.full((4,), 2.0))


CODE = """
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        arg0_1, = args
        args.clear()
        partition0_args = [arg0_1]
        del arg0_1
        (buf0,) = self.partitions[0](partition0_args)
        {between}
        (buf2,) = self.partitions[1]([buf1])
        return (buf2,)

def partition_0(args):
    return args

def partition_1(args):
    return args

runner = Runner(partitions=[partition_0, partition_1])
empty_strided_cuda = None
"""


@pytest.mark.parametrize(
    ("between", "works"),
    [
        ("buf1 = buf0", False),
        ("buf1 = reinterpret_tensor(buf0, (2,), (1,), 0)", False),
        ("buf1 = torch.ops.aten.nonzero.default(buf0)", True),
        ("cpp_fused_add_0(buf0, buf1)", True),
        ("buf1.copy_(buf0, False)", True),
        ("u0 = buf0.item()", True),
        ("with guard(0): buf1.copy_(buf0)", True),
        ("triton_poi_fused_0.run(buf0, 4, stream=stream0)", True),
    ],
)
def test_work_between_partitions_is_read_from_generated_code(
    between: str, works: bool, tmp_path: Any
) -> None:
    path = tmp_path / "generated.py"
    path.write_text(CODE.replace("{between}", between))
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert (
        generated.work_outside(names["partition_0"])
        == [between.partition(": ")[2] or between] * works
    )
    assert generated.works(names["runner"].call) is works
    assert generated.works(print) is None


def test_the_problem_of_a_cut_graph_names_its_obstacle() -> None:
    finding = Finding("device to host", "aten._to_copy.default", "net.py:3")
    made = compilations.Compilation(
        works=True, graphs=["graph 1", "graph 2"], findings=[finding], outside=["buf1.copy_(buf0)"]
    )
    problem = made.problem()
    assert problem is not None and problem.graph == "graph 1, graph 2"
    assert (problem.operator, problem.source) == (finding.operator, "net.py:3")
    assert problem.remedy == KINDS["device to host"].remedy
    made.findings = []
    assert "buf1.copy_(buf0)" in str(made.problem())
    made.outside = []
    assert made.problem() is None


def test_code_that_never_reached_the_hook_is_a_problem_if_it_works_on_the_device() -> None:
    reason = 'skipped: complex\n  File "/home/x/net.py", line 9, in forward\n    y = x\n'
    made = compilations.Compilation(works=True, reasons=[reason])
    problem = made.problem()
    assert problem is not None and problem.reason.startswith(compilations.LEFT_OUT)
    assert "skipped: complex" in problem.reason and problem.source == "/home/x/net.py:9"
    assert compilations.Compilation(works=False).problem() is None


def test_the_refusal_of_a_graph_has_the_remedy_of_its_operator() -> None:
    finding = Finding("library state", "aten._linalg_eigh.default", "net.py:5")
    made = compilations.Compilation(findings=[finding])
    report = GraphReport("graph 0", "fallback", reason="no", operator=finding.operator)
    error = made.refusal(report)
    assert (error.source, error.remedy) == ("net.py:5", KINDS["library state"].remedy)


def test_a_backward_that_cannot_be_captured_raises_in_the_backward() -> None:
    class Selected(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigh(gradient)[1]

    fast = required(Selected.apply)
    with torch.enable_grad():
        x = torch.randn(4, 4, requires_grad=True)
        y = fast(x)
        with pytest.raises(pygraph.RequirementNotMet, match="leaves its library unusable"):
            y.sum().backward()
