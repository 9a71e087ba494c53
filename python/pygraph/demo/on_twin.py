"""A real model on the CPU twin: captured, probed, linked, proven, and replayed at other addresses.

Everything is as on a GPU but the kernels, which are torch's on the CPU, and the clock. Every result
is compared with eager's, bit for bit.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from pygraph.capturing import proof
from pygraph.capturing.tensors import same_bits
from pygraph.demo import small_models
from pygraph.reporting import FALLBACK, GRAPHED, GraphReport
from pygraph.reporting.text import as_bytes
from pygraph.runtime import registry
from pygraph.torch_private import dynamo
from pygraph.twin import faults

MODEL = "resnet18"
#: Calls that run as they are, before there is a graph: see runtime/compiled_graph.py.
UNGRAPHED = 2
#: Replays with the first weights, and with the moved ones.
REPLAYS = 4

Call = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Check:
    """Something that must hold, and what was found."""

    name: str
    passed: bool
    found: str


@dataclasses.dataclass
class Shown:
    """What became of the model."""

    model: str
    parameters: int
    graph: GraphReport
    checks: list[Check]
    seconds: float

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "parameters": self.parameters,
            "passed": self.passed,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "graph": self.graph.to_dict(),
            "seconds": round(self.seconds, 2),
        }


def run(name: str = MODEL) -> Shown:
    """Runs one of `small_models` on the twin. Resets Dynamo and PyGraph before and after."""
    started = time.perf_counter()
    torch.manual_seed(0)
    model, fresh_input = small_models.build(name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad(), dynamo.config().patch(allow_rnn=True):
        try:
            graph, checks = _moved(model, fresh_input)
            checks.append(_planted(model, fresh_input))
        finally:
            _reset()
    return Shown(name, parameters, graph, checks, time.perf_counter() - started)


def _reset() -> None:
    torch.compiler.reset()
    registry.reset()


def _compiled(model: nn.Module) -> Call:
    _reset()
    compiled: Call = torch.compile(model, backend="pygraph", options={"device": "twin"})
    return compiled


@dataclasses.dataclass
class _Calls:
    """Calls of a compiled model. All inputs and outputs are kept, so that nothing stands twice at
    one address; what eager returned for the same input is kept beside them."""

    model: nn.Module
    compiled: Call
    inputs: list[torch.Tensor] = dataclasses.field(default_factory=list)
    found: list[torch.Tensor] = dataclasses.field(default_factory=list)
    expected: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def make(self, inputs: Sequence[torch.Tensor]) -> int:
        """Calls on each of `inputs`; how many results had eager's bits."""
        equal = 0
        for value in inputs:
            self.inputs.append(value)
            self.found.append(self.compiled(value))
            self.expected.append(self.model(value))
            equal += same_bits(self.found[-1], self.expected[-1])
        return equal


def _moved(
    model: nn.Module, fresh_input: Callable[[], torch.Tensor]
) -> tuple[GraphReport, list[Check]]:
    """Calls that move the inputs, then the weights as well."""
    calls = _Calls(model, _compiled(model))
    calls.make([fresh_input() for _ in range(UNGRAPHED)])
    equal = calls.make([fresh_input() for _ in range(REPLAYS)])
    with_first_weights = sum(each.replays for each in registry.report().graphs)
    places = len({value.data_ptr() for value in calls.inputs})
    inputs_moved = Check(
        "inputs moved",
        equal == with_first_weights == REPLAYS and places == len(calls.inputs),
        f"{with_first_weights} replays, every input elsewhere: {equal} have eager's bits",
    )
    tensors, how = move_weights(model)
    equal = calls.make([fresh_input() for _ in range(REPLAYS)])
    graph = registry.report().graphs[0]
    replays = graph.replays - with_first_weights
    weights_moved = Check(
        "weights moved",
        equal == replays == REPLAYS and graph.relinks == 0,
        f"{how} replaced {tensors} tensors, NaN is left in the old ones; "
        f"{replays} replays, none linked anew: {equal} have eager's bits",
    )
    kept = sum(map(same_bits, calls.found, calls.expected))
    checks = [
        _proven(graph, len(registry.report().graphs)),
        inputs_moved,
        weights_moved,
        Check(
            "outputs kept",
            kept == len(calls.found),
            f"{kept} of {len(calls.found)} outputs are still what they were when they were made",
        ),
    ]
    return dataclasses.replace(graph), checks


def _proven(graph: GraphReport, graphs: int) -> Check:
    proven = graph.state == GRAPHED and graph.proof == str(proof.BIT_EQUAL)
    found = f"{graph.proof}; {graph.reason}" if graph.reason else graph.proof
    if graphs != 1:
        found += f"; {graphs} graphs in place of one"
    return Check("proof", proven and graphs == 1, found)


