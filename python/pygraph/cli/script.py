"""The program that `pygraph explain` and `pygraph trace` run: a script, or a module as `python -m`
runs one."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from importlib.abc import InspectLoader
from pathlib import Path

from pygraph.frontends.compile.explain import observed
from pygraph.frontends.trace.watch import CallWatch
from pygraph.reporting import Explanation


def explained(
    script: str | None, module: str | None, arguments: Sequence[str], profile: bool
) -> tuple[Explanation, int]:
    """Runs a script, or a module if there is none, in this process as `__main__`. What came of it,
    and its exit status. Raises ValueError where there is none of that name."""
    with (
        _ready(script, module, arguments) as (code, main),
        observed(module or Path(str(main.__file__)).name) as seen,
        seen.profiled(1) if profile else contextlib.nullcontext(),
    ):
        status, seen.explanation.error = run(code, main)
    return seen.explanation, status


def traced(
    script: str | None, module: str | None, arguments: Sequence[str], wanted: tuple[int, ...]
) -> tuple[CallWatch, int]:
    """The same, with the calls that were watched. `wanted`: which steady calls are traced."""
    watch = CallWatch(wanted)
    with _ready(script, module, arguments) as (code, main), watch.watching():
        status, _ = run(code, main)
    return watch, status


@contextlib.contextmanager
def _ready(
    script: str | None, module: str | None, arguments: Sequence[str]
) -> Iterator[tuple[types.CodeType, types.ModuleType]]:
    """The program's code, and the module that it runs in."""
    code, file = of_module(module) if module is not None else of_script(script or "")
    folder = str(Path.cwd()) if module is not None else str(Path(file).resolve().parent)
    main = types.ModuleType("__main__")
    main.__file__ = file
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    with _as_main(main, [file, *arguments], folder):
        yield code, main


def run(code: types.CodeType, main: types.ModuleType) -> tuple[int, str | None]:
    """The exit status that Python would end with, and what was raised."""
    try:
        exec(code, main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0, f"SystemExit: {end.code}" if end.code else None
        print(end.code, file=sys.stderr)
        return 1, f"SystemExit: {end.code}"
    except BaseException as error:
        # Above the script's frames are those of this module.
        behind = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(error.with_traceback(behind))
        interrupted = isinstance(error, KeyboardInterrupt)
        return 130 if interrupted else 1, f"{type(error).__name__}: {error}"
    return 0, None


def of_script(path: str) -> tuple[types.CodeType, str]:
    try:
        return compile(Path(path).read_bytes(), path, "exec"), path
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def of_module(name: str) -> tuple[types.CodeType, str]:
    with _first_on_path(str(Path.cwd())):
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
        except (ImportError, ValueError) as error:
            raise ValueError(f"no module {name} can be found: {error}") from error
    loader = spec.loader if spec is not None else None
    if spec is None or spec.origin is None or not isinstance(loader, InspectLoader):
        raise ValueError(f"no module {name} can be run from {Path.cwd()}")
    code = loader.get_code(spec.name)
    if code is None:
        raise ValueError(f"module {name} has no code of Python's")
    return code, spec.origin


@contextlib.contextmanager
def _as_main(main: types.ModuleType, argv: list[str], folder: str) -> Iterator[None]:
    before = sys.modules["__main__"], sys.argv
    sys.modules["__main__"], sys.argv = main, argv
    try:
        with _first_on_path(folder):
            yield
    finally:
        sys.modules["__main__"], sys.argv = before


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = before
