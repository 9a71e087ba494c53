"""The paper's benchmark as a command, on the CPU with tiny workloads: processes, a file that is
gone on with, progress, and what is said where something is missing."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rich.console import Console  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from benchmarks.__main__ import app  # noqa: E402
from benchmarks.harness.jobs import Outcome  # noqa: E402
from benchmarks.paper import command, costs  # noqa: E402
from benchmarks.paper.progress import Progress, summary  # noqa: E402
from benchmarks.paper.record import Document, Result, Row  # noqa: E402
from benchmarks.paper.report.figures import over  # noqa: E402
from benchmarks.paper.suite import PaperJob, Plan, Suite  # noqa: E402
from benchmarks.paper.workloads import catalogue, sources  # noqa: E402

ENV = {"gpu": "a GPU", "driver": "1", "torch": "2", "date": "today"}
TRY = ["bench", "--device", "cpu", "--tiny", "--seconds", "0.1", "--preparing", "2"]


def quiet() -> Console:
    return Console(file=io.StringIO(), width=160)


def said(console: Console) -> str:
    file: Any = console.file
    return str(file.getvalue())


def timed(name: str, mode: str, us: float) -> Result:
    return Result(name, 1, mode, correct=True, latency_us=us)


def test_the_command_measures_reports_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "paper.json"
    runner = CliRunner()
    arguments = [*TRY, "--out", str(out), "--workloads", "DGPT2"]
    first = runner.invoke(app, arguments)
    assert first.exit_code == 0, first.output
    content = json.loads(out.read_text())
    records = content["workloads"]["DGPT2"]["records"]
    assert [each["mode"] for each in records] == ["eager", "default", "pygraph"]
    assert all(each["correct"] and each["latency_us"] for each in records)
    assert len(content["runs"]) == 1 and content["runs"][0]["env"]["torch"] == torch.__version__
    assert str(tmp_path) not in json.dumps(content)
    assert "DGPT2" in (tmp_path / "paper.md").read_text()
    assert "<html" in (tmp_path / "paper.html").read_text()

    again = runner.invoke(app, arguments)
    assert again.exit_code == 0 and json.loads(out.read_text()) == content  # nothing to do

    pretend(monkeypatch, RIGHT)  # what a worker measures was seen above
    second = runner.invoke(app, [*TRY, "--out", str(out), "--workloads", "DBV2"])
    assert second.exit_code == 0, second.output
    content = json.loads(out.read_text())
    assert list(content["workloads"]) == ["DBV2", "DGPT2"]  # as in the paper's table
    assert [content["workloads"][name]["run"] for name in ("DGPT2", "DBV2")] == [0, 1]


def test_what_cannot_be_asked_for() -> None:
    runner = CliRunner()
    for arguments, text in (
        ([*TRY, "--workloads", "NOSUCH"], "NOSUCH"),
        ([*TRY, "--modes", "fastest"], "fastest"),
        (["bench", "--report-only", "--out", "nowhere.json"], "nowhere.json"),
    ):
        done = runner.invoke(app, arguments)
        assert done.exit_code == 2 and text in done.output
    if not torch.cuda.is_available():
        done = runner.invoke(app, ["bench"])
        assert done.exit_code == 2 and "needs an NVIDIA GPU" in done.output


def test_a_list_of_the_workloads() -> None:
    console = quiet()
    command.listing(console)
    assert all(name in said(console) for name in catalogue.WORKLOADS)


def planned(*names: str, **options: Any) -> Plan:
    return Plan(names, device="cpu", tiny=True, **options)


def pretend(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Workers run `code`, with the workload's name in sys.argv[1]."""
    script = f"import json, os, sys, time\nout = sys.argv[sys.argv.index('--out') + 1]\n{code}"
    own = PaperJob.command

    def instead(job: PaperJob) -> list[str]:
        return [sys.executable, "-c", script, job.model] if job.kind == "measure" else own(job)

    monkeypatch.setattr(PaperJob, "command", instead)


def run_with(monkeypatch: pytest.MonkeyPatch, code: str, plan: Plan, path: Path) -> Suite:
    """A suite whose workers pretend."""
    pretend(monkeypatch, code)
    monkeypatch.setattr(Suite, "_environment", lambda self: ENV)
    made = Suite(plan, Document(path), "pygraph bench", quiet())
    made.run()
    return made