def move_weights(model: nn.Module) -> tuple[int, str]:
    """Gives the model other weights at other addresses, and fills the old memory with NaN; how many
    tensors that were, and what moved them. What was one tensor stays one (tied weights)."""
    old = dict(model.state_dict(keep_vars=True))
    new: dict[int, torch.Tensor] = {}
    for tensor in old.values():
        if id(tensor) not in new:
            values = tensor * 1.25 if tensor.is_floating_point() else tensor.clone()
            same_kind = isinstance(tensor, nn.Parameter)
            new[id(tensor)] = nn.Parameter(values, tensor.requires_grad) if same_kind else values
    memory = {id(tensor): tensor.detach() for tensor in old.values()}
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        how = "tensor.data = ..."  # nn.LSTM itself asks for the very parameters of its last call
        for tensor in old.values():
            tensor.data = new[id(tensor)].detach()
    else:
        how = "load_state_dict(assign=True)"
        model.load_state_dict({name: new[id(tensor)] for name, tensor in old.items()}, assign=True)
    for tensor in memory.values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    return len(new), how


def _planted(model: nn.Module, fresh_input: Callable[[], torch.Tensor]) -> Check:
    """Compiles once more, with the address of every kernel's result hidden in a table in memory,
    where nothing can find it."""
    log = logging.getLogger("pygraph")
    level = log.level
    log.setLevel(logging.CRITICAL)  # what it would say is what is expected here
    try:
        with faults.hidden_pointers(-1):
            calls = _Calls(model, _compiled(model))
            equal = calls.make([fresh_input() for _ in range(UNGRAPHED + 1)])
    finally:
        log.setLevel(level)
    graph = registry.report().graphs[0]
    refused = graph.state == FALLBACK and graph.proofs == graph.replays == 0
    found = (
        f"proof {graph.proof}; runs without a graph" if refused else f"not refused: {graph.state}"
    )
    return Check(
        "fault planted",
        refused and graph.proof_passed is False and equal == len(calls.found),
        f"every kernel's result through a hidden pointer: {found}, {equal} of {len(calls.found)} "
        "results have eager's bits",
    )


def as_table(shown: Shown) -> Table:
    graph = shown.graph
    table = Table(
        title=f"{shown.model} ({shown.parameters / 1e6:.1f} million parameters) on the CPU twin",
        title_justify="left",
    )
    table.add_column("what")
    table.add_column("found")
    table.add_column("which means", style="dim")
    for row in _figures(graph):
        table.add_row(*map(Text, row))
    table.add_section()
    for check in shown.checks:
        verdict = Text("ok", "green") if check.passed else Text("FAILED", "bold red")
        table.add_row(Text(check.name), verdict, Text(check.found))
    return table


def _figures(graph: GraphReport) -> list[tuple[str, str, str]]:
    return [
        (
            "nodes",
            f"{graph.nodes}: {graph.kernels} kernels, {graph.copy_nodes} copies, "
            f"{graph.fill_nodes} fills",
            "what a replay launches at once",
        ),
        ("regions", f"{graph.regions}", "arguments, outputs and scratch: memory that they address"),
        ("relocations", f"{graph.relocations}", "addresses that are re-pointed when memory moves"),
        ("coincidences", f"{graph.coincidences}", "words that look like addresses and are none"),
        ("noise", f"{graph.noise}", "words that differ between two captures and mean nothing"),
        (
            "scratch",
            as_bytes(graph.arena_bytes),
            f"one arena; at least {as_bytes(graph.arena_lower_bound)} must be live at once, "
            f"{as_bytes(graph.scratch_bytes)} if no memory were used twice",
        ),
        (
            "outputs",
            f"{graph.outputs_direct} direct, {graph.outputs_copied} copied, "
            f"{graph.outputs_kept} kept, {graph.outputs_aliased} aliased",
            "direct: a kernel writes into the tensor that the caller gets",
        ),
        (
            "calls",
            f"{graph.replays} of {graph.calls} replayed",
            f"the first {UNGRAPHED} run as they are; {as_bytes(graph.bytes_copied)} copied",
        ),
    ]


def show(name: str, console: Console) -> Shown:
    """Runs a model and shows what became of it. One that cannot run is a failed check."""
    started = time.perf_counter()
    with console.status(f"{name} on the twin"):
        try:
            shown = run(name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            console.print(Text(f"{name} did not run on the CPU twin: {reason}", style="red"))
            graph = GraphReport(name, FALLBACK, reason)
            seconds = time.perf_counter() - started
            return Shown(name, 0, graph, [Check("run", False, reason)], seconds)
    console.print(as_table(shown))
    return shown
