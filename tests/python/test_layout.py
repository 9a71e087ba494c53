"""The rooms of the package: which may know which, and how its functions are called."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pygraph

PACKAGE = Path(pygraph.__file__).parent
#: From the top down. A room may import from those below it, and not from its neighbours.
FLOORS = (
    ("cli",),
    ("demo",),
    ("frontends",),
    ("transform",),
    ("runtime",),
    ("decide",),
    ("capturing",),
    ("planning",),
    ("reporting", "twin"),
    ("operators",),
    ("torch_private",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
#: The package's own modules that stand in no room.
OPEN_TO_ALL = {"_engine", "frames", "__version__"}
#: The folders of src, each with what it includes above it, and the headers in include/pygraph of
#: those that have them under another name.
SOURCES = Path(__file__).parents[2] / "src"
FOLDERS = (
    ("driver",),
    ("phantom",),
    ("image",),
    ("relocate",),
    ("layout",),
    ("rethread",),
    ("link",),
    ("program",),
    ("capture",),
    ("twin",),
    ("selection",),
    ("torch",),
    ("speculation",),
    ("entry",),
    ("callable",),
    ("bindings",),
)
HEADERS = {
    "chain": "program",
    "driver_symbols": "driver",
    "flatten": "image",
    "handles": "driver",
    "host_number": "relocate",
}
MOST_POSITIONAL = 6


def imported(code: str) -> Iterator[str]:
    """All that a module imports, wherever it does so, as 'package.module.name'."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import hides where it leads"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_in_rooms() -> Iterator[tuple[str, str, str]]:
    """(room, path, code) of each module that stands in a room."""
    for path in sorted(PACKAGE.glob("*/**/*.py")):
        relative = path.relative_to(PACKAGE)
        yield relative.parts[0], relative.as_posix(), path.read_text()


def upward(room: str, code: str) -> Iterator[str]:
    for name in imported(code):
        package, _, rest = name.partition(".")
        to = rest.split(".")[0]
        if package == "pygraph" and to not in OPEN_TO_ALL and to != room and to:
            known = to in FLOOR_OF and room in FLOOR_OF
            if not known or FLOOR_OF[to] <= FLOOR_OF[room]:
                yield name


#: What is known of compilers, and who may use it.
OF_COMPILERS = {f"pygraph.torch_private.{name}" for name in ("aot", "dynamo", "inductor")}
ABOVE_COMPILERS = {"frontends", "demo", "torch_private"}


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Modules that import each other, all of them together."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        waiting, found = [module], set[str]()
        while waiting:
            new = imports.get(waiting.pop(), set()) - found
            found |= new
            waiting.extend(new)
        reached[module] = found
    return {
        frozenset({module} | {other for other in found if module in reached.get(other, ())})
        for module, found in reached.items()
        if module in found
    }


def modules_imported(code: str, known: Collection[str]) -> set[str]:
    """Those of the package that a module imports when it runs, not for its annotations alone."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    engine = "pygraph._engine"  # no module of Python's
    names = [each for each in imported(ast.unparse(tree)) if not each.startswith(engine)]
    return {each if each in known else each.rpartition(".")[0] for each in names} & set(known)


def included(code: str) -> Iterator[str]:
    """The folders of src that a file includes something of."""
    for path in re.findall(r'#include "([^"]+)"', code):
        *folders, file = path.split("/")
        folder = folders[-1] if folders else ""
        stem = file.split(".")[0]
        if folder:
            yield HEADERS.get(stem, stem) if folder == "pygraph" else folder


def crowded(code: str) -> Iterator[str]:
    """What is called with more arguments by position than can be told apart."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL:
            called = ast.unparse(node.func)
            if not called.endswith(".add_row"):  # a row of a table has its columns
                yield called


def test_an_arrow_that_goes_up_is_seen() -> None:
    assert list(upward("capturing", "def f():\n    from pygraph.runtime import devices"))
    assert list(upward("twin", "from pygraph.reporting import Report"))
    assert list(upward("twin", "from pygraph import capturing"))
    assert list(upward("nowhere", "import pygraph.twin.layouts"))
    assert not list(upward("runtime", "from pygraph import _engine, capturing, torch_private"))


def test_arrows_between_rooms_go_down() -> None:
    found = {path: list(upward(room, code)) for room, path, code in modules_in_rooms()}
    assert {path: names for path, names in found.items() if names} == {}


def test_what_is_below_the_frontends_knows_no_compiler() -> None:
    found = {
        path: names
        for room, path, code in modules_in_rooms()
        if room not in ABOVE_COMPILERS
        and (names := {n for n in imported(code) if any(n.startswith(o) for o in OF_COMPILERS)})
    }
    assert found == {}


def test_no_module_imports_itself_through_others() -> None:
    code = "from pygraph import a\nif TYPE_CHECKING:\n    from pygraph import b"
    assert modules_imported(code, {"pygraph.a", "pygraph.b"}) == {"pygraph.a"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {frozenset("bc")}
    paths = {
        path.relative_to(PACKAGE.parent).with_suffix(""): path for path in PACKAGE.rglob("*.py")
    }
    modules = {".".join(path.parts).removesuffix(".__init__"): file for path, file in paths.items()}
    assert len(modules) > 50
    assert not circles(
        {name: modules_imported(file.read_text(), modules) for name, file in modules.items()}
    )


def test_a_folder_of_the_sources_includes_those_above_it() -> None:
    code = '#include "pygraph/chain.h"\n#include "../torch/call.h"\n#include "own.h"'
    assert list(included(code)) == ["program", "torch"]
    level = {name: floor for floor, names in enumerate(FOLDERS) for name in names}
    files = [*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h")]
    assert {file.parent.name for file in files} == set(level) and len(files) > 80
    found = {
        f"{file.parent.name}/{file.name}: {name}"
        for file in files
        for name in included(file.read_text())
        if level[name] > level[file.parent.name]
    }
    assert not found


def test_each_room_has_its_tests() -> None:
    tests = {path.name for path in Path(__file__).parent.iterdir() if any(path.glob("test_*.py"))}
    assert set(FLOOR_OF) <= tests


def test_the_product_does_not_know_the_laboratory() -> None:
    modules = list(PACKAGE.rglob("*.py"))
    knowing = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules
        if any(name.split(".")[0] == "benchmarks" for name in imported(path.read_text()))
    }
    assert not knowing and len(modules) > 50


def test_calls_are_not_crowded() -> None:
    assert list(crowded("f(1, 2, 3, 4, 5, 6, 7)")) == ["f"] and not list(crowded("f(1, *more)"))
    found = {
        f"{path}: {called}" for _, path, code in modules_in_rooms() for called in crowded(code)
    }
    assert not found
