"""Trains a workload with one backend and with another, from the same seed, and says how far apart
they end: not a bit, no further than the reference from itself, or further.

The reference runs first. From torch 2.11 on, Inductor shares tuned kernels between compilations of
a process and may tune one anew; what is compiled first must not be what is under test.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

import pygraph
from pygraph.capturing.tensors import same_bits
from pygraph.reporting import GraphReport
from training.workload import Compile, Setup, Training, Workload

BIT_EQUAL = "bit-equal"
WITHIN_SPREAD = "within run-to-run spread"
DIFFERENT = "different"

#: A candidate that is one more run of the reference is nearly always nearer to one of a few runs
#: than twice the largest distance among these.
SPREAD_FACTOR = 2.0

Differences = dict[str, float]
Values = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Backend:
    name: str
    compile: Compile


@dataclasses.dataclass(frozen=True)
class Target:
    """Where to train, what is under test there, and what it is compared with."""

    name: str
    device: str
    full: bool
    candidate: Backend
    reference: Backend


TARGETS: dict[str, Target] = {
    "twin": Target(
        "twin",
        "cpu",
        False,
        Backend(
            "pygraph on the twin",
            functools.partial(torch.compile, backend="pygraph", options={"device": "twin"}),
        ),
        Backend("aot_eager", functools.partial(torch.compile, backend="aot_eager")),
    ),
    "cuda": Target(
        "cuda",
        "cuda",
        True,
        Backend("pygraph", functools.partial(torch.compile, backend="pygraph")),
        Backend("torch.compile default", torch.compile),
    ),
}


@dataclasses.dataclass
class Trace:
    """What a training left behind, on the host: everything that a later step would depend on."""

    losses: Values  #: "step.place": all that the steps returned
    parameters: Values
    buffers: Values
    optimisers: Values
    random: Values  #: what the generators would draw next: has as much been drawn as should be?
    graphs: list[GraphReport]
    seconds: float
    trained: bool  #: all losses are finite, and every model has changed

    def groups(self) -> dict[str, Values]:
        return {
            "losses": self.losses,
            "parameters": self.parameters,
            "buffers": self.buffers,
            "optimisers": self.optimisers,
            "random": self.random,
        }

    @property
    def deployed(self) -> list[GraphReport]:
        """Graphs that served calls."""
        return [graph for graph in self.graphs if graph.graphed and graph.replays]

    @property
    def fallbacks(self) -> dict[str, int]:
        """Why graphs did not serve calls, and how many for that reason."""
        idle = [graph for graph in self.graphs if not (graph.graphed and graph.replays)]
        return dict(Counter(graph.blame or graph.state for graph in idle))


def train(workload: Workload, backend: Backend, target: Target, steps: int, seed: int) -> Trace:
    """Trains anew from `seed`: a fresh model, compiled afresh. What the steps return stays on the
    device until the end."""
    torch._dynamo.reset()
    pygraph.reset()
    gc.collect()
    torch.manual_seed(seed)
    setup = Setup(
        target.device, target.full, backend.compile, torch.Generator().manual_seed(seed + 1)
    )
    started = time.monotonic()
    # Dynamo leaves nn.LSTM out of its graphs unless it is told otherwise.
    with torch._dynamo.config.patch(allow_rnn=True):
        training = workload.build(setup)
        before = _named(training, "named_parameters")
        steps_done = [training.step(index) for index in range(steps)]
        losses = {
            f"{index}.{place}": value.cpu()
            for index, values in enumerate(steps_done)
            for place, value in enumerate(values)
        }
    seconds = time.monotonic() - started
    parameters = _named(training, "named_parameters")
    finite = all(bool(loss.isfinite().all()) for loss in losses.values())
    return Trace(
        losses=losses,
        parameters=parameters,
        buffers=_named(training, "named_buffers"),
        optimisers=_optimiser_state(training),
        random=_next_random(target.device),
        graphs=pygraph.report().graphs,
        seconds=round(seconds, 2),
        trained=finite and all(_changed(training, before, parameters)),
    )


def _named(training: Training, method: str) -> Values:
    """Copies on the host of all that modules call so."""
    return {
        f"{place}.{name}": value.detach().cpu().clone()
        for place, module in enumerate(training.modules)
        for name, value in getattr(module, method)()
    }


def _changed(training: Training, before: Values, after: Values) -> list[bool]:
    """For each model, whether any parameter did."""
    changed = {name for name in before if not same_bits(before[name], after[name])}
    return [
        any(name.startswith(f"{place}.") for name in changed)
        for place in range(len(training.modules))
    ]


def _optimiser_state(training: Training) -> Values:
    found: Values = {}
    for place, optimiser in enumerate(training.optimisers):
        for parameter, state in optimiser.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    found[f"{place}.{parameter}.{name}"] = value.detach().cpu().clone()
    return found


def _next_random(device: str) -> Values:
    return {each: torch.rand(8, device=each).cpu() for each in dict.fromkeys(("cpu", device))}


# -------------------------------------------------------------------------------------- compare


def bit_equal(left: Trace, right: Trace) -> bool:
    return all(
        values.keys() == others.keys()
        and all(same_bits(values[name], others[name]) for name in values)
        for values, others in zip(left.groups().values(), right.groups().values(), strict=True)
    )


def differences(left: Trace, right: Trace) -> Differences:
    """Per kind of value the largest difference, as a part of the largest value of its tensor.
    Infinite where one is no number, or where they do not hold the same tensors."""
    pairs = zip(left.groups().items(), right.groups().values(), strict=True)
    return {kind: _largest(values, others) for (kind, values), others in pairs}


def _largest(values: Values, others: Values) -> float:
    if values.keys() != others.keys():
        return math.inf
    return max((_distance(values[name], others[name]) for name in values), default=0.0)


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    if same_bits(left, right) or not left.numel():
        return 0.0
    if left.shape != right.shape:
        return math.inf
    a, b = left.double(), right.double()
    largest = float((a - b).abs().max())
    if largest == 0.0:
        return 0.0  # zeros of different sign
    distance = largest / float(torch.maximum(a.abs().max(), b.abs().max()))
    return distance if math.isfinite(distance) else math.inf


def first_difference(left: Trace, right: Trace) -> int | None:
    """The first step that did not return the same bits."""
    names = dict.fromkeys((*left.losses, *right.losses))
    steps = (
        int(name.partition(".")[0])
        for name in names
        if not same_bits(left.losses.get(name), right.losses.get(name))
    )
    return min(steps, default=None)


def spread(runs: Sequence[Trace]) -> Differences:
    """How far runs of the same thing are from each other."""
    found: Differences = dict.fromkeys(runs[0].groups(), 0.0)
    for left, right in itertools.combinations(runs, 2):
        for kind, distance in differences(left, right).items():
            found[kind] = max(found[kind], distance)
    return found


@dataclasses.dataclass
class Comparison:
    verdict: str
    found: Differences  #: to the nearest run of the reference
    spread: Differences  #: of the reference
    deterministic: bool  #: all runs of the reference have the same bits
    first_step: int | None  #: that differs from the first run of the reference

    def __str__(self) -> str:
        figures = ", ".join(
            f"{kind} {distance:.3g} (reference: {self.spread[kind]:.3g})"
            for kind, distance in self.found.items()
            if distance or self.spread[kind]
        )
        step = "" if self.first_step is None else f", losses from step {self.first_step} on"
        return f"{self.verdict}{step}: {figures}" if figures else f"{self.verdict}{step}"


def compare(candidate: Trace, references: Sequence[Trace]) -> Comparison:
    """Bits must be equal where the reference's own are. Where they are not, the candidate must be
    near one of the runs, for every kind of value."""
    own = spread(references)
    deterministic = all(bit_equal(references[0], other) for other in references[1:])
    to_each = [differences(candidate, reference) for reference in references]
    nearest = min(to_each, key=lambda each: max(each.values()))
    first = first_difference(candidate, references[0])
    if any(bit_equal(candidate, reference) for reference in references):
        return Comparison(BIT_EQUAL, dict.fromkeys(own, 0.0), own, deterministic, first)
    near = all(nearest[kind] <= SPREAD_FACTOR * own[kind] for kind in own)
    verdict = WITHIN_SPREAD if near and not deterministic else DIFFERENT
    return Comparison(verdict, nearest, own, deterministic, first)


@dataclasses.dataclass
class Outcome:
    """A workload's comparison, and the runs behind it."""

    comparison: Comparison
    candidate: Trace
    references: list[Trace]

    @property
    def problems(self) -> list[str]:
        """What makes the comparison worthless, whatever its verdict."""
        found = []
        if not all(run.trained for run in (self.candidate, *self.references)):
            found.append("a loss is not finite, or a model did not change")
        if any(run.graphs for run in self.references):
            found.append("the reference ran with graphs of PyGraph")
        return found


