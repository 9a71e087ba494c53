"""`capture(debug="compare")`: a replay and the callable side by side.

A call that a graph would serve is replayed first. What that has written is rewound, and the
callable runs as it is: its results and its state are the caller's. Where the two have not the same
bits, the callable runs again from the state that the call began with, and tells by that how far it
is from itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from pygraph._engine import OutputKind
from pygraph.capturing import generators, reference, tensors
from pygraph.capturing.device import CaptureFailed, Device, is_strided
from pygraph.capturing.distance import distances
from pygraph.capturing.proof import Repeats
from pygraph.capturing.reference import Reference
from pygraph.frontends.callable.returned import Part, Returned, take_apart
from pygraph.frontends.callable.step import Call, Describe, FinishedRun, Step, run
from pygraph.frontends.callable.structure import Tree
from pygraph.frontends.callable.training import TrainingStep, versions_of
from pygraph.frontends.callable.watching import random_states_of_python
from pygraph.runtime import notes
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.runtime.warn import warn_once
from pygraph.torch_private.tensors import set_versions

#: Notes on one graph, at most; calls are counted beyond that.
_MOST_NOTES = 16


@dataclasses.dataclass(frozen=True)
class _Unlike:
    """One place in which a replay and the callable differ."""

    path: str
    what: str
    result: int | None = None  #: its number in Repeats, where the callable may differ from itself
    gap: float = 0.0

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class Comparing:
    """Serves calls of one callable by it and by replays. One call at a time."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._noted: set[tuple[str, str]] = set()  #: (graph, what is said of which place)
        self._certain: set[tuple[str, str]] = set()  #: (graph, path)

    def serve(
        self,
        number: int,
        graph: CompiledGraph,
        step: Step,
        call: Call,
        arguments: list[Any],
        *,
        describe: Describe,
        device: Device,
    ) -> Any:
        """What the callable returns in its call of this number. Where no program takes the call,
        `step` has run for the caller (its `first` is there), and nothing is compared. Raises what
        the callable raises."""
        leaves = call.tree.leaves
        everything = range(len(leaves))
        # What the call began with and what it leaves, of either.
        if reference.shortage(leaves * 2, range(2 * len(leaves)), (), device) is not None:
            why = "not enough memory is free for copies of what they read"
            notes.note(f"{graph.report.name}: calls are not compared: {why}")
            return run(self._function, call.positional, call.named, describe, call.tree).value

        def replay(_: list[Any]) -> Any:
            return graph.dispatcher(arguments)

        replayed = reference.take(replay, leaves, everything, (), device)
        if step.first is not None:
            return None
        replayed.rewind()
        runs = _Runs(self._function, call, describe)
        host = _on_host(leaves, device)
        random = random_states_of_python()
        own = reference.take(runs, leaves, everything, (), device)
        graph.report.compared += 1
        if runs.made.problem() is None:  # without spent graphs, as a replay puts them there
            call.tree.put(runs.made.rebound)
        beside = [*runs.unlike(step), *_unlike_on_host(host, call.tree)]
        if (own.drew_on_host and not device.twin) or random_states_of_python() != random:
            beside.append(_Unlike("random numbers of the host", "the callable draws some"))
        paths = runs.paths() if runs.same_form(step) else []
        found = [*beside, *_unlike_tensors(replayed, own, paths, call.tree)]
        if found:
            # What the callable has changed beside tensors is not rewound: it runs no more then.
            self._tell(f"call {number}", graph, found, None if beside else own, runs)
        return runs.made.value

    def _tell(
        self,
        call: str,
        graph: CompiledGraph,
        found: list[_Unlike],
        own: Reference | None,
        runs: _Runs,
    ) -> None:
        """`own`: the callable's run, if it may be repeated."""
        name = graph.report.name
        new = [each for each in found if (name, each.path) not in self._certain]
        sure = [each for each in new if each.result is None]
        doubtful = [each for each in new if each.result is not None]
        if own is not None and doubtful and not sure:
            sure, unlike_itself = runs.beyond_spread(own, Repeats(own), doubtful)
            if not sure and len(doubtful) == len(found):
                text = f"the callable itself is not deterministic here: {found[0]}; {unlike_itself}"
                self._note(graph, call, found[0].path, text)
                return
        graph.report.differed += 1
        if sure:
            self._certain.update((name, each.path) for each in sure)
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            text = f"a replay is not what the callable does: {sure[0]}{more}"
            self._note(graph, call, sure[0].path, text)

    def _note(self, graph: CompiledGraph, call: str, path: str, text: str) -> None:
        """Once for each place and kind of difference."""
        report = graph.report
        key = report.name, text.partition(":")[0] + path
        if key in self._noted or len(report.differences) >= _MOST_NOTES:
            return
        self._noted.add(key)
        report.differences.append(f"{call}: {text}")
        notes.note(f"{report.name}: {call}: {text}")
        warn_once(f"{report.name}: {call}: {text}")


