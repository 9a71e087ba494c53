"""Where the workloads' programs come from: libraries, and a checkout of TorchBench.

TorchBench's model sources are imported from that checkout at run time; none of them is part of
PyGraph. Only the model files are run: its packages' own `__init__` modules want the whole harness.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

DISTRIBUTION = "pygraph-cuda"
TORCHBENCH_URL = "https://github.com/pytorch/benchmark"
TORCHBENCH_COMMIT = "0e83c440a51cd63464fee34724d01b7c814ce39b"
TORCHBENCH = "torchbench"
VARIABLE = "PYGRAPH_TORCHBENCH"
ROOT = "torchbenchmark"

FOLDERS = (
    "models/BERT_pytorch/bert_pytorch",
    "models/dcgan",
    "models/dlrm",
    "models/nvidia_deeprecommender",
    "models/pyhpc_equation_of_state",
    "models/pyhpc_turbulent_kinetic_energy",
    "models/speech_transformer/speech_transformer",
)
"""What of TorchBench is used, below its folder torchbenchmark."""

_ONLY_FOUND = {"dalle2_pytorch", "clip"}
"""Not imported to see whether they are there: their `__init__` wants more than is needed."""


class NoCheckout(RuntimeError):
    """There is no usable checkout of TorchBench, and this is what to do about it."""


def cache_folder() -> Path:
    """Where `obtain` puts the checkout."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "pygraph" / "torchbench"


def torchbench() -> Path | None:
    """The checkout: the folder that holds torchbenchmark/; None if there is none.

    Raises NoCheckout if the environment names a folder that is not one.
    """
    if named := os.environ.get(VARIABLE):
        folder = Path(named).expanduser().resolve()
        if not (folder / ROOT).is_dir():
            raise NoCheckout(f"{VARIABLE} is {named}, where there is no folder {ROOT}")
        return folder
    folder = cache_folder()
    return folder if (folder / ROOT).is_dir() else None


def missing(needs: Sequence[str]) -> str | None:
    """The first thing that is needed and not there, and what was found instead, in one line; or
    None."""
    for name in needs:
        reason = _checkout_missing() if name == TORCHBENCH else _module_missing(name)
        if reason:
            return reason
    return None


def _checkout_missing() -> str | None:
    try:
        folder = torchbench()
    except NoCheckout as error:
        return f"TorchBench: {error}; it has to be a checkout of {TORCHBENCH_URL}"
    if folder is None:
        return (
            f"TorchBench: not found in {cache_folder()}; needed is {TORCHBENCH_URL} at "
            f"{TORCHBENCH_COMMIT[:12]}, there or in the folder that {VARIABLE} names; "
            "`./run bench` fetches it"
        )
    for part in FOLDERS:
        if not (folder / ROOT / part).is_dir():
            return f"TorchBench: {folder} has no {ROOT}/{part}; needed is {TORCHBENCH_COMMIT[:12]}"
    return None


def _module_missing(name: str) -> str | None:
    try:
        if name not in _ONLY_FOUND:
            import_module(name)
        elif name not in sys.modules and find_spec(name) is None:
            raise ModuleNotFoundError("not installed")
    except Exception as error:
        # Libraries beside another torch than their own fail in many ways while they load.
        found = (str(error) or type(error).__name__).splitlines()[0]
        return f"{name}: {found}"
    return None


def how_to_install() -> list[str]:
    """Commands that install what the workloads import and this environment lacks."""
    demo, bench = _not_installed("demo"), _not_installed("bench")
    matching = [line for line in bench if line.startswith("torchvision")]
    bench = [line for line in bench if line not in matching]
    lines = [f"pip install {shlex.join(demo)}"] if demo else []
    if bench:  # their dependencies would bring old packages, and another torch
        lines.append(f"pip install --no-deps {shlex.join(bench)}")
    if matching:
        lines.append("torchvision: the release for your torch, as pytorch.org/get-started says")
    return lines


