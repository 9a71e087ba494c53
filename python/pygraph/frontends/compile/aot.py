"""`options={"compiler": "aot"}`: AOTAutograd's graphs, run operator by operator.

No code generation, so it works wherever the operators do; the path from there on (capture, link,
proof, replay) is the same as with Inductor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pygraph.frontends.compile.culprits import Units
from pygraph.frontends.compile.cut import Cut, Piece, cut
from pygraph.frontends.compile.hook import Wrap
from pygraph.runtime.training_pair import PairLayout
from pygraph.torch_private import aot
from pygraph.torch_private.dispatch import packets, schema_if_any


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    wrap: Wrap | None,
    units: Units | None,
    find_device: Callable[[Iterable[Any]], int | None],
) -> Callable[..., Any]:
    """Compiles with AOTAutograd and hands each graph to `wrap` (None: runs as it is), as one of
    `units`. `find_device` gives the index of the device that a graph's arguments are on."""

    def compiler(
        graph: torch.fx.GraphModule,
        inputs: list[Any],
        is_backward: bool = False,
        is_inference: bool = False,
    ) -> Callable[..., Any]:
        function = _boxed(graph)
        device = find_device(inputs)
        if wrap is None or units is None or device is None:
            return function
        wrapped = functools.partial(
            wrap, device_index=device, is_backward=is_backward, is_inference=is_inference
        )
        static = [] if is_backward else aot.static_inputs()
        compiled: Callable[..., Any] = units.compile(_Source(graph, wrapped, static, is_backward))
        return compiled

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
        static: Sequence[int],
        is_backward: bool,
    ) -> None:
        self.operators = packets(graph.graph)
        self.is_backward = is_backward
        self._graph, self._wrap, self._static = graph, wrap, frozenset(static)

    def compile(self, outside: Sequence[str]) -> Any:
        self._called = _Boxed(self.compile_again(outside))
        return self._called

    def compile_again(self, outside: Sequence[str]) -> Any:
        if not outside:
            return self._wrap(
                _boxed(self._graph),
                sorted(self._static),
                mutated_input_idxs=_mutated(self._graph),
            )
        pieces, results = cut(self._graph, outside)
        return Cut(pieces, [self._run(piece) for piece in pieces], results)

    def _run(self, piece: Piece) -> Callable[..., Any]:
        function = _boxed(piece.graph)
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


@aot.boxed
class _Boxed:
    """Marks a callable as taking one list, which it clears (torch's boxed calling convention)."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self.call(function)

    def call(self, function: Callable[[list[Any]], Any]) -> None:
        """From now on it calls this."""
        self._function = self.__wrapped__ = function

    def __call__(self, arguments: list[Any]) -> Any:
        return self._function(arguments)


class OnePiece(_Boxed):
    """One of several pieces of a graph; `first`: nothing computes before it."""

    def __init__(self, function: Callable[[list[Any]], Any], first: bool) -> None:
        super().__init__(function)
        self.first = first


def _boxed(graph: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    graph.graph.set_codegen(aot.BoxedCodeGen())
    graph.recompile()
    return _Boxed(graph.forward)


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
