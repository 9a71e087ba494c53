"""Installs what is missing, and only that.

    python tools/ensure.py GROUP...     build runtime torch cuda demo bench test lint wheel

The accepted ranges are pyproject.toml's; what falls outside is installed at the exact version in
requirements/*.txt. An environment that satisfies the ranges costs no network access. torch is
special: a present one is never replaced, and one outside the range is only reported (PyGraph then
runs eagerly). Where there is no NVIDIA driver an absent one is installed as the CPU build, if pip
finds that where it is told to look. cuda.h is special too: any CUDA toolkit from 12.4 on will do,
the wheel is the last resort.
bench is what the paper's workloads import: installed as listed, without what those packages ask for
themselves, which would bring old packages and another torch.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
except ImportError:  # a bare environment still has pip's copy
    from pip._vendor.packaging.requirements import Requirement
    from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ("build", "runtime", "torch", "cuda", "demo", "bench", "test", "lint", "wheel")
CUDA_WHEEL = "nvidia-cuda-runtime"
WITHOUT_DEPENDENCIES = "bench"
TORCHVISION_AFTER_TORCH = 15  # torch 2.N goes with torchvision 0.(N + 15)
SPECIAL = {"torch": "torch", CUDA_WHEEL: "cuda"}  # groups of their own, wherever they are listed
CPU_COST = "It takes 1 GB of disk; a first run, with the build, about 3 minutes."
CUDA_COST = "It takes 5 GB of disk; a first run, with the build, about 7 minutes."
# Also accepted as a program on PATH, whoever installed it.
PROGRAMS = {"cmake", "ninja", "clang-format", "clang-tidy"}


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr)


def requirements(groups: list[str]) -> list[Requirement]:
    """The requirements of some groups, as pyproject.toml states them."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    lines = {"runtime": project["dependencies"], **project["optional-dependencies"]}
    lines["build"] = lines["build"] + pyproject["build-system"]["requires"]
    return [
        requirement
        for group in GROUPS
        for requirement in map(Requirement, lines.get(group, []))
        if SPECIAL.get(requirement.name, group) in groups
    ]


def found_version(name: str) -> str | None:
    """The version of an installed distribution, or of a program on PATH."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
    if name in PROGRAMS and (program := shutil.which(name)):
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and (match := re.search(r"\d+\.\d+(\.\d+)?", answer.stdout)):
            return match.group()
    return None


def has_cuda_headers() -> bool:
    script = ROOT / "cmake" / "CudaHeaders.cmake"
    command = ["cmake", f"-DPYGRAPH_PYTHON={sys.executable}", "-P", str(script)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def missing(groups: list[str]) -> list[Requirement]:
    absent = []
    for requirement in requirements(groups):
        if requirement.name == CUDA_WHEEL and has_cuda_headers():
            continue
        found = found_version(requirement.name)
        if requirement.name == "torchvision":
            if not found and (match := matching_torchvision()):
                absent.append(match)
            continue
        if found and requirement.specifier.contains(found, prereleases=True):
            continue
        if found and requirement.name == "torch":
            say(
                f"torch: found {found}, needed {requirement.specifier}. Left as it is: "
                "PyGraph will run eagerly with it."
            )
            continue
        absent.append(requirement)
    return absent


def matching_torchvision() -> Requirement | None:
    """The torchvision for the installed torch; None, and why, where an index has none."""
    torch = found_version("torch")
    version = re.match(r"2\.(\d+)\.", torch or "")
    if version and torch and "cpu" not in torch:
        return Requirement(f"torchvision==0.{int(version[1]) + TORCHVISION_AFTER_TORCH}.*")
    say(
        f"torchvision: found none, nor a release for torch {torch or '(not installed)'}. "
        "The workloads that need it are left out."
    )
    return None


def pins(newest_torch: bool = False) -> dict[str, str]:
    """Canonical name -> "name==version", from requirements/*.txt."""
    newest = ROOT / "requirements" / "torch-newest.txt"
    files = {newest} if newest_torch else {*newest.parent.glob("*.txt")} - {newest}
    lines = [
        line.split("#")[0].strip()
        for file in sorted(files)
        for line in file.read_text().splitlines()
    ]
    return {canonicalize_name(Requirement(line).name): line for line in lines if line}


def pip_install(
    wanted: list[str],
    options: tuple[str, ...] = (),
    python: str | Path = sys.executable,
    stderr: int | None = None,
) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--quiet", "--retries", os.environ.get("PYGRAPH_PIP_RETRIES", "3")]
    command += [*options, *wanted]
    return subprocess.run(command, check=False, stderr=stderr, text=True)


def install(absent: list[Requirement], options: tuple[str, ...] = ()) -> int:
    exact = pins()
    wanted = [exact.get(canonicalize_name(r.name), str(r)) for r in absent]
    say(f"installing {', '.join(wanted)}")
    return pip_install(wanted, options).returncode


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return shutil.which("nvidia-smi") is not None
    return True


def install_torch(absent: list[Requirement]) -> int:
    """The CPU build where there is no driver, if pip finds it; else what pip takes by itself."""
    torch = pins()["torch"]
    if has_driver():
        say(f"torch is missing. {CUDA_COST}")
        return install(absent)
    say(f"torch is missing, and there is no NVIDIA driver: installing {torch}+cpu. {CPU_COST}")
    if pip_install([f"{torch}+cpu"], stderr=subprocess.PIPE).returncode == 0:
        return 0
    say(
        f"pip finds no {torch}+cpu and takes its default, a CUDA build on most machines. "
        f"{CUDA_COST} To save that, stop this, install the CPU build as pytorch.org/get-started "
        f"says, with {sys.executable} -m pip, or name its index in PIP_EXTRA_INDEX_URL; then run "
        "this again."
    )
    return install(absent)


def main(arguments: list[str]) -> int:
    unknown = set(arguments) - set(GROUPS)
    if unknown or not arguments:
        print(f"usage: ensure.py GROUP...   groups: {' '.join(GROUPS)}", file=sys.stderr)
        return 2
    alone = ["torch", WITHOUT_DEPENDENCIES, "cuda"]
    rest = [group for group in arguments if group not in alone]
    # cuda is looked at last: finding cuda.h takes cmake.
    for groups in (["torch"], rest, [WITHOUT_DEPENDENCIES], ["cuda"]):
        absent = missing([group for group in groups if group in arguments])
        if not absent:
            continue
        if groups == ["torch"]:
            code = install_torch(absent)
        else:
            code = install(absent, ("--no-deps",) if groups == [WITHOUT_DEPENDENCIES] else ())
        if code:
            say(f"could not install {', '.join(r.name for r in absent)}")
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