class _Runs:
    """Runs of the callable that begin alike. The first one is the caller's."""

    def __init__(self, function: Any, call: Call, describe: Describe) -> None:
        self._function = function
        self._call = call
        self._describe = describe
        self._made: FinishedRun | None = None
        self.returned = Returned()
        self._problem: str | None = None

    @property
    def made(self) -> FinishedRun:
        """The caller's."""
        assert self._made is not None
        return self._made

    def __call__(self, _: list[Any]) -> list[torch.Tensor]:
        """The tensors of what a run returns and rebinds."""
        call = self._call
        if self._made is not None:
            call.tree.restore()
        made = run(self._function, call.positional, call.named, self._describe, call.tree)
        if self._made is None:
            self._made = made
            try:
                self.returned = self._taken_apart(made)
            except CaptureFailed as error:
                self._problem = str(error)
            return self.returned.tensors
        again = self._taken_apart(made)
        if not again.same_form(self.returned):
            raise CaptureFailed("it does not return or rebind the same")
        return again.tensors

    def _taken_apart(self, made: FinishedRun) -> Returned:
        return take_apart(made.value, list(made.rebound.values()), self._call.tree)

    def paths(self) -> list[str]:
        """Of the tensors that the caller's run returns or rebinds."""
        bound = zip(self.returned.bound, self.made.rebound, strict=True)
        found = {number: self._call.tree.path(place) for number, place in bound}
        for path, (kind, index, *_) in reversed(list(_walk(self.returned.parts))):
            if kind is OutputKind.RESULT:
                found[index] = path
        return [found[number] for number in range(self.returned.count)]

    def same_form(self, step: Step) -> bool:
        """Whether a replay returns and rebinds the same but for the tensors' values."""
        if self._problem is not None or step.form is None:
            return False
        return self.returned.same_form(step.form) and step.slots == list(self.made.rebound)

    def unlike(self, step: Step) -> Iterator[_Unlike]:
        """Where what is returned and rebound, and Python's state, are not those of a replay,
        whatever is in the tensors."""
        made, tree = self.made, self._call.tree
        if made.change is not None:
            path, _, values = made.change.partition(" was ")
            was = f" (it was {values})" if values else ""
            yield _Unlike(path, f"the callable changes it, and a replay does not{was}")
        if self._problem is not None:
            yield _Unlike("result", self._problem)
        elif made.waits() != isinstance(step, TrainingStep):
            yield _Unlike("result", "a backward can be called on one of the two only")
        if self._problem is None and step.form is not None and not self.same_form(step):
            yield from self._unlike_parts(step.form, tree)
            yield from self._unlike_places(step, tree)

    def _unlike_parts(self, form: Returned, tree: Tree) -> Iterator[_Unlike]:
        pairs = zip(_walk(self.returned.parts), _walk(form.parts), strict=False)
        for (path, ours), (_, theirs) in pairs:
            if not _of(ours).same_form(_of(theirs)):
                what = f"it is {_what(ours, tree)}, and {_what(theirs, tree)} in a replay"
                yield _Unlike(path, what)
                return

    def _unlike_places(self, step: Step, tree: Tree) -> Iterator[_Unlike]:
        assert step.form is not None
        ours = dict(zip(self.made.rebound, self.returned.bound, strict=True))
        theirs = dict(zip(step.slots, step.form.bound, strict=True))
        for place in sorted({*ours, *theirs}):
            if ours.get(place) == theirs.get(place):
                continue
            if place not in theirs:
                what = "the callable puts something else there, and a replay does not"
            elif place not in ours:
                what = "a replay puts something else there, and the callable does not"
            else:
                what = "the callable and a replay put different things there"
            yield _Unlike(tree.path(place), what)

    def beyond_spread(
        self, own: Reference, repeats: Repeats, found: Sequence[_Unlike]
    ) -> tuple[list[_Unlike], str]:
        """Those of some differences that the callable's own do not explain, and what those are.
        The caller's run remains the one that has been."""
        after = self._describe(self._call.positional, self._call.named)
        leaves = self._call.tree.leaves
        versions = versions_of(leaves)
        gaps = {each.result: each.gap for each in found if each.result is not None}
        try:
            beyond, gap = repeats.beyond(gaps)
            far = f"by up to {gap:.3g}" if gap else "in signs of zeros or bits of NaNs"
            text = f"from the same state it differs from itself {far}"
        except (torch.OutOfMemoryError, MemoryError):
            beyond, text = list(gaps), ""
        except Exception as error:
            beyond, text = [], f"from the same state it does something else: {error}"
        finally:
            own.finish()
            self._call.tree.restore()
            after.restore()
            counted = [(leaf, n) for leaf, n in zip(leaves, versions, strict=True) if n is not None]
            set_versions(tuple(leaf for leaf, _ in counted), tuple(n for _, n in counted))
        return [each for each in found if each.result in beyond], text


