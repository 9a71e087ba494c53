"""`options={"compiler": "aot"}`: AOTAutograd's graphs, run operator by operator.

No code generation, so it works wherever the operators do; the path from there on (capture, link,
proof, replay) is the same as with Inductor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

import torch

from pygraph.frontends.compile.culprits import Units
from pygraph.frontends.compile.cut import Cut, Piece, cut
from pygraph.frontends.compile.hook import Around, Wrap
from pygraph.frontends.compile.parts import Boxed, Transformed, compile_in_parts, run_by_operators
from pygraph.runtime import notes
from pygraph.runtime.training_pair import PairLayout
from pygraph.torch_private import aot
from pygraph.torch_private.dispatch import packets, schema_if_any
from pygraph.transform.pipeline import transform


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    wrap: Wrap | None,
    units: Units | None,
    find_device: Callable[[Iterable[Any]], int | None],
    passes: Collection[str] = (),
    around: Around | None = None,
) -> Callable[..., Any]:
    """Compiles with AOTAutograd and hands each graph to `wrap` (None: runs as it is), transformed
    by the `passes`, as one of `units`. `find_device` gives the index of the device that a graph's
    arguments are on."""

    def compiler(
        graph: torch.fx.GraphModule,
        inputs: list[Any],
        is_backward: bool = False,
        is_inference: bool = False,
    ) -> Callable[..., Any]:
        device = find_device(inputs)

        def compile_it(made: Transformed | None, body: torch.fx.GraphModule) -> Callable[..., Any]:
            if wrap is None or units is None or device is None:
                return run_by_operators(body)
            wrapped = functools.partial(
                wrap,
                device_index=device,
                is_backward=is_backward,
                is_inference=is_inference,
                transformed=made,
            )
            static = set() if is_backward else set(aot.static_inputs())
            if made is not None:
                static -= made.split.staged
            source = _Source(body, wrapped, static, is_backward)
            code = functools.partial(units.compile, source)
            return cast(Any, code() if around is None else around(code, body, is_backward))

        found = transform(graph, passes, generated=False, tell=notes.note)
        if found is None:
            return compile_it(None, graph)
        made = Transformed(found)
        return compile_in_parts(
            made, lambda body, _: compile_it(made, body), lambda part, _: run_by_operators(part)
        )

    compiled: Callable[..., Any] = aot.aot_module_simplified()(
        gm,
        example_inputs,
        fw_compiler=compiler,
        bw_compiler=functools.partial(compiler, is_backward=True),
        inference_compiler=functools.partial(compiler, is_inference=True),
        keep_inference_input_mutations=True,
    )
    return compiled


class _Source:
    """One of AOTAutograd's graphs (culprits.Source)."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        wrap: Callable[..., Callable[..., Any]],
        static: Collection[int],
        is_backward: bool,
    ) -> None:
        self.operators = packets(graph.graph)
        self.is_backward = is_backward
        self._graph, self._wrap, self._static = graph, wrap, frozenset(static)

    def compile(self, outside: Sequence[str]) -> Any:
        self._called = Boxed(self.compile_again(outside))
        return self._called

    def compile_again(self, outside: Sequence[str]) -> Any:
        if not outside:
            return self._wrap(
                run_by_operators(self._graph),
                sorted(self._static),
                mutated_input_idxs=_mutated(self._graph),
            )
        pieces, results = cut(self._graph, outside)
        return Cut(pieces, [self._run(piece) for piece in pieces], results)

    def _run(self, piece: Piece) -> Callable[..., Any]:
        function = run_by_operators(piece.graph)
        if not piece.fits:
            return function
        inputs = enumerate(piece.partition.inputs)
        return self._wrap(
            OnePiece(function, piece.first),
            [index for index, position in inputs if position in self._static],
            mutated_input_idxs=_mutated(piece.graph),
            partition=piece.partition,
        )

    def put(self, compiled: Any) -> None:
        self._called.call(compiled)


def pair_layout(metadata: Sequence[Any]) -> PairLayout:
    """Of what AOTAutograd said of a function that trains (its ViewAndMutationMeta;
    hook.observed_metadata), once that is all there is."""
    if len(metadata) != 1:
        return PairLayout()
    (known,) = metadata
    return PairLayout(returned=aot.forward_results(known), sizes=aot.saved_sizes(known))


class OnePiece(Boxed):
    """One of several pieces of a graph; `first`: nothing computes before it."""

    def __init__(self, function: Callable[[list[Any]], Any], first: bool) -> None:
        super().__init__(function)
        self.first = first


def _mutated(graph: torch.fx.GraphModule) -> list[int]:
    """Arguments that the graph writes: those of its placeholders that an in-place operator (copy_
    in AOTAutograd's output) has as its first argument."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    positions = {node: index for index, node in enumerate(placeholders)}
    written: set[int] = set()
    for node in graph.graph.nodes:
        schema = schema_if_any(node.target)
        if node.op != "call_function" or schema is None:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            alias = argument.alias_info
            if alias is not None and alias.is_write and value in positions:
                written.add(positions[value])
    return sorted(written)
