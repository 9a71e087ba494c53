"""tools/instructions.py: what it reads of callgrind's output, and what it compares. Nothing is
counted here."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = {"machine": "x86_64", "compiler": "g++ 12", "python": "3.11.7", "torch": "2.13.0"}
ENGINE, PYTHON = "/x/pygraph/_engine.cpython-311-x86_64-linux-gnu.so", "/lib/libpython3.11.so"

pytestmark = pytest.mark.skipif(not (ROOT / "tools").exists(), reason="no checkout")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("instructions", ROOT / "tools/instructions.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "instructions", made)  # dataclasses look it up
    spec.loader.exec_module(made)
    monkeypatch.setattr(made, "toolchain", lambda: dict(TOOLS))
    return made


def dump(calls: int, dispatcher: int = 30) -> str:
    """Of `calls` calls. Python takes 100 for each, the dispatcher 30, the program's launch 50, what
    it calls of torch 20, and the twin 1,000, which calls a helper of the extension for 7. What
    stands around the calls takes 5,000."""
    program = "pygraph::torch_bridge::TensorProgram::launch(Arguments const&, Trial)"
    finish = "pygraph::torch_bridge::TensorProgram::finish(Arguments const&)"
    twin = "pygraph::twin::drain()"
    return f"""# callgrind format
version: 1
desc: Timerange: Basic block 1 - 2
desc: Trigger: Client Request: a case: {calls}

positions: line
events: Ir
summary: 1

ob={PYTHON}
fl=???
fn=eval
0 {5000 + 100 * calls}
cob={ENGINE}
cfi=???
cfn=pygraph::torch_bridge::Dispatcher::call(_object*)
calls={calls} 0
0 {(dispatcher + 1100) * calls}

ob={ENGINE}
fl=???
fn=pygraph::torch_bridge::Dispatcher::call(_object*)
0 {dispatcher * calls}
cfn={program}
calls={calls} 0
0 {1080 * calls}
cfn={finish}
calls={calls} 0
0 {3 * calls}

fn={program}
0 {50 * calls}
cob=/lib/libtorch_cpu.so
cfn=aoti_torch_empty_strided
calls={calls} 0
0 {20 * calls}
cfn={twin}
calls={calls} 0
0 {1007 * calls}

fn={finish}
0 {3 * calls}

fn={twin}
0 {1000 * calls}
cfn=helper()
calls={calls} 0
0 {7 * calls}

fn=helper()
0 {7 * calls}

ob=/lib/libtorch_cpu.so
fl=???
fn=aoti_torch_empty_strided
0 {20 * calls}

totals: 1
"""


def counted(tool: Any, *dumps: str) -> Any:
    return tool.differences(tool.parsed(each.splitlines()) for each in dumps)


def test_a_call_is_counted_without_the_twin_and_without_what_stands_around(tool: Any) -> None:
    found = counted(tool, dump(100), dump(200))
    assert found == {"a case": {"engine": 83, "program": 76, "call": 203}}


def test_what_happens_once_in_a_while_does_not_count(tool: Any) -> None:
    found = counted(tool, dump(100), dump(200, 90), dump(100, 70), dump(200))
    assert found == {"a case": {"engine": 83, "program": 76, "call": 203}}


def test_what_the_twin_and_others_call_is_ours(tool: Any) -> None:
    """The helper counts as soon as the dispatcher calls it as well."""

    def shared(calls: int) -> str:
        own = f"fn=pygraph::torch_bridge::Dispatcher::call(_object*)\n0 {30 * calls}\n"
        more = f"{own}cfn=helper()\ncalls={calls} 0\n0 0\n"
        assert own in dump(calls)
        return dump(calls).replace(own, more)

    found = counted(tool, shared(100), shared(200))
    assert found["a case"]["engine"] == 90


def test_a_stripped_extension_is_no_count(tool: Any) -> None:
    def stripped(calls: int) -> str:
        return re.sub(r"pygraph::[^\n]*", "???", dump(calls))

    with pytest.raises(SystemExit, match="stripped"):
        counted(tool, stripped(100), stripped(200))


@pytest.mark.parametrize(("dispatcher", "wrong"), [(30, 0), (34, 0), (35, 1), (20, 0)])
def test_five_percent_more_is_wrong_and_less_is_not(tool: Any, dispatcher: int, wrong: int) -> None:
    """Of 83 instructions 4 are 4.8%, and 5 are 6.0%."""
    before = counted(tool, dump(100), dump(200))
    now = counted(tool, dump(100, dispatcher), dump(200, dispatcher))
    lines, found = tool.compared(before, now)
    assert len(lines) == 3 and len(found) == wrong
    assert all("a case, engine: 88 (+6.0% of 83)" in each for each in found)


def test_a_case_that_is_new_or_gone_is_wrong(tool: Any) -> None:
    counts = counted(tool, dump(100), dump(200))
    _, wrong = tool.compared({"gone": counts["a case"]}, counts)
    assert wrong == ["a case: only counted", "gone: only recorded"]


def test_a_toolchain_without_an_entry_is_told_how_to_add_one(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.json"
    monkeypatch.setattr(tool, "count", lambda: counted(tool, dump(100), dump(200)))
    given = ["--record", str(record)]
    assert tool.main(given) == 0 and not record.exists()
    said = capsys.readouterr().out
    assert "no entry for x86_64, g++ 12, 3.11.7, 2.13.0" in said and "--update" in said

    assert tool.main([*given, "--update"]) == 0 and tool.main(given) == 0
    monkeypatch.setattr(tool, "count", lambda: counted(tool, dump(100, 40), dump(200, 40)))
    assert tool.main(given) == 1
    assert "a case, engine: 93 (+12.0% of 83)" in capsys.readouterr().out
    monkeypatch.setattr(tool, "toolchain", lambda: {**TOOLS, "torch": "2.14.0"})
    assert tool.main(given) == 0
    assert tool.main([*given, "--update"]) == 0
    assert len(json.loads(record.read_text())["entries"]) == 2
    assert tool.main([*given, "--update"]) == 0
    assert len(json.loads(record.read_text())["entries"]) == 2


def test_the_record_is_of_the_calls_that_are_counted(tool: Any) -> None:
    record = json.loads(tool.RECORD.read_text())
    calls = set(
        re.findall(r'^    "([^"]+)": lambda', (ROOT / "tools/steady_calls.py").read_text(), re.M)
    )
    assert len(calls) > 5
    for entry in record["entries"]:
        assert set(entry["toolchain"]) == set(TOOLS)
        assert set(entry["counts"]) == calls