def _not_installed(extra: str) -> list[str]:
    """What an extra of PyGraph's own distribution lists and is not there."""
    try:
        listed = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    wanted = [
        line.split(";")[0].strip() for line in listed if re.search(f"extra == .{extra}.", line)
    ]
    return [line for line in wanted if not _is_installed(re.split("[<>=!~ ]", line)[0])]


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


# ------------------------------------------------------------------------------ getting it


def obtain(say: Callable[[str], Any]) -> Path:
    """The checkout, fetched into the cache folder if there is none: the needed folders only.

    Raises NoCheckout where that is impossible.
    """
    if folder := torchbench():
        return folder
    folder = cache_folder()
    say(f"fetching TorchBench's model sources into {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".torchbench-") as place:
            _clone(Path(place))
            _put(Path(place), folder)
    except OSError as error:
        raise NoCheckout(f"cannot write {folder}: {error}") from error
    return folder


def _clone(place: Path) -> None:
    git = shutil.which("git")
    if git is None:
        raise NoCheckout(f"git is not installed; needed to fetch {TORCHBENCH_URL}")
    patterns = [f"/{ROOT}/tasks.py", *(f"/{ROOT}/{part}/" for part in FOLDERS)]
    for arguments in (
        ["init", "--quiet"],
        ["remote", "add", "origin", TORCHBENCH_URL],
        ["sparse-checkout", "set", "--no-cone", *patterns],
        ["fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", TORCHBENCH_COMMIT],
        ["checkout", "--quiet", "FETCH_HEAD"],
    ):
        answer = subprocess.run(
            [git, "-C", str(place), *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            check=False,
        )
        if answer.returncode:
            lines = answer.stderr.strip().splitlines()
            raise NoCheckout(
                f"git {arguments[0]} of {TORCHBENCH_URL} failed: {lines[-1] if lines else '?'}; "
                f"put a checkout of {TORCHBENCH_COMMIT[:12]} anywhere and name it in {VARIABLE}"
            )


def _put(place: Path, folder: Path) -> None:
    """In one step, so that a checkout that is there is a complete one."""
    ready = place / "ready"
    ready.mkdir()
    (place / ROOT).rename(ready / ROOT)
    try:
        ready.rename(folder)
    except OSError:
        if not (folder / ROOT).is_dir():  # otherwise another process was faster
            raise


# ------------------------------------------------------------------------------ importing


def torchbench_module(name: str, stand_ins: Sequence[str] = ()) -> Any:
    """A module of the checkout, such as "torchbenchmark.models.dcgan".

    The packages above the model's own stay empty. `stand_ins` are libraries that the module imports
    and the workload does not use: empty modules take the places of those that are not installed.
    """
    root = torchbench()
    if root is None:
        raise NoCheckout(_checkout_missing())
    parts = name.split(".")
    for length in range(1, min(len(parts), 4)):
        package_without_init(".".join(parts[:length]), root.joinpath(*parts[:length]))
    package_without_init(f"{ROOT}.util", root / ROOT / "util")
    harness: Any = package_without_init(f"{ROOT}.util.model", root / ROOT / "util")
    harness.BenchmarkModel = object
    with standing_in({library: {} for library in stand_ins}):
        return import_module(name)


def package_without_init(name: str, folder: Path) -> ModuleType:
    """A package whose modules can be imported, and whose `__init__` is not run; once there, the
    same one."""
    if name in sys.modules:
        return sys.modules[name]
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    package.__package__ = name
    package.__spec__ = ModuleSpec(name, None, is_package=True)
    package.__spec__.submodule_search_locations = [str(folder)]
    sys.modules[name] = package
    parent, _, own = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], own, package)
    return package


@contextmanager
def standing_in(modules: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Modules with these attributes, instead of those that are not installed, for as long as
    something is imported that asks for them."""
    absent = [name for name in modules if not _is_there(name)]
    for name in absent:
        stand_in = ModuleType(name)
        stand_in.__path__ = []
        vars(stand_in).update(modules[name])
        sys.modules[name] = stand_in
        parent, _, own = name.rpartition(".")
        if parent in absent:
            setattr(sys.modules[parent], own, stand_in)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _is_there(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