def _walk(parts: Sequence[Part]) -> Iterator[tuple[str, Part]]:
    """The parts of a result, and how a program would write each."""
    waiting = ["result"]
    for part in parts:
        kind, _, children, value = part
        path = waiting.pop()
        yield path, part
        keys = map(repr, value) if kind is OutputKind.DICT else range(children)
        waiting += reversed([f"{path}[{key}]" for key in keys])


def _of(part: Part) -> Returned:
    return Returned([part])


def _what(part: Part, tree: Tree) -> str:
    kind, index, children, value = part
    if kind is OutputKind.RESULT:
        return f"new tensor {index}"
    if kind is OutputKind.LEAF:
        return tree.path(tree.leaf_places[index])
    if kind is OutputKind.OBJECT:
        return tree.path(index)
    if kind is OutputKind.CONSTANT:
        return repr(value)
    return f"a {kind.name.lower()} of {children}"


def _unlike_tensors(
    replayed: Reference, own: Reference, results: Sequence[str], tree: Tree
) -> Iterator[_Unlike]:
    """Results, by their paths, then written tensors, then generators."""
    count = len(results)
    paths, numbers = list(results), list[int | None](range(count))
    ours, theirs = own.expected[:count], replayed.expected[:count]
    number_of = {leaf: n for n, leaf in enumerate(own.after, len(own.expected))}
    for leaf in sorted(own.mutated | replayed.mutated):
        paths.append(tree.path(tree.leaf_places[leaf]))
        ours.append(own.after.get(leaf, tree.leaves[leaf]))
        theirs.append(replayed.after[leaf] if leaf in replayed.after else own.before[leaf])
        numbers.append(number_of.get(leaf))
    differing = set(tensors.differing(ours, theirs))
    for n, (path, one, other) in enumerate(zip(paths, ours, theirs, strict=True)):
        if _lies(one) != _lies(other):
            yield _Unlike(path, f"it is {_lies(one)}, and {_lies(other)} in a replay")
        elif n in differing:
            (gap,) = distances([one], [other])
            yield _Unlike(path, f"{_lies(one)}, {_how_far(one, other, gap)}", numbers[n], gap)
    for source in generators.drawn(replayed.random_after, own.random_after):
        named = source in range(len(tree.leaves))
        path = tree.path(tree.leaf_places[source]) if named else generators.name(source)
        yield _Unlike(path, "the callable and a replay draw not as many random numbers")


def _lies(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    strides = "" if tensor.is_contiguous() else f" of strides {list(tensor.stride())}"
    return f"{dtype} {list(tensor.shape)}{strides}"


def _how_far(one: torch.Tensor, other: torch.Tensor, gap: float) -> str:
    count = tensors.count_differing(one, other)
    by = f"by up to {gap:.3g}" if gap else "in signs of zeros or bits of NaNs"
    return f"{count} of {one.numel()} elements differ {by}"


def _on_host(leaves: Sequence[Any], device: Device) -> dict[int, torch.Tensor]:
    """Copies of the tensors that no device has."""
    return {
        n: tensors.static_copy(leaf)
        for n, leaf in enumerate(leaves)
        if is_strided(leaf) and leaf.device.type == "cpu" and not device.owns(leaf)
    }


def _unlike_on_host(before: dict[int, torch.Tensor], tree: Tree) -> Iterable[_Unlike]:
    now = [tree.leaves[n] for n in before]
    for written in tensors.differing(list(before.values()), now):
        path = tree.path(tree.leaf_places[list(before)[written]])
        yield _Unlike(path, "the callable writes it on the host, and a replay does not")
