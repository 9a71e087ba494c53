"""Inductor's generated code behind a callable: its functions, its allocators, its tensors, and what
runs around it."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from pygraph.capturing.holdings import Allocator, Holdings
from pygraph.frontends.compile import kernels
from pygraph.torch_private.inductor import ALLOCATORS

_SEARCH_DEPTH = 4
#: How calls begin and end by which generated code computes or copies.
_WORK = ("aten.", "cpp_fused_", "extern_kernels.", "torch.ops.")
_WORK_OF_TENSORS = (".copy_", ".item")


def holdings_of(function: Any) -> Holdings:
    """What a capture needs to know of a compiled callable."""
    return Holdings(
        functools.partial(_allocators_of, function),
        functools.partial(_tensors_of, function),
        observed=kernels.observed,
    )


def callables_behind(function: Any, depth: int = _SEARCH_DEPTH) -> list[Any]:
    """`function` and what it calls, as far as that can be seen from outside: bound methods,
    partials, wrappers and closures are looked through."""
    found: list[Any] = []
    seen: set[int] = set()

    def visit(item: Any, left: int) -> None:
        if left == 0 or id(item) in seen or not callable(item):
            return
        seen.add(id(item))
        found.append(item)
        if isinstance(item, functools.partial):
            visit(item.func, left - 1)
        for attribute in ("__func__", "__wrapped__"):
            visit(getattr(item, attribute, None), left)
        for cell in getattr(item, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                visit(cell.cell_contents, left - 1)
        owner = getattr(item, "__self__", None)
        if owner is not None:
            visit(owner, left - 1)

    visit(function, depth)
    return found


def generated_functions(function: Any, depth: int = _SEARCH_DEPTH) -> list[Any]:
    """What is called of Inductor's generated code behind `function`: of each module the first that
    is found, which is `call`, or a partition that Inductor hands to the hook by itself."""
    found: list[Any] = []
    for item in callables_behind(function, depth):
        names: Any = getattr(item, "__globals__", None)
        generated = isinstance(names, dict) and any(name in names for name in ALLOCATORS)
        if generated and all(names is not other.__globals__ for other in found):
            found.append(item)
    return found


def generated_globals(function: Any, depth: int = _SEARCH_DEPTH) -> list[dict[str, Any]]:
    """The module dictionaries of Inductor's generated code behind `function`."""
    return [each.__globals__ for each in generated_functions(function, depth)]


def functions_around(model: Callable[..., Any]) -> Iterator[tuple[Sequence[Any], list[ast.stmt]]]:
    """The partitions that `model` is one of, and the outer function's statements (none if they
    cannot be had). Nothing where there is no outer function around it."""
    for names in generated_globals(model):
        runner: Any = names.get("runner")
        partitions = getattr(runner, "partitions", None)
        if partitions is not None and model != runner.call:
            yield partitions, _statements(type(runner).call)


def _statements(function: Callable[..., Any]) -> list[ast.stmt]:
    try:
        code = function.__code__
        with open(code.co_filename, encoding="utf-8") as file:
            lines = itertools.islice(file, code.co_firstlineno - 1, None)
            # inspect.getsource() would look for the function's module among all that there are.
            source = "".join(inspect.getblock(list(lines)))
        (definition,) = ast.parse(textwrap.dedent(source)).body
    except (AttributeError, OSError, SyntaxError, ValueError):
        return []
    return definition.body if isinstance(definition, ast.FunctionDef) else []


def work_outside(model: Callable[..., Any]) -> list[str]:
    """The statements of generated code around `model`, one of its partitions, that compute or copy
    outside of all partitions."""
    return [text for _, body in functions_around(model) for text in _working(body)]


def works(function: Any) -> bool | None:
    """Whether generated code behind `function` computes or copies, partitions left out; None: it
    cannot be read."""
    bodies = [_statements(each) for each in generated_functions(function)]
    return any(map(_working, bodies)) if bodies and all(bodies) else None


def _working(body: list[ast.stmt]) -> list[str]:
    """Those statements, at whatever depth, that compute or copy."""
    simple = (
        node
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    )
    return [
        ast.unparse(node)
        for node in simple
        if any(isinstance(each, ast.Call) and _works(each) for each in ast.walk(node))
    ]


def _works(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    kernel = name.startswith("triton_") and name.endswith(".run")
    return kernel or name.startswith(_WORK) or name.endswith(_WORK_OF_TENSORS)


def _allocators_of(function: Any) -> Iterator[Allocator]:
    for names in generated_globals(function):
        yield from ((names, name) for name in ALLOCATORS if name in names)


def _tensors_of(function: Any) -> Iterator[torch.Tensor]:
    """Globals of Inductor's modules, attributes of the FX graphs and objects behind `function`."""
    for names in generated_globals(function):
        yield from _tensors_in(names.values())
    for item in callables_behind(function):
        if isinstance(item, torch.nn.Module):
            yield from _tensors_in(item.state_dict(keep_vars=True).values())
        yield from _tensors_in(getattr(item, "__dict__", {}).values())
        for cell in getattr(item, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield from _tensors_in([cell.cell_contents])


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in list(values):
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)
        elif isinstance(value, dict):
            yield from _tensors_in(value.values())
