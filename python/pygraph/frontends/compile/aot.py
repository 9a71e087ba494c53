"""`options={"compiler": "aot"}`: AOTAutograd's graphs, run operator by operator.

No code generation, so it works wherever the operators do; the path from there on (capture, link,
proof, replay) is the same as with Inductor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pygraph.frontends.compile.hook import Around, Wrap
from pygraph.runtime.training_pair import PairLayout
from pygraph.torch_private import aot
from pygraph.torch_private.dispatch import schema_if_any


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    wrap: Wrap | None,
    find_device: Callable[[Iterable[Any]], int | None],
    around: Around | None = None,
) -> Callable[..., Any]:
    """Compiles with AOTAutograd and hands each graph to `wrap` (None: runs as it is).
    `find_device` gives the index of the device that a graph's arguments are on."""

    def compiler(
        graph: torch.fx.GraphModule, inputs: list[Any], is_backward: bool = False, **kwargs: Any
    ) -> Callable[..., Any]:
        if around is None:
            return compile_one(graph, inputs, is_backward, **kwargs)
        compile_it = functools.partial(compile_one, graph, inputs, is_backward, **kwargs)
        made: Callable[..., Any] = around(compile_it, graph, is_backward)
        return made

    def compile_one(
        graph: torch.fx.GraphModule,
        inputs: list[Any],
        is_backward: bool = False,
        is_inference: bool = False,
    ) -> Callable[..., Any]:
        function = _boxed(graph)
        device = find_device(inputs)
        if wrap is None or device is None:
            return function
        return _Boxed(
            wrap(
                function,
                [] if is_backward else aot.static_inputs(),
                device_index=device,
                is_backward=is_backward,
                is_inference=is_inference,
                mutated_input_idxs=_mutated(graph),
            )
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
        self._function = self.__wrapped__ = function

    def __call__(self, arguments: list[Any]) -> Any:
        return self._function(arguments)


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
