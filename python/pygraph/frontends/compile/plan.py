"""What would be captured, told without a GPU.

`plan(model, args)` traces a program through Dynamo and AOTAutograd, as torch.compile would, with
tensors that have a shape and a device but no memory, and says what torch.compile would hand to
PyGraph: the graphs, what breaks them apart, which of their inputs stay and which change from call
to call, and what stands in the way of a capture, each with the line of the program that is to
blame: before the passes that graphs go through, and behind them, for each graph goes through them
here as well (pygraph/transform). Nothing is compiled and nothing runs, but what the passes compute
of constants on the CPU.

The compilers that AOTAutograd is given only look at their graph and hand it back, so the program
goes on behind a graph break and every graph is seen. Which inputs are constants is AOTAutograd's
own answer (`static_input_indices`), the one that Inductor's CUDA graphs go by.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from pygraph.frontends.compile import breaks, scalars
from pygraph.planning import GraphPlan, Plan
from pygraph.planning.fake import Stand, mode_of, on_cpu_only, replaced, stand_in_device
from pygraph.planning.inspect import inspect, located, transformed
from pygraph.planning.source import of_text
from pygraph.reporting import Applied
from pygraph.torch_private import dynamo
from pygraph.torch_private.aot import boxed, mutated_inputs, static_inputs, tangents
from pygraph.torch_private.dispatch import tree_leaves, tree_map
from pygraph.transform.pipeline import transform

log = logging.getLogger(__name__)


def plan(
    model: Callable[..., Any],
    args: Sequence[Any] | Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    training: bool = False,
    device: str | None = None,
) -> Plan:
    """Say what torch.compile would hand to PyGraph for `model(*args, **kwargs)`.

    Nothing is computed: the model's parameters, its buffers and all tensors among the arguments are
    replaced for the time of the call by tensors without memory. Where the program is wholly on the
    CPU it is taken as one that will be moved to the GPU with its arguments; where it is on a GPU or
    on "meta" already, a tensor on the CPU is reported as such.

    Of each graph the plan says what stood in the way before the passes of the option
    `transform="all"`, which pass takes it away, and what remains.

    With `training`, the outputs are summed and a backward is traced as well. A failed trace raises
    nothing: `Plan.error` says what happened.
    """
    if isinstance(args, torch.Tensor):
        args = (args,)
    kwargs = dict(kwargs or {})
    device = device or stand_in_device(training)
    result = Plan(name=name or _name_of(model), device=device)
    given = tree_leaves((tuple(args), kwargs))
    result.scalars = [repr(leaf) for leaf in given if isinstance(leaf, int | float)]
    tensors = list(_all_tensors(model, given))
    mode = mode_of(tensors)
    stand = Stand(mode, device, move_all=on_cpu_only(tensors))
    swap = lambda leaf: stand(leaf) if isinstance(leaf, torch.Tensor) else leaf  # noqa: E731
    fake_args, fake_kwargs = tree_map(swap, (tuple(args), kwargs))
    started = time.perf_counter()
    with _recorded_breaks(result), replaced(model, stand), mode, _quiet():
        try:
            _run(model, fake_args, fake_kwargs, result, training)
        except Exception as error:
            log.debug("the trace of %s ended early", result.name, exc_info=True)
            result.error = _in_short(error)
    result.notes += [f"{what} ({times} times)" for what, times in mode.guesses.items()]
    result.seconds = time.perf_counter() - started
    return result


def _run(model: Any, args: Any, kwargs: Any, result: Plan, training: bool) -> None:
    backend = _Backend(
        dynamo.aot_autograd()(
            fw_compiler=_reader(result.graphs, "forward" if training else "inference"),
            bw_compiler=_reader(result.graphs, "backward"),
            inference_compiler=_reader(result.graphs, "inference"),
        ),
        result.graphs,
    )
    # Each plan has a backend of its own, so no entry of another compilation is taken for ours; but
    # they count: a model that was compiled many times must not be skipped for that.
    with dynamo.without_limits(), torch.set_grad_enabled(training):
        made = torch.compile(model, backend=backend, dynamic=False)(*args, **kwargs)
        if training:
            _backward(made)


class _Backend:
    """Plans what Dynamo hands over, which goes through the pass for its graphs first."""

    def __init__(self, compiler: Callable[..., Any], graphs: list[GraphPlan]) -> None:
        self._compiler, self._graphs = compiler, graphs

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        applied = scalars.take_away(gm, generated=True)
        before = len(self._graphs)
        compiled = self._compiler(gm, example_inputs)
        for found in self._graphs[before : before + 1]:
            found.passes = [*map(_shortened, applied), *found.passes]
        return compiled


scalars.install(lambda asked: isinstance(asked.backend, _Backend))


def _backward(made: Any) -> None:
    leaves = tree_leaves(made)
    losses = [
        leaf.sum() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not losses:
        raise ValueError("no output requires a gradient: there is no backward to trace")
    sum(losses[1:], start=losses[0]).backward()


def _reader(graphs: list[GraphPlan], phase: str) -> Callable[..., Any]:
    """A compiler for AOTAutograd that describes the graph and compiles it to nothing.

    What it returns makes outputs of the right shapes at once: running the operators one by one on
    fake tensors would tell the same and take as long as tracing them did.
    """

    def read(graph_module: Any, example_inputs: Sequence[Any]) -> Any:
        static: Sequence[int] = static_inputs()
        mutated = len(mutated_inputs())
        if phase == "backward":
            # The saved tensors come first: they stay where the forward put them.
            static, mutated = range(len(example_inputs) - tangents(graph_module)), 0
        found = inspect(f"graph {len(graphs)} ({phase})", graph_module, static, mutated)
        graphs.append(found)
        outputs = next(node for node in graph_module.graph.nodes if node.op == "output").args[0]
        values = [getattr(each, "meta", {}).get("val", each) for each in outputs]
        _transform(found, graph_module)

        @boxed
        def run(inputs: list[Any]) -> list[Any]:
            inputs.clear()
            return [_like(value) for value in values]

        return run

    return read


def _transform(found: GraphPlan, graph_module: torch.fx.GraphModule) -> None:
    """Has the passes change a graph, as they do before it is compiled, and plans what they did."""
    before = located(graph_module.graph)
    split = transform(graph_module, generated=True, home=torch.device("cpu"))
    if split is not None:
        found.passes = list(map(_shortened, split.applied))
        transformed(found, before, split.body.graph, split.cleared)


def _like(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


@contextmanager
def _recorded_breaks(result: Plan) -> Iterator[None]:
    before = breaks.count()
    try:
        yield
    finally:
        result.breaks += breaks.since(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings about breaks and missing devices: the plan says it better."""
    loggers = [logging.getLogger(name) for name in dynamo.LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _all_tensors(model: Any, given: Sequence[Any]) -> Iterator[Any]:
    if isinstance(model, torch.nn.Module):
        yield from model.parameters()
        yield from model.buffers()
    yield from (leaf for leaf in given if isinstance(leaf, torch.Tensor))


def _shortened(applied: Applied) -> Applied:
    return replace(applied, source=_short(applied.source))


def _short(source: str | None) -> str | None:
    """A place without the folders of this machine."""
    return None if source is None else os.path.basename(source)


def _in_short(error: Exception) -> str:
    source, _ = of_text(str(error))
    inner = dynamo.error_within(error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    explanation = [line for line in lines if line.startswith("Explanation:")]
    parts = [type(inner).__name__, *lines[:1], *explanation[:1]]
    return ": ".join(parts) + (f" (at {source})" if source else "")


def _name_of(model: Any) -> str:
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    return getattr(model, "__name__", type(model).__name__)
