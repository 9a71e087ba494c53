"""Straight from Dynamo's call to the graph, past wrappers that do nothing.

AOTAutograd and Inductor put five to ten Python functions between Dynamo's bytecode and a compiled
graph; for a plain inference graph all they do is reorder a list, but with a thousand parameters
that costs more than the launch. An Entry (src/torch/entry.h) skips them for a compiled function
when three things hold:

1. AOTAutograd's metadata says that its wrappers have nothing to do: no argument is written (they
   count versions), no output to rebuild from an alias, no tokens, no functionalised generator.
2. Inductor's generated outer function only moves names around one call of the one partition: its
   source is read and every statement must be of a known, inert form.
3. In the call that deployed the graph, every argument that reached the graph was one of the
   caller's objects, and every result that reached the caller was one of the graph's.

1 and 2 make 3 a property of the function and not of that one call. Where any of them fails, the
whole stack stays in place.
"""

from __future__ import annotations

import ast
import inspect
import logging
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, cast

from pygraph import _engine
from pygraph.adapter.graphed import Graphed
from pygraph.capture.hold import generated_globals

log = logging.getLogger("pygraph")


def through(compiled: Callable[..., Any], graph: Graphed) -> Callable[..., Any]:
    """What to give Dynamo in place of `compiled`, whose only graph is `graph`."""
    return _Gateway(compiled, graph).entry


class _Gateway:
    """Watches the slow path until the graph is deployed, then connects the entry."""

    def __init__(self, compiled: Callable[..., Any], graph: Graphed) -> None:
        self._compiled = compiled
        self._dispatcher = graph.dispatcher
        self._owns = graph.device.owns
        self._report = graph.report
        self._deployed: tuple[Sequence[Any], Sequence[Any]] | None = None
        graph.on_deploy = self._note
        self.entry = cast(Callable[..., Any], _engine.make_entry(self._watch))

    def _note(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._deployed = arguments, outputs

    def _watch(self, *arguments: Any) -> Any:
        results = self._compiled(*arguments)
        if self._deployed is not None:
            deployed, self._deployed = self._deployed, None
            routes = routes_between(self._owns, arguments, results, *deployed)
            if routes is not None:
                _engine.connect_entry(self.entry, self._dispatcher, len(arguments), *routes)
                self._report.direct = True
            else:
                log.debug("%s: wrappers stay, an object was replaced on its way", self._report.name)
            _engine.set_entry_slow(self.entry, self._compiled)
        return results


def routes_between(
    owns: Callable[[Any], bool],
    outer_arguments: Sequence[Any],
    outer_results: Any,
    inner_arguments: Sequence[Any],
    inner_results: Sequence[Any],
) -> tuple[list[int], list[int]] | None:
    """Which of the caller's arguments is each of the graph's, and which of the graph's results is
    each of the caller's; by identity. None when some object is nowhere, or is there twice, or is
    not a tensor of the graph's device (`owns`)."""
    if not isinstance(outer_results, (list, tuple)):
        return None
    if not all(map(owns, outer_arguments)):
        return None
    arguments = _positions(outer_arguments, inner_arguments)
    results = _positions(inner_results, outer_results)
    if arguments is None or results is None:
        return None
    in_order = results == list(range(len(inner_results)))
    return arguments, [] if in_order else results


def _positions(among: Sequence[Any], wanted: Sequence[Any]) -> list[int] | None:
    place = {id(item): index for index, item in enumerate(among)}
    if len(place) != len(among):
        return None
    found = [place.get(id(item), -1) for item in wanted]
    return None if -1 in found else found


# ------------------------------------------------------------------------- what is known beforehand


def wrappers_are_inert(metadata: Any) -> bool:
    """Whether AOTAutograd's runtime wrappers hand arguments and results through, going by its
    ViewAndMutationMeta (torch/_functorch/_aot_autograd/schemas.py). Unknown metadata: no."""
    from torch._functorch._aot_autograd.schemas import OutputType

    try:
        return (
            not metadata.mutated_inp_runtime_indices
            and not any(i.mutates_data or i.mutates_metadata for i in metadata.input_info)
            and metadata.num_intermediate_bases == 0
            and not metadata.tokens
            and not metadata.is_rng_op_functionalized
            and all(info.output_type == OutputType.non_alias for info in metadata.output_info)
        )
    except AttributeError:
        return False


def covers_everything(model: Callable[..., Any]) -> bool:
    """Whether `model`, as Inductor gave it to the hook, is the whole compiled graph: code that was
    not partitioned, the outer function itself, or the only partition of an outer function that
    does nothing else."""
    for names in generated_globals(model):
        runner: Any = names.get("runner")
        partitions = getattr(runner, "partitions", None)
        if partitions is None or model == runner.call:
            continue
        only = len(partitions) == 1 and model is partitions[0]
        if not only or not _only_moves_names(type(runner).call):
            return False
    return True


def _only_moves_names(function: Callable[..., Any]) -> bool:
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    if not isinstance(definition, ast.FunctionDef):
        return False
    calls = sum(isinstance(node, ast.Call) for node in ast.walk(definition))
    clears = sum(_is_clear(statement) for statement in definition.body)
    # One call of the partition, one args.clear(), and otherwise no call of anything.
    return calls - clears == 1 and all(_is_inert(statement) for statement in definition.body)


def _is_clear(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement) == "args.clear()"


def _is_inert(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Delete) or _is_clear(statement):
        return True
    if isinstance(statement, ast.Return):
        return statement.value is not None and _only_names(statement.value)
    if isinstance(statement, ast.Assign):
        value = statement.value
        if isinstance(value, ast.Call):
            return ast.unparse(value.func) == "self.partitions[0]"
        return _only_names(value) and all(_only_names(target) for target in statement.targets)
    return False


def _only_names(expression: ast.expr) -> bool:
    if isinstance(expression, (ast.Tuple, ast.List)):
        return all(isinstance(element, ast.Name) for element in expression.elts)
    return isinstance(expression, ast.Name)
