"""The report: coverage arithmetic, what the texts must say, and the way through JSON."""

import ast
import inspect
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pygraph.planning import Argument, Break, Finding, GraphPlan, Plan
from pygraph.reporting import Applied, GraphReport, Report, model
from pygraph.reporting.text import as_bytes


def example() -> Report:
    return Report(
        graphs=[
            GraphReport(
                name="graph 0 (forward)",
                state="graphed",
                nodes=37,
                kernels=36,
                relocations=181,
                proof="bit-equal",
                arena_bytes=81 << 20,
                calls=10,
                replays=6,
                passes=[
                    Applied("hoist", "2 CPU tensors are brought through staging memory", "a.py:7"),
                    Applied("fold", "a copy is gone"),
                ],
            ),
            GraphReport(
                name="graph 1 (forward)",
                state="fallback",
                reason="needs a value on the host [scalar]",
                operator="aten._local_scalar_dense",
                source="net.py:12",
                calls=2,
            ),
        ],
        environment={"torch": "2.11.0"},
        events=["slow tensor access"],
    )


def test_coverage_counts_calls_of_all_graphs():
    assert example().coverage() == 0.5
    assert Report().coverage() == 0.0


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (81 << 20, "81.0 MiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes(count: int, text: str):
    assert as_bytes(count) == text


def test_text_says_what_blocked_and_where():
    text = str(example())
    assert "1 of 2 compiled graphs" in text
    assert "net.py:12" in text and "aten._local_scalar_dense" in text
    assert "181 relocations" in text and "bit-equal" in text
    assert "slow tensor access" in text


def test_a_pass_is_a_line_of_its_graph():
    lines = str(example()).splitlines()
    wanted = "  pass hoist: 2 CPU tensors are brought through staging memory (a.py:7)"
    assert lines[lines.index("graph 0 (forward): graphed; 6 of 10 calls replayed") + 1] == wanted
    assert "  pass fold: a copy is gone" in lines


def test_a_graph_that_was_compiled_once_more_is_not_counted() -> None:
    outside = {"culprits": ["mylib::foo"], "state": "graphed"}
    report = Report(
        graphs=[
            GraphReport(name="graph 0 (inference)", state="replaced", operator="mylib.foo.default"),
            GraphReport(name="graph 1 (inference)", compiled_again_s=1.23, **outside),
            GraphReport(name="graph 2 (inference)", **outside),
        ]
    )
    text = str(report)
    assert "2 of 2 compiled graphs run" in text
    assert "  compiled once more with mylib::foo outside, in 1.2 s\n" in text
    assert "  compiled with mylib::foo outside, in which captures had failed" in text
    console = Console(file=io.StringIO(), width=200)
    console.print(report)
    assert isinstance(console.file, io.StringIO)
    assert "graph 1 (inference): compiled once more with mylib::foo" in console.file.getvalue()


def test_a_report_of_replaced_graphs_alone_says_so() -> None:
    text = str(Report(graphs=[GraphReport(name="graph 0 (inference)", state="replaced")]))
    assert text.startswith("PyGraph: each compiled graph was replaced, 0 of 0 calls replayed")


def on(*devices: str, environment: dict[str, str | None] | None = None) -> str:
    graphs = [GraphReport(f"graph {n}", "graphed", device=each) for n, each in enumerate(devices)]
    return str(Report(graphs=graphs, environment=environment or {}))


def test_a_graph_on_the_twin_is_no_cuda_graph():
    without = {"driver": None, "device": None, "problem": "no CUDA driver"}
    text = on("twin", "twin", environment=without)
    assert "2 of 2 compiled graphs run as graphs on the CPU twin, 0 of 0" in text
    assert "CUDA" not in text and "None" not in text and "\ndevice CPU twin\n" in text
    mixed = on("twin", "cuda", environment={"device": "NVIDIA H100", "problem": None})
    assert "1 of 1 compiled graphs run as CUDA graphs, 1 of 1 compiled graphs run as" in mixed
    assert "device NVIDIA H100 and CPU twin\n" in mixed
    assert "no CUDA driver" in on("twin", "cuda", environment=without)
    assert "twin" not in on("cuda", environment=without)


def test_every_field_is_described():
    for owner in (Applied, GraphReport, Report, Plan, GraphPlan, Finding, Break, Argument):
        (tree,) = ast.parse(inspect.getsource(owner)).body
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(after, ast.Expr), ast.unparse(field)


def test_rich_shows_the_same_and_keeps_brackets():
    console = Console(width=220, record=True, file=io.StringIO())
    console.print(example())
    text = console.export_text()
    for part in ("net.py:12", "181", "bit-equal", "[scalar]", "slow tensor access"):
        assert part in text


def test_json_round_trip_and_unknown_names():
    data = json.loads(json.dumps(example().to_dict()))
    assert data["coverage"] == 0.5
    data["graphs"][0]["from the future"] = 1
    assert Report.from_dict(data) == example()


def test_timings_are_not_shared_between_records():
    GraphReport(name="a", state="warming").timings_ms["capture"] = 1.0
    assert GraphReport(name="b", state="warming").timings_ms == {}


def test_report_imports_nothing_of_the_rest():
    for file in Path(model.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("torch")
                assert not name.startswith("pygraph") or name.startswith("pygraph.reporting")
