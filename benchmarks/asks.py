"""What torch's own CUDA graphs make of the tests of training, as a record.

    ./run python benchmarks/asks.py benchmarks/results/asks-reduce-overhead.json

Runs each test of tests/python/runtime/test_training_*.py on the GPU with `--reduce-overhead`, in a
process of its own, since some end in a crash or never. "right" says that the mode's values were
torch's default's; "fails" comes with what it raised or got wrong. With --cited only those whose
docstring names a public thread.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import record  # noqa: E402
from benchmarks.harness.environment import environment  # noqa: E402

TESTS = sorted(
    path.relative_to(ROOT) for path in ROOT.glob("tests/python/runtime/test_training_*.py")
)
PYTEST = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider"]
LONGEST = 240  #: characters of a message


def threads() -> dict[str, list[str]]:
    """By test function: the public threads that its docstring names."""
    found: dict[str, list[str]] = {}
    for path in TESTS:
        for each in ast.parse((ROOT / path).read_text()).body:
            if isinstance(each, ast.FunctionDef):
                found[each.name] = re.findall(r"[\w/]*#\d{4,}", ast.get_docstring(each) or "")
    return found


def collect() -> list[str]:
    asked = [*PYTEST, "--collect-only", "--reduce-overhead", "-k", "cuda", *map(str, TESTS)]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "::" in line]


def tell(test: str, limit: float) -> dict[str, Any]:
    """Runs one test; its outcome in a few words."""
    with TemporaryDirectory() as folder:
        xml = Path(folder) / "outcome.xml"
        command = [*PYTEST, "--reduce-overhead", f"--junitxml={xml}", test]
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        name = test.removeprefix("tests/python/runtime/")
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return {"test": name, "outcome": "does not end", "message": f"after {limit:g} s"}
        if ended.returncode < 0:
            return {"test": name, "outcome": "crashes", "message": f"signal {-ended.returncode}"}
        return {"test": name, **read(xml)}


def read(xml: Path) -> dict[str, Any]:
    case = next(ElementTree.parse(xml).iter("testcase"))
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            message = " ".join((found.get("message") or "").split()).replace(f"{ROOT}/", "")
            message = message[:LONGEST]
            right = kind == "skipped" and "is right" in message
            outcome = "right" if right else "skipped" if kind == "skipped" else "fails"
            return {"outcome": outcome, "message": message}
    return {"outcome": "right", "message": "compares nothing that depends on the mode"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cited", action="store_true")
    parser.add_argument("--limit", type=float, default=90, help="seconds that a test may take")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    cited = threads()
    tests = [(test, cited[test.partition("::")[2].partition("[")[0]]) for test in collect()]
    tests = [(test, named) for test, named in tests if named or not options.cited]

    def one(test: tuple[str, list[str]]) -> dict[str, Any]:
        found = {**tell(test[0], options.limit), "threads": test[1]}
        print(f"{found['outcome']:14} {found['test']}: {found['message']}", flush=True)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(one, tests))
    content = {
        "env": environment(),
        "command": f"python benchmarks/asks.py {'--cited ' * options.cited}{options.out.name}",
        "mode": "reduce-overhead, with steps marked, and results and gradients cloned",
        "summary": dict(Counter(each["outcome"] for each in found)),
        "tests": found,
    }
    record.write(options.out, content)
    print(json.dumps(content["summary"]))


if __name__ == "__main__":
    main()