def check(
    workload: Workload,
    target: Target,
    steps: int,
    seed: int = 0,
    repeats: tuple[int, int] = (1, 1),
    note: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Trains with the reference, then with the candidate. `repeats`: how many runs of the reference
    there are if all have the same bits, and if not. One run counts as deterministic."""
    references: list[Trace] = []
    at_least, at_most = repeats
    while len(references) < at_least or (
        len(references) < at_most
        and not all(bit_equal(references[0], other) for other in references[1:])
    ):
        note(f"{target.reference.name}, run {len(references) + 1}")
        references.append(train(workload, target.reference, target, steps, seed))
    note(target.candidate.name)
    candidate = train(workload, target.candidate, target, steps, seed)
    return Outcome(compare(candidate, references), candidate, references)


def missing_graphs(workload: Workload, trace: Trace) -> str | None:
    """What to say where fewer graphs served calls than the workload expects."""
    deployed = len(trace.deployed)
    if deployed >= workload.graphs:
        return None
    return (
        f"{deployed} graphs served calls, expected at least {workload.graphs}; "
        f"others: {_listed(trace.fallbacks)}"
    )


def _listed(reasons: Mapping[str, int]) -> str:
    return "; ".join(f"{count} x {reason}" for reason, count in reasons.items()) or "none"