RIGHT = """
row = {"about": {}, "records": [{"workload": sys.argv[1], "batch": 1, "mode": "pygraph",
       "correct": True, "latency_us": 5.0, "of_a_later_version": 1}]}
json.dump({"result": {"env": {}, "row": row}}, open(out, "w"))
"""


def test_a_crash_or_a_time_out_costs_only_that_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = f"""
if sys.argv[1] == "DBV2":
    print("no such file: /home/somebody/secret/thing.py"); os._exit(9)
if sys.argv[1] == "MBERT":
    time.sleep(60)
{RIGHT}"""
    plan = planned("DBV2", "MBERT", "DGPT2", limit_s=2.0)
    made = run_with(monkeypatch, code, plan, tmp_path / "r.json")
    rows = Document(tmp_path / "r.json").rows
    assert rows["DBV2"].error == "exit status 9: no such file: thing.py"
    kept = (tmp_path / "r.logs" / "DBV2.txt").read_text()
    assert kept == "no such file: /home/somebody/secret/thing.py\n"
    assert str(rows["MBERT"].error).startswith("ended after")
    assert rows["DBV2"].about["batch"] == 1 and not rows["DBV2"].records
    assert rows["DGPT2"].latency("pygraph") == 5.0
    assert len(made.problems()) == 2
    assert "DBV2: exit status 9" in said(made.console)

    # What failed is tried again; what was measured is not.
    again = run_with(monkeypatch, RIGHT.replace("5.0", "7.0"), plan, tmp_path / "r.json")
    rows = again.document.rows
    assert [rows[name].latency("pygraph") for name in plan.workloads] == [7.0, 7.0, 5.0]
    assert [rows[name].run for name in plan.workloads] == [1, 1, 0] and not again.problems()


def test_what_a_failed_mode_printed_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = f"""
print("a long story")
{RIGHT}
if sys.argv[1] == "DBV2":
    wrong = dict(row["records"][0], correct=False, error="off")
    json.dump({{"result": {{"env": {{}}, "row": dict(row, records=[wrong])}}}}, open(out, "w"))
"""
    run_with(monkeypatch, code, planned("DBV2", "MBERT"), tmp_path / "r.json")
    assert [each.name for each in (tmp_path / "r.logs").iterdir()] == ["DBV2.txt"]
    assert "a long story" in (tmp_path / "r.logs" / "DBV2.txt").read_text()


def test_large_workloads_do_not_share_the_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = f"""
place = {str(tmp_path)!r} + "/" + sys.argv[1]
open(place, "w").write(str(time.monotonic()))
time.sleep(0.4)
open(place, "a").write(" " + str(time.monotonic()))
{RIGHT}"""
    monkeypatch.setitem(ENV, "gpu_memory_gib", 100.0)
    run_with(monkeypatch, code, planned("DR-I", "MBERT", "DBV2", preparing=3), tmp_path / "r.json")
    spans = {
        name: [float(each) for each in (tmp_path / name).read_text().split()]
        for name in ("DR-I", "MBERT", "DBV2")
    }

    def at_once(a: str, b: str) -> bool:
        return spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1]

    assert at_once("MBERT", "DBV2")
    assert not at_once("DR-I", "MBERT") and not at_once("DR-I", "DBV2")


def test_what_there_was_no_time_for_is_left_for_another_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = planned("DBV2", "DGPT2", preparing=1, budget_s=0.0)
    made = run_with(monkeypatch, RIGHT, plan, tmp_path / "r.json")
    assert made.document.rows == {} and made.problems() == ["DBV2: not run", "DGPT2: not run"]


def test_rows_of_two_machines_do_not_mix(tmp_path: Path) -> None:
    document = Document(tmp_path / "r.json")
    assert document.begin(ENV, "first") == 0
    assert document.begin({**ENV, "date": "tomorrow"}, "second") == 1
    with pytest.raises(ValueError, match="gpu a GPU"):
        document.begin({**ENV, "gpu": "another"}, "third")


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    document = Document(path)
    document.begin(ENV, "first")
    document.rows["DBV2"] = Row("DBV2", {"batch": 1}, records=[timed("DBV2", "pygraph", 3.0)])
    document.save()
    assert os.listdir(tmp_path) == ["r.json"]
    found = Document(path)
    assert found.rows == document.rows and found.runs == document.runs
    found.drop(["DBV2"])
    assert not found.done("DBV2") and document.done("DBV2")


