"""Backwards of a forward that is a graph: each is a graph, too.

Which gradients a backward gets, and how they lie in memory, is up to its caller. There is a graph
for each kind of them: the first backward of a kind runs as it is and is watched, the second is
linked and proven, later ones are replayed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from pygraph._engine import OutputKind
from pygraph.capturing.device import Device
from pygraph.decide import agreement
from pygraph.decide.agreement import Collectives
from pygraph.decide.signatures import SignatureRules
from pygraph.frontends.callable.kept import KeptGraph
from pygraph.frontends.callable.lifting import Substitution
from pygraph.frontends.callable.returned import Part, Returned, detached, objects_in
from pygraph.frontends.callable.training import SavingPlan
from pygraph.reporting import FALLBACK
from pygraph.runtime import registry
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.torch_private import modes

#: Kinds of gradients that get a graph.
_KINDS = 8

#: What a backward returns: one gradient for each leaf that it is for.
Gradients = list[torch.Tensor | None]


@dataclasses.dataclass(frozen=True)
class Reach:
    """What a backward was seen to work with besides its tensors: ranks, and GPUs."""

    collectives: Collectives = agreement.NONE
    others: frozenset[int] = frozenset()  #: GPUs that it works on, too


#: Calls a backward and looks at what it does. Returns what that returns, and what was seen; None:
#: it was not looked at.
Watch = Callable[[Callable[[], Gradients]], tuple[Gradients, Reach | None]]
#: Told why later calls shall not need backwards.
Refuse = Callable[[str], None]


@dataclasses.dataclass
class _Kind:
    """Gradients that lie alike, in the same modes."""

    which: tuple[Any, ...]
    same_modes: Callable[[], bool]
    graph: CompiledGraph | None = None
    as_it_is: bool = False  #: for good


class Backward:
    """From saved tensors and the gradients of results to the gradients of leaves."""

    def __init__(
        self,
        name: str,
        kept: KeptGraph,
        plan: SavingPlan,
        stays: Collection[int],
        device: Device,
        watch: Watch,
        refuse: Refuse,
    ) -> None:
        """`stays`: leaves that stand in one place from call to call."""
        self._name = name
        self._kept = kept
        self._plan = plan
        self._stays = [
            number
            for number, leaf in enumerate(plan.saved_leaves, len(plan.saved_results))
            if leaf in stays
        ]
        self._device = device
        self._watch, self._refuse = watch, refuse
        self._kinds: list[_Kind] = []

    @property
    def leaves(self) -> list[int]:
        """The leaves that gradients are for."""
        return self._kept.leaves

    def release(self) -> None:
        """Drops its graphs; backwards run as they are from now on."""
        for kind in self._kinds:
            kind.as_it_is = True
            if kind.graph is not None:
                kind.graph.release()

    def __call__(
        self, saved: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> Gradients:
        """Raises RuntimeError where the gradients are to be differentiated themselves."""
        if torch.is_grad_enabled():
            self._refuse("its gradients are differentiated again")
            raise RuntimeError(
                f"{self._name}: the gradients of a captured call cannot be differentiated "
                "(create_graph=True); later calls run as they are, and theirs can"
            )
        given = [each for each in gradients if each is not None]
        if not given:
            return [None] * len(self._kept.leaves)
        kind = self._kind(gradients)
        arguments = [*saved, *given]
        step = functools.partial(self._step, [each is not None for each in gradients])
        if kind is None or kind.as_it_is or self._device.busy():
            return step(arguments)
        if kind.graph is None:
            found, seen = self._watch(functools.partial(step, arguments))
            if seen is not None and not kind.as_it_is:
                kind.graph = self._make_graph(step, seen)
            return found
        results: Any = kind.graph.dispatcher(arguments)
        if kind.graph.report.state == FALLBACK and not kind.as_it_is:
            kind.as_it_is = True
            self._refuse(f"of its backward: {kind.graph.report.reason}")
        return list(results)

    def _kind(self, gradients: Sequence[torch.Tensor | None]) -> _Kind | None:
        if modes.foreign_modes():
            return None
        which = tuple(map(_lies, gradients))
        for kind in self._kinds:
            if kind.which == which and kind.same_modes():
                return kind
        if len(self._kinds) >= _KINDS or False in which:
            return None
        self._kinds.append(_Kind(which, modes.same_modes()))
        return self._kinds[-1]

    def _make_graph(self, step: Callable[[list[Any]], Gradients], seen: Reach) -> CompiledGraph:
        graph = CompiledGraph(
            step,
            name=registry.next_name(f"backward of {self._name}"),
            constants=self._stays,
            watched=self._stays,
            seen=True,
            collectives=seen.collectives,
            others=seen.others,
            device=self._device,
            sizes=SignatureRules(capture_at=1, at_once=1),
            together=lambda: range(len(self._kept.leaves)),
        )
        registry.add(graph)
        return graph

    def _step(self, which: Sequence[bool], arguments: list[Any]) -> Gradients:
        """What a graph of it does. `which`: of the gradients, those that are there."""
        count = len(self._plan.saved_results) + len(self._plan.saved_leaves)
        given = iter(arguments[count:])
        gradients = [next(given) if there else None for there in which]
        run = functools.partial(self._kept.run, self._plan.table(arguments[:count]), gradients)
        space = self._device.space()
        if not any(space.contains(each.data_ptr()) for each in arguments):
            return run()
        with Substitution([], [], self._device):
            return run()


def _lies(gradient: torch.Tensor | None) -> Any:
    """How a gradient lies in memory; False: not as a graph needs it."""
    if gradient is None:
        return None
    plain = type(gradient) in (torch.Tensor, torch.nn.Parameter)
    if not plain or gradient.layout != torch.strided or gradient.is_conj() or gradient.is_neg():
        return False
    return gradient.dtype, gradient.device, gradient.shape, gradient.stride()


class Pending:
    """What the calls of a forward return that a graph serves: results that wait for a backward."""

    def __init__(self, form: Returned, plan: SavingPlan, backward: Backward) -> None:
        self._form, self._plan, self._backward = form, plan, backward
        self._results = max([plan.returned, *(number + 1 for number in plan.saved_results)])
        returned = {index for kind, index, *_ in form.parts if kind is OutputKind.LEAF}
        self._leaves = sorted({*returned, *plan.saved_leaves, *backward.leaves})
        self._objects = objects_in(form.parts)
        everything = self._results + len(self._leaves) + len(self._objects)
        #: How the engine makes it, of the graph's results.
        self.parts: list[Part] = [
            (OutputKind.MADE, 0, everything, self._tied),
            *((OutputKind.RESULT, number, 0, None) for number in range(self._results)),
            *((OutputKind.LEAF, leaf, 0, None) for leaf in self._leaves),
            *((OutputKind.OBJECT, place, 0, None) for place in self._objects),
        ]

    def build(
        self, results: Sequence[Any], leaves: Sequence[Any], objects: Mapping[int, Any]
    ) -> Any:
        """The same, without the engine."""
        found = [*results[: self._results], *(leaves[leaf] for leaf in self._leaves)]
        return self._tied([*found, *(objects[place] for place in self._objects)])

    def release(self) -> None:
        """Drops the graphs of its backwards."""
        self._backward.release()

    def _tied(self, found: list[Any]) -> Any:
        plan, results = self._plan, found[: self._results]
        rest = found[self._results :]
        leaves = dict(zip(self._leaves, rest, strict=False))
        objects = dict(zip(self._objects, rest[len(self._leaves) :], strict=True))
        saved = [results[number] for number in plan.saved_results]
        saved += [leaves[leaf] for leaf in plan.saved_leaves]
        # Others may be views of these, and would wait, too, if these themselves did.
        waiting = [results[number].detach() for number in plan.waiting]
        tied = Waiting.apply(
            self._backward, saved, waiting, *(leaves[leaf] for leaf in self._backward.leaves)
        )
        results = [detached(each) for each in results]
        for number, each in zip(plan.waiting, tied, strict=True):
            results[number] = each
        return self._form.build(results, leaves, objects)


class Waiting(torch.autograd.Function):
    """Ties a backward to results that a graph has made."""

    @staticmethod
    def forward(
        ctx: Any,
        backward: Backward,
        saved: list[torch.Tensor],
        outputs: list[torch.Tensor],
        *leaves: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.run = backward
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, None, None, *ctx.run(ctx.saved_tensors, gradients))
