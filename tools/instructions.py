"""Instructions of steady calls (tools/steady_calls.py), counted by callgrind on the CPU twin.

    python tools/instructions.py             fails where a call takes 5% more than the record says
    python tools/instructions.py --update    records what is counted, for this tool-chain

A call is counted three times, each time without what the twin does in the driver's place:

engine     what it executes in the extension: independent of torch's and Python's own code
program    the program, from its launch to its results, with all that these call
call       all of it, from Python and back

The record has an entry for each tool-chain, and a count is compared with that of the same one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks/results/instructions.json"
ALLOWED = 0.05
EXTENSION = re.compile(r"/_engine\.[^/]*\.so$")
TWIN = "pygraph::twin::"
PROGRAM = (
    "pygraph::torch_bridge::TensorProgram::launch(",
    "pygraph::torch_bridge::TensorProgram::finish(",
)
INHERITED = ("HOME", "LD_LIBRARY_PATH", "PATH")
"""Of the environment, whose size moves memory."""

Function = tuple[str, str]
"""The object file that it is in, and its name."""
Counts = dict[str, dict[str, int]]
"""{case: {"engine": ..., "program": ..., "call": ...}}"""


# ------------------------------------------------------------------------- what callgrind writes


@dataclass
class Profile:
    """One dump. Instructions of each function itself, and of its calls of others, all included."""

    name: str = ""
    own: Counter[Function] = field(default_factory=Counter)
    calls: Counter[tuple[Function, Function]] = field(default_factory=Counter)

    def twins(self) -> set[Function]:
        """The twin's functions, and those of the extension that it alone calls."""
        callers: dict[Function, set[Function]] = {}
        for caller, called in self.calls:
            callers.setdefault(called, set()).add(caller)
        found = {each for each in {*self.own, *callers} if TWIN in each[1]}
        while True:
            more = {
                called
                for called, by in callers.items()
                if called not in found and EXTENSION.search(called[0]) and by - {called} <= found
            }
            if not more:
                return found
            found |= more

    def counts(self) -> dict[str, int]:
        twins = self.twins()
        driver = sum(
            cost
            for (caller, called), cost in self.calls.items()
            if called in twins and caller not in twins
        )
        program = sum(
            cost for (_, called), cost in self.calls.items() if called[1].startswith(PROGRAM)
        )
        engine = sum(
            cost
            for each, cost in self.own.items()
            if EXTENSION.search(each[0]) and each not in twins
        )
        return {
            "engine": engine,
            "program": program - driver,
            "call": sum(self.own.values()) - driver,
        }


def parsed(lines: Iterable[str]) -> Profile:
    """Callgrind's format without compression of names and positions (valgrind's manual, Callgrind
    Format Specification)."""
    found = Profile()
    file = name = ""
    called: Function = ("", "")
    callee_file: str | None = None
    entered = False
    for line in lines:
        key, _, value = line.rstrip("\n").partition("=")
        if key.startswith("desc: Trigger: Client Request: "):
            found.name = key.removeprefix("desc: Trigger: Client Request: ")
        elif key == "ob":
            file = value
        elif key == "fn":
            name = value
        elif key == "cob":
            callee_file = value
        elif key == "cfn":
            called, callee_file = (callee_file or file, value), None
        elif key == "calls":
            entered = True
        elif key[:1].isdigit():
            cost = int(key.split()[1])
            if entered:
                found.calls[(file, name), called] += cost
            else:
                found.own[file, name] += cost
            entered = False
    return found


def differences(profiles: Iterable[Profile]) -> Counts:
    """What a call of each case takes. Dumps are named "case: number of calls", two numbers for a
    case; of several dumps of one name the least counts."""
    dumps: dict[str, dict[int, list[dict[str, int]]]] = {}
    for profile in profiles:
        case, _, calls = profile.name.rpartition(": ")
        if case:
            dumps.setdefault(case, {}).setdefault(int(calls), []).append(profile.counts())
    found = {}
    for case, by_calls in dumps.items():
        few, many = sorted(by_calls)
        found[case] = {
            name: round((least(by_calls[many], name) - least(by_calls[few], name)) / (many - few))
            for name in by_calls[few][0]
        }
        if min(found[case].values()) <= 0:
            raise SystemExit(f"instructions: {case}: counted {found[case]}; is it stripped?")
    return found