def test_results_know_their_coverage_and_ratios() -> None:
    result = Result("X", 1, "pygraph", kernels=8.0, kernels_in_graphs=6.0)
    assert result.coverage == 0.75 and Result("X", 1, "eager").coverage is None
    row = Row("X", records=[timed("X", "default", 6.0), timed("X", "pygraph", 4.0)])
    assert over("default", "pygraph")(row) == 1.5 and over("default", "floor")(row) is None
    wrong = Result("X", 1, "pygraph", correct=False, latency_us=1.0)
    assert Row("X", records=[wrong]).latency("pygraph") is None
    wrong.is_bound = True  # a floor that is no graph is right by itself
    assert wrong.timed


def test_progress_says_what_each_is_at(tmp_path: Path) -> None:
    console = quiet()
    with Progress(console, ["A", "B", "C"], tmp_path) as progress:
        (tmp_path / "B").write_text("compile pygraph")
        assert progress.remaining_s() is None
        row = Row("A", records=[timed("A", "default", 1234.0), Result("A", 1, "pygraph")])
        progress.measured("A", row, 3.0)
        progress.tick()
        console.print(progress.table())
        assert progress.remaining_s() is not None
    text = said(console)
    assert "default 1,234, pygraph failed us (3 s)" in text
    assert "compile pygraph" in text and "1 of 3" in text and "to go" in text
    assert summary(None) == "not run" and summary(Row("A", error="no luck")) == "no luck"


def test_outcomes_keep_the_papers_order() -> None:
    made = Suite(planned("DGPT2", "DBV2"), Document(Path("nowhere.json")), "", quiet())
    for name in ("DGPT2", "DBV2"):
        row = {"about": {}, "records": []}
        job = PaperJob("measure", name)
        made._store(Outcome(job, 1.0, {"env": {}, "row": row}))
    assert list(made.document.rows) == ["DBV2", "DGPT2"]


def test_a_process_that_had_to_be_given_up_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = {"floor_error": "no capture", "cold_s": {"default": 2.5}}
    own, began = PaperJob.command, []

    def command(job: PaperJob) -> list[str]:
        if job.kind != "measure":
            return own(job)
        began.append(job.resumed)
        assert own(job)[-2:] == ["--resumed", job.resumed]
        result = json.dumps({"again": known} if job.resumed == "{}" else {"row": {"records": []}})
        write = f"open(sys.argv[sys.argv.index('--out') + 1], 'w').write({result!r})"
        return [sys.executable, "-c", f"import sys; {write.replace(repr(result), wrapped(result))}"]

    def wrapped(result: str) -> str:
        return repr(f'{{"result": {result}}}')

    monkeypatch.setattr(PaperJob, "command", command)
    monkeypatch.setattr(Suite, "_environment", lambda self: ENV)
    made = Suite(planned("DGPT2"), Document(tmp_path / "r.json"), "pygraph bench", quiet())
    made.run()
    assert [json.loads(each) for each in began] == [{}, known]
    assert made.document.rows["DGPT2"].error is None


def test_costs_are_of_workloads_that_there_are() -> None:
    assert set(costs.PREPARING) <= set(catalogue.WORKLOADS)
    assert costs.of("DR-I").memory_gib > costs.of("ALNET").memory_gib


def test_the_longest_are_begun_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = planned("ALNET", "MBERT", "DALLE2", preparing=1)
    made = run_with(monkeypatch, RIGHT, plan, tmp_path / "r.json")
    lines = [line.split(":")[0].strip() for line in said(made.console).splitlines()]
    assert lines == ["DALLE2", "MBERT", "ALNET"]


def test_a_checkout_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGRAPH_TORCHBENCH", "")  # put back behind the test: the command sets it
    chosen = ["--workloads", "EOS", "--out", str(tmp_path / "r.json")]
    done = CliRunner().invoke(app, [*TRY, *chosen, "--torchbench", str(tmp_path)])
    assert done.exit_code == 2 and "torchbenchmark" in done.output


def test_without_a_checkout_its_workloads_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYGRAPH_TORCHBENCH", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sources, "TORCHBENCH_URL", (tmp_path / "nowhere").as_uri())
    console = quiet()
    document = Document(tmp_path / "r.json")
    assert command.bench(planned("EOS"), document, tmp_path / "r", console) == 1
    text = said(console)
    assert "no TorchBench, so EOS cannot run: git fetch" in text
    assert "EOS: TorchBench: not found" in text
    assert (tmp_path / "r.md").exists()
