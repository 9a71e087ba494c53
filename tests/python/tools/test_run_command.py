"""./run: what it does before any set-up. Nothing here sets anything up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BROKEN = "#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n"

pytestmark = pytest.mark.skipif(not (ROOT / "run").exists(), reason="no checkout")


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH that has what ./run needs to start, and neither Python nor apt."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("bash", "cat", "dirname"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def run(*command: str, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": path, "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def find_base(*folders: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What ./run's function of this name finds, with a PATH of these folders."""
    path = ":".join(map(str, folders))
    return run("bash", "-c", 'source ./run; find_base; echo "$BASE"', path=path, **environment)


def test_an_unusable_shim_is_passed_over(tmp_path: Path, tools: Path) -> None:
    program(tmp_path / "shims" / "python3", BROKEN)
    program(tmp_path / "bin" / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    found = find_base(tmp_path / "shims", tmp_path / "bin", tools)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() and not found.stdout.startswith(str(tmp_path / "shims"))


def test_a_python_of_another_name_is_found_behind_unusable_ones(
    tmp_path: Path, tools: Path
) -> None:
    name = f"python3.{sys.version_info.minor}"
    program(tmp_path / "shims" / "python3", BROKEN)
    program(tmp_path / "shims" / name, BROKEN)
    program(tmp_path / "bin" / name, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    found = find_base(tmp_path / "shims", tmp_path / "bin", tools)
    assert found.returncode == 0, found.stderr


def test_without_a_usable_python_all_that_was_found_is_named(tmp_path: Path, tools: Path) -> None:
    shim, old = tmp_path / "shims" / "python3", tmp_path / "bin" / "python3"
    program(shim, BROKEN)
    program(old, '#!/bin/sh\n[ "$1" = -c ] && echo 3.8.1\n')
    found = find_base(shim.parent, old.parent, tools)
    assert found.returncode == 1
    assert f"{shim}: nothing that runs (pyenv: python3: command not found)" in found.stderr
    assert f"{old}: 3.8.1" in found.stderr
    assert "needed Python 3.11 to 3." in found.stderr and "PYTHON=" in found.stderr


def test_a_named_python_that_does_not_run_says_why(tmp_path: Path, tools: Path) -> None:
    shim = tmp_path / "shims" / "python3"
    program(shim, BROKEN)
    found = find_base(tools, PYTHON=str(shim))
    assert found.returncode == 1
    assert "found nothing that runs (pyenv: python3: command not found)" in found.stderr
    assert "needed 3.11" in found.stderr


MEASURED = (
    "bench",
    "bench-training",
    "bench-patterns",
    "bench-callables",
    "bench-selection",
    "bench-engine-record",
)


@pytest.mark.parametrize("command", [*MEASURED, "memcheck"])
def test_without_a_driver_a_measurement_is_refused_before_set_up(command: str, tools: Path) -> None:
    if Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists():
        pytest.skip("there is a driver")
    # Set-up would stop for want of a compiler.
    found = run("bash", "run", command, "--seconds", "1", path=str(tools))
    assert found.returncode == 1
    assert f"{command} needs an NVIDIA GPU" in found.stderr and "./run demo" in found.stderr


def require_driver(options: str, path: str) -> subprocess.CompletedProcess[str]:
    script = f"source ./run; require_driver bench {options}; echo through"
    return run("bash", "-c", script, path=path)


@pytest.mark.parametrize(
    "options", ["--list", "--report-only", "--compare a b", "--device cpu --tiny", "--help"]
)
def test_what_needs_no_gpu_is_let_through(options: str, tools: Path) -> None:
    assert require_driver(options, str(tools)).stdout == "through\n"


def test_a_driver_is_no_reason_to_refuse(tmp_path: Path, tools: Path) -> None:
    program(tmp_path / "bin" / "nvidia-smi", "#!/bin/sh\n")
    assert require_driver("", f"{tmp_path / 'bin'}:{tools}").stdout == "through\n"


def test_instructions_are_skipped_where_valgrind_cannot_be_had(tools: Path) -> None:
    script = 'source ./run; apt_install() { die "no network"; }; PY=false; instructions'
    done = run("bash", "-c", script, path=str(tools))
    assert done.returncode == 0 and "instructions: skipped: valgrind" in done.stderr
