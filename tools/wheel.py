"""Builds wheels for any Linux with glibc 2.28 or newer, and tries one in a clean environment.

    python tools/wheel.py build [--python PYTHON ...]     into dist/; default: for this Python
    python tools/wheel.py test [WHEEL]                    default: the one that `build` makes

auditwheel checks a wheel against its platform's policy and names it after that. A clean environment
has the wheel, what it asks for, and nothing else: no numpy, and no compiler on its PATH. Its torch
is this Python's, linked.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:  # a bare environment still has pip's copy
    from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "pygraph"
PLATFORM = f"manylinux_2_28_{platform.machine()}"


class Failure(Exception):
    """What went wrong, for the user."""


def run(
    *command: str | Path, folder: Path = ROOT, environment: dict[str, str] | None = None
) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failure(f"failed: {' '.join(words)}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def pip(python: Path, *arguments: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--python", python, *arguments)


# --- build ---------------------------------------------------------------------------------------


def with_build_tools(python: Path) -> Path:
    """This interpreter, or one of that version in an environment with what a build needs."""
    if python == Path(sys.executable):
        return python
    version = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    environment = ROOT / "build" / f"wheel-python{version}"
    found = environment / "bin" / "python"
    if not found.exists():
        run(python, "-m", "venv", environment)
    run(found, ROOT / "tools" / "ensure.py", "build", "cuda")
    return found


def check_files(wheel: Path) -> None:
    """The package's sources, one engine with its annotations, the licence; nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if not name.endswith("/")}
    metadata = {name for name in found if ".dist-info/" in name}
    engine = {name for name in found if name.startswith("pygraph/_engine.")}
    sources = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
        if not path.name.startswith("_engine.")
    }
    if sources != found - metadata - engine:
        raise Failure(f"{wheel.name} and {PACKAGE} differ: {sources ^ (found - metadata - engine)}")
    if sorted(Path(name).suffix for name in engine) != [".pyi", ".so"]:
        raise Failure(f"{wheel.name}: found {engine}, needed one engine and its annotations")
    if not any(name.endswith("/LICENSE") for name in metadata):
        raise Failure(f"{wheel.name}: the licence is missing")


def build(python: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        pip(
            with_build_tools(python),
            *("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder),
            "--config-settings=cmake.define.PYGRAPH_PORTABLE=ON",
            "--config-settings=build-dir=build/portable-{wheel_tag}",
            ROOT,
        )
        (raw,) = Path(folder).iterdir()
        check_files(raw)
        run("auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", folder, raw)
        raw.unlink()
        (checked,) = Path(folder).iterdir()
        (ROOT / "dist").mkdir(exist_ok=True)
        wheel = Path(shutil.copy(checked, ROOT / "dist"))
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.2f} MB", flush=True)
    return wheel


# --- test ----------------------------------------------------------------------------------------


def needed_by(name: str, known: dict[str, Distribution]) -> dict[str, Distribution]:
    """Adds to `known` the installed distribution of that name, and what it asks for."""
    if name not in known:
        known[name] = distribution(name)
        for each in map(Requirement, known[name].requires or []):
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                needed_by(each.name, known)
    return known


def link(packages: dict[str, Distribution], site: Path) -> None:
    for package in packages.values():
        for name in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(str(package.locate_file(name)))


def make_clean(environment: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", environment)
    (site,) = environment.glob("lib/python3*/site-packages")
    packages = needed_by("torch", {})
    link(packages, site)
    # Named with their versions: pip must not replace what is only linked.
    exact = [f"{name}=={package.version}" for name, package in packages.items()]
    pip(environment / "bin" / "python", "install", "--quiet", wheel, *exact)


def test(wheel: Path) -> None:
    environment = ROOT / "build" / "wheel-env"
    make_clean(environment, wheel)
    programs = environment / "bin"
    pip(programs / "python", "check")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "pygraph").mkdir()  # as in the folder of a clone: it must not hide the package
        script = shutil.copy(ROOT / "tests" / "wheel" / "first_use.py", folder)
        clean = {"PATH": str(programs), "HOME": home}
        for command in (
            (programs / "python", script),
            (programs / "pygraph", "plan", "--model", "mlp-1"),
            (programs / "pygraph", "info"),
        ):
            print(run(*command, folder=folder, environment=clean))
    print(f"{wheel.name} works in a clean environment")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds wheels, and tries one.")
    commands = parser.add_subparsers(dest="command", required=True)
    builds = commands.add_parser("build")
    builds.add_argument("--python", type=Path, nargs="+", default=[Path(sys.executable)])
    tests = commands.add_parser("test")
    tests.add_argument("wheel", type=Path, nargs="?")
    arguments = parser.parse_args()
    try:
        if arguments.command == "build":
            for python in arguments.python:
                build(python)
        else:
            test((arguments.wheel or build(Path(sys.executable))).resolve())
    except Failure as failure:
        print(f"wheel: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
