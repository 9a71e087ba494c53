"""Puts a case behind the product: what the GPU tests call, and what they compare it with.

`graphed_callable` is the one place that makes a `CompiledGraph` by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from families.exercise import Call, as_list
from families.registry import AOT, DIRECT, Case, Family
from pygraph.runtime import registry
from pygraph.runtime.compiled_graph import CompiledGraph


def deploy(family: Family, case: Case) -> tuple[Call, Call]:
    """(the callable under test, the uncaptured one), each taking one list."""
    eager = _boxed(case.function)
    if family.path == DIRECT:
        inputs, constants = len(case.inputs()), len(case.constants())
        return graphed_callable(eager, family.name, range(inputs, inputs + constants)), eager
    if family.path == AOT:
        return _boxed(_compiled(case, compiler="aot")), eager
    # Compiled and run first. Inductor keeps kernels by their source, and tunes one once more for
    # every compilation that has it (torch 2.11): whoever called it before sums in another order
    # from then on.
    reference = _boxed(torch.compile(case.function))
    reference([*case.inputs(), *case.constants()])
    return _boxed(_compiled(case)), reference


def _compiled(case: Case, **options: str) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(
        case.function, backend="pygraph", options=dict(options)
    )
    return compiled


def graphed_callable(function: Call, name: str, static: range) -> Call:
    """`function` as a frontend would run it; its graph is in pygraph.report()."""
    graph = CompiledGraph(
        function, name=registry.next_name(name), constants=static, mutated=(), device=0
    )
    registry.add(graph)
    return graph.as_callable()


def _boxed(function: Callable[..., Any]) -> Call:
    return lambda arguments: as_list(function(*arguments))
