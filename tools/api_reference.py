"""Writes docs/api.md, the API reference, from the docstrings of the package.

    python tools/api_reference.py              rewrite it
    python tools/api_reference.py --check      fail when it is not what the sources give

The sources are read, not imported, so neither torch nor the extension is needed. A public name
without a docstring is an error. The docstring of a field is the string below it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "python"
PAGE = ROOT / "docs" / "api.md"

OPTIONS = ("pygraph.frontends.compile.options", "Options")
RECORDS = {
    "The report": ("pygraph.reporting", ("Report", "GraphReport", "Applied")),
    "The explanation": ("pygraph.reporting", ("Explanation", "Blocker", "OutsideKernel")),
    "The frozen callable": ("pygraph.frontends.compile.freeze", ("Frozen",)),
    "The movable graph": ("pygraph.frontends.adopt.movable", ("MovableGraph",)),
    "The plan": ("pygraph.planning", ("Plan", "GraphPlan", "Finding", "Break", "Argument")),
}
HEAD = """\
# API reference

`tools/api_reference.py` writes this page from the docstrings in `python/pygraph`: the public names
of the package, the options of torch.compile, and the fields of what `report()`, `explain()`,
`adopt()`, `freeze()` and `plan()` return.
Options are given as `torch.compile(model, backend="pygraph", options={"debug": "paranoid"})`.
[usage.md](usage.md) shows how all of it is used.
"""
WIDTH = 108

Documented = ast.Module | ast.ClassDef | ast.FunctionDef


class Member(NamedTuple):
    """A field, property or method of a class, as the page shows it."""

    label: str
    doc: str


def fail(message: str) -> NoReturn:
    sys.exit(f"api_reference: {message}")


def source_of(module: str) -> Path:
    """The file of a module, or of a package's __init__."""
    path = SOURCES.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def parsed(module: str) -> ast.Module:
    path = source_of(module)
    if not path.exists():
        fail(f"{path} is missing")
    return ast.parse(path.read_text(), str(path))


def find(module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    """The definition of a name in a module, or in the module that it is imported from."""
    tree = parsed(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            if any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list):
                continue
            if node in tree.body:
                return node
        elif isinstance(node, ast.ImportFrom) and name in (each.name for each in node.names):
            return find(str(node.module), name)
    fail(f"{module} neither defines nor imports {name}")


def find_class(module: str, name: str) -> ast.ClassDef:
    node = find(module, name)
    if not isinstance(node, ast.ClassDef):
        fail(f"{module}.{name} is no class")
    return node


def public_names() -> list[str]:
    """`pygraph.__all__` without the version."""
    for node in parsed("pygraph").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    fail("pygraph has no __all__")


def docstring(node: Documented, what: str) -> str:
    return ast.get_docstring(node) or fail(f"{what} has no docstring")


def fields(node: ast.ClassDef) -> Iterator[Member]:
    """The public ones, in the order of the source."""
    for each, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
            yield field(node.name, each, below)


def methods(node: ast.ClassDef) -> Iterator[Member]:
    """The public ones and the properties."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            yield method(node.name, each)


def field(owner: str, node: ast.AnnAssign, below: ast.stmt | None) -> Member:
    name = ast.unparse(node.target)
    doc = below.value if isinstance(below, ast.Expr) else None
    if not isinstance(doc, ast.Constant) or not isinstance(doc.value, str):
        fail(f"{owner}.{name} has no docstring below it")
    default = default_of(node.value)
    label = f"`{name}`: `{text_of(node.annotation)}`"
    label += f", default `{default}`" if default else ""
    return Member(label, inspect.cleandoc(doc.value))


def default_of(value: ast.expr | None) -> str | None:
    """Of a field: what stands there, or what its factory gives."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        factory = ast.unparse(value.keywords[0].value)
        return {"list": "[]", "dict": "{}"}.get(factory, f"{factory}()")
    return None if value is None else text_of(value)


def text_of(node: ast.expr) -> str:
    """With double quotes, as the sources have them."""
    return ast.unparse(node).replace("'", '"')


def method(owner: str, node: ast.FunctionDef) -> Member:
    decorators = [ast.unparse(each) for each in node.decorator_list]
    returned = f": `{text_of(node.returns)}`" if node.returns else ""
    if "property" in decorators:
        label = f"`{node.name}`{returned}, computed"
    else:
        label = f"`{node.name}({', '.join(parameters(node)[1:])})`{returned}"
    return Member(label, docstring(node, f"{owner}.{node.name}"))


def parameters(node: ast.FunctionDef) -> list[str]:
    """One text for each, with the `*` in front of those that are given by name only."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    made = [parameter(*each) for each in zip(plain, defaults, strict=True)]
    if given.vararg or given.kwonlyargs:
        made.append("*" + (parameter(given.vararg, None) if given.vararg else ""))
    made += [parameter(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*made, *([f"**{parameter(given.kwarg, None)}"] if given.kwarg else [])]


def parameter(node: ast.arg, default: ast.expr | None) -> str:
    text = f"{node.arg}: {text_of(node.annotation)}" if node.annotation else node.arg
    return f"{text} = {text_of(default)}" if default else text


def signature(node: ast.FunctionDef) -> str:
    given = "".join(f"\n    {each}," for each in parameters(node))
    returned = f" -> {text_of(node.returns)}" if node.returns else ""
    return f"{node.name}({given}{chr(10) if given else ''}){returned}"


def functions() -> Iterator[str]:
    yield "## Functions\n"
    for name in public_names():
        node = find("pygraph", name)
        if isinstance(node, ast.FunctionDef):
            yield f"### pygraph.{name}\n\n```python\n{signature(node)}\n```\n"
            yield f"{docstring(node, f'pygraph.{name}')}\n"


def errors() -> Iterator[str]:
    """The public classes, which are all errors."""
    found = [(name, find("pygraph", name)) for name in public_names()]
    classes = [(name, node) for name, node in found if isinstance(node, ast.ClassDef)]
    if classes:
        yield "## Errors\n"
    for name, node in classes:
        bases = ", ".join(map(ast.unparse, node.bases))
        yield f"### pygraph.{name}\n\nA `{bases}`. {docstring(node, f'pygraph.{name}')}\n"


def record(title: str, node: ast.ClassDef, members: Iterator[Member]) -> Iterator[str]:
    yield f"{title}\n\n{docstring(node, node.name)}\n"
    yield "\n".join(map(item, members)) + "\n"


def item(member: Member) -> str:
    """One entry of a list; the text stands below the name."""
    return f"- {member.label}  \n{textwrap.indent(wrapped(member.doc), '  ')}"


def wrapped(text: str) -> str:
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(textwrap.fill(part, WIDTH, break_long_words=False) for part in parts)


def page() -> str:
    options = find_class(*OPTIONS)
    parts = [HEAD, *functions(), *errors(), *record("## Options", options, fields(options))]
    for title, (module, names) in RECORDS.items():
        parts.append(f"## {title}\n")
        for name in names:
            node = find_class(module, name)
            parts += record(f"### {name}", node, chain(fields(node), methods(node)))
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    parser.add_argument("--page", type=Path, default=PAGE, help="another file")
    given = parser.parse_args(arguments)
    made = page()
    if given.check:
        if not given.page.exists() or given.page.read_text() != made:
            fail(f"{given.page.name} is not what the docstrings give; run tools/api_reference.py")
    else:
        given.page.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
