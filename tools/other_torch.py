"""Runs tests with another torch than the environment's own.

    python tools/other_torch.py VERSION [--install] [--all] [pytest's arguments]

VERSION is a release of torch, or `newest` for the one in requirements/torch-newest.txt. It gets an
environment of its own, build/torch-VERSION, with the pinned versions of what tests need besides,
and uses the extension that has been built for this Python. Without arguments for pytest a short set
runs: what meets torch's private names. --all: tests/python, tests/training and tests/trust.
--install only installs; another call waits for it.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from ensure import ROOT, has_driver, pins, pip_install, requirements

UNREACHABLE = 75  #: exit status: pip could not reach an index
SHORT = """backend hook before_wrappers before_guards speculation_code entry_point index_bounds
    partition plan tensors training_autograd training_random twin_compile twin_random fallback
    versions scalars keep"""
ALL = ["tests/python", "tests/training", "tests/trust"]


def release(name: str) -> str:
    """The release of torch that `name` stands for. Exits with a message if PyGraph has no use for
    it."""
    if name == "newest":
        name = pins(newest_torch=True)["torch"].removeprefix("torch==")
    (torch,) = requirements(["torch"])
    if not re.fullmatch(r"\d+\.\d+\.\d+", name):
        sys.exit(f"test-torch: {name!r} is no release of torch; name one like 2.15.0, or newest")
    if not torch.specifier.contains(name):
        sys.exit(f"test-torch: torch {name}: needed torch{torch.specifier}")
    return name


def install(version: str, directory: Path) -> int:
    """Makes the environment unless it is there. Returns an exit status."""
    others = [pins()[r.name] for r in requirements(["runtime", "test"])]
    complete, wanted = directory / "complete", "\n".join([sys.version, *others])
    if complete.exists() and complete.read_text() == wanted:
        return 0
    print(f"test-torch: installing torch {version} in {directory}", file=sys.stderr)
    venv.create(directory, clear=True, with_pip=True)
    # A CPU build is a tenth of the size; not every index has one.
    if has_driver() or pip(directory, [f"torch=={version}+cpu", *others], quiet=True):
        status = pip(directory, [f"torch=={version}", *others])
        if status:
            print(f"test-torch: could not install torch {version}", file=sys.stderr)
            return status
    add_pygraph(directory)
    complete.write_text(wanted)
    return 0


def pip(directory: Path, wanted: list[str], quiet: bool = False) -> int:
    run = pip_install(wanted, ("--retries", "1"), directory / "bin/python", subprocess.PIPE)
    if not run.returncode or quiet:
        return run.returncode
    print(run.stderr, end="", file=sys.stderr)
    return UNREACHABLE if "connection broken by" in run.stderr else 1


def add_pygraph(directory: Path) -> None:
    """The working tree, and what this environment's installation says of its entry points."""
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "pygraph.pth").write_text(f"{ROOT / 'python'}\n")
    installed = importlib.metadata.distribution("pygraph-cuda")
    for file in installed.files or ():
        if file.parent.suffix == ".dist-info":
            (packages / file.parent).mkdir(exist_ok=True)
            shutil.copy(installed.locate_file(file), packages / file)


def run_tests(directory: Path, arguments: list[str]) -> int:
    python = str(directory / "bin/python")
    code = "import sys, torch; sys.exit(torch.cuda.is_available())"
    workers = [] if subprocess.run([python, "-c", code], check=False).returncode else ["-n", "auto"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-m", "pytest", "-q", *workers, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def short_set() -> list[str]:
    """The files of SHORT, by their path."""
    files = {path.stem: path for path in ROOT.glob("tests/python/**/test_*.py")}
    return [str(files[f"test_{name}"].relative_to(ROOT)) for name in SHORT.split()]


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        sys.exit("test-torch: which torch? Name a release like 2.15.0, or newest")
    version, *rest = arguments
    version = release(version)
    directory = ROOT / "build" / f"torch-{version}"
    directory.parent.mkdir(exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status = install(version, directory)
        if status == 0 and rest == ["--all"]:
            status, rest = pip(directory, [pins()["matplotlib"]]), ALL
    if status or rest == ["--install"]:
        return status
    return run_tests(directory, rest or short_set())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