def least(counts: Iterable[Mapping[str, int]], name: str) -> int:
    return min(each[name] for each in counts)


# ---------------------------------------------------------------------------------------- counting


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def first_line(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def toolchain() -> dict[str, str]:
    """What counts depend on besides this repository."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    ways = [each for each in ("--enable-optimizations", "--with-lto") if each in flags]
    return {
        "machine": platform.machine(),
        "compiler": first_line(compiler(), "--version").partition(" ")[2],
        "python": " ".join([platform.python_version(), *ways]),
        "torch": version("torch"),
    }


def count() -> Counts:
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder, "marks.so")
        source = ROOT / "tools/steady_calls.cpp"
        flags = ["-O2", "-fno-builtin", "-shared", "-fPIC"]
        subprocess.run([compiler(), *flags, str(source), "-o", str(marks)], check=True)
        fixed = ["setarch", "-R"]
        if subprocess.run([*fixed, "true"], capture_output=True).returncode != 0:
            fixed = []
        counted = subprocess.run(
            [
                *fixed,
                *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--compress-strings=no"),
                *("--compress-pos=no", f"--callgrind-out-file={folder}/out", sys.executable),
                *(str(ROOT / "tools/steady_calls.py"), str(marks)),
            ],
            cwd=ROOT,
            env={
                **{name: os.environ[name] for name in INHERITED if name in os.environ},
                "PYTHONHASHSEED": "0",
                "LD_PRELOAD": str(marks),
            },
            capture_output=True,
            text=True,
        )
        if counted.returncode != 0:
            raise SystemExit(f"instructions: {counted.stderr}{counted.stdout}")
        dumps = sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        return differences(parsed(path.read_text().splitlines()) for path in dumps)


# --------------------------------------------------------------------------------------- comparing


def entry_of(record: Mapping[str, Any], tools: Mapping[str, str]) -> Counts | None:
    for entry in record["entries"]:
        if entry["toolchain"] == tools:
            return entry["counts"]
    return None


def updated(record: Mapping[str, Any], tools: Mapping[str, str], counts: Counts) -> dict[str, Any]:
    others = [each for each in record["entries"] if each["toolchain"] != tools]
    return {"entries": [*others, {"toolchain": dict(tools), "counts": counts}]}


def compared(before: Counts, now: Counts) -> tuple[list[str], list[str]]:
    """A line for each count, and what is wrong."""
    lines, wrong = [], []
    for case in sorted({*before, *now}):
        if case not in before or case not in now:
            where = "counted" if case in now else "recorded"
            wrong.append(f"{case}: only {where}")
            continue
        for name, value in now[case].items():
            change = value / before[case][name] - 1
            lines.append(f"{case}, {name}: {value:,} ({change:+.1%} of {before[case][name]:,})")
            if change > ALLOWED:
                wrong.append(lines[-1])
    return lines, wrong


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="write the record")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args(given)
    tools, now = toolchain(), count()
    record = json.loads(options.record.read_text()) if options.record.exists() else {"entries": []}
    if options.update:
        options.record.write_text(json.dumps(updated(record, tools, now), indent=1) + "\n")
        print(f"instructions: recorded for {', '.join(tools.values())}")
        return 0
    before = entry_of(record, tools)
    if before is None:
        print(json.dumps(now, indent=1))
        print(f"instructions: no entry for {', '.join(tools.values())}: nothing is compared")
        print("To add one: ./run instructions --update, on the code that others are compared with")
        return 0
    lines, wrong = compared(before, now)
    print("\n".join(lines))
    if wrong:
        print(f"instructions: more than {ALLOWED:.0%} over the record:", *wrong, sep="\n  ")
        print("Where that is meant: ./run instructions --update, and say why in the commit")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
