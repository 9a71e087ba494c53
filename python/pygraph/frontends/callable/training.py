"""A step whose results wait for a backward. What autograd saves for that is among its results,
behind those of the callable, and its captures leave a graph of autograd's (kept.py)."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.checkpoint

from pygraph.capturing import tensors
from pygraph.capturing.device import CaptureFailed, Device
from pygraph.frontends.callable.kept import KeptGraph
from pygraph.frontends.callable.lifting import view_in
from pygraph.frontends.callable.returned import Returned
from pygraph.frontends.callable.saving import Saving, Savings
from pygraph.frontends.callable.step import Describe, FinishedRun, Step, tensors_in
from pygraph.frontends.callable.watching import Watched
from pygraph.torch_private.tensors import version

#: Functions of torch's by which a program decides what autograd saves.
_OWN_HOOKS = (
    torch.autograd.graph.saved_tensors_hooks.__enter__.__code__,
    torch.autograd.graph.disable_saved_tensors_hooks.__wrapped__.__code__,
    torch.utils.checkpoint.CheckpointFunction.forward.__code__,
)


@dataclasses.dataclass(frozen=True)
class SavedResult:
    """A saved tensor that is one of the step's results."""

    result: int


@dataclasses.dataclass(frozen=True)
class SavedLeaf:
    """A saved tensor that lies in one of the call's leaves, so many bytes from its start."""

    leaf: int
    offset: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, leaf: torch.Tensor) -> torch.Tensor:
        return view_in(leaf, self.offset, self.dtype, self.sizes, self.strides)


@dataclasses.dataclass(frozen=True)
class SavingPlan:
    """What of a step's results is for whom. The same in all runs."""

    returned: int  #: results that are returned or rebound; those behind them are saved
    waiting: tuple[int, ...]  #: those that wait for a backward
    saved: tuple[SavedResult | SavedLeaf, ...]  #: by autograd's numbers

    @functools.cached_property
    def saved_results(self) -> list[int]:
        """The results that are saved."""
        return sorted({each.result for each in self.saved if isinstance(each, SavedResult)})

    @functools.cached_property
    def saved_leaves(self) -> list[int]:
        """The leaves that saved tensors lie in."""
        return sorted({each.leaf for each in self.saved if isinstance(each, SavedLeaf)})

    def table(self, saved: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Saved tensors by autograd's numbers, of `saved_results` and then `saved_leaves`."""
        results, leaves = self.saved_results, self.saved_leaves
        by_result = dict(zip(results, saved, strict=False))
        by_leaf = dict(zip(leaves, saved[len(results) :], strict=True))
        return [
            by_result[each.result] if isinstance(each, SavedResult) else each.of(by_leaf[each.leaf])
            for each in self.saved
        ]


class TrainingStep(Step):
    """Like Step. `plan` and `kept` are there once it was captured."""

    def __init__(self, function: Callable[..., Any], describe: Describe, device: Device) -> None:
        self._saving = Saving(function)
        super().__init__(self._saving, describe, device)
        self.plan: SavingPlan | None = None
        self.kept: KeptGraph | None = None
        self._arguments: list[Any] = []  #: of the run that is under way

    def __call__(self, arguments: list[Any]) -> list[Any]:
        self._arguments = arguments
        self._saving.outside = None if self.is_real(arguments) else self.leaves
        try:
            return super().__call__(arguments)
        finally:
            self._arguments = []
            self._saving.forget()

    def _results(self, made: FinishedRun) -> list[Any]:
        with self._saving.left() as left:
            return self._with_saved(made, left)

    def _with_saved(self, made: FinishedRun, left: Savings) -> list[Any]:
        returned = self._taken_apart(made)
        if any(each.written_since for each in left.saved):
            raise CaptureFailed("it writes over a tensor that its backward needs")
        waiting = _waiting(returned, left)
        _require_own_memory(returned, waiting, made.before.leaves, left)
        memory = _Memory(self._ranges(made.before.leaves))
        results = list(returned.tensors)
        saved = [_source(each.tensor, results, memory) for each in left.saved]
        plan = SavingPlan(returned.count, waiting, tuple(saved))
        if self.plan is None:
            self.plan = plan
        elif self.plan != plan:
            raise CaptureFailed("two runs of the same call do not save the same for a backward")
        if left.table is not None:
            self._keep(returned, left, made)
        return results

    def _keep(self, returned: Returned, left: Savings, made: FinishedRun) -> None:
        assert self.plan is not None and left.table is not None
        roots = [left.edges[id(returned.sources[n])] for n in self.plan.waiting]
        own = {id(leaf): number for number, leaf in enumerate(made.before.leaves)}
        own |= self._saving.aliases
        self.kept = KeptGraph(roots, left.table, lambda tensor: own.get(id(tensor)))

    def _ranges(self, leaves: Sequence[Any]) -> list[tuple[int, int, int]]:
        """Where the leaves stand, in this run and as what stands for them: (start, end, leaf)."""
        found = []
        for lifted, argument in zip(self._lifted, self._arguments, strict=True):
            if not isinstance(argument, torch.Tensor):
                continue
            for number, offset in ((lifted.leaf, 0), *lifted.inside):
                nbytes = tensors.extent_bytes(leaves[number])
                starts = {leaves[number].data_ptr(), argument.data_ptr() + offset}
                found += [(start, start + nbytes, number) for start in starts]
        return found


class _Memory:
    """Finds leaves by address."""

    def __init__(self, ranges: list[tuple[int, int, int]]) -> None:
        self._ranges = sorted(ranges)

    def find(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """(leaf, offset in bytes) of a tensor that lies in one; None: in none."""
        start, nbytes = tensor.data_ptr(), tensors.extent_bytes(tensor)
        if not nbytes:
            return None
        number = bisect.bisect_right(self._ranges, (start, 1 << 63, 0))
        for low, high, leaf in reversed(self._ranges[:number]):
            if start + nbytes <= high:
                return leaf, start - low
        return None


def _source(
    tensor: torch.Tensor, results: list[torch.Tensor], memory: _Memory
) -> SavedResult | SavedLeaf:
    """Where a saved tensor is found; one that is found nowhere becomes a result."""
    place = memory.find(tensor)
    if place is not None:
        return SavedLeaf(*place, tensor.dtype, tuple(tensor.shape), tensor.stride())
    for number, each in enumerate(results):
        if _same_view(each, tensor):
            return SavedResult(number)
    results.append(tensor)
    return SavedResult(len(results) - 1)


def _same_view(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        bool(left.numel())
        and left.data_ptr() == right.data_ptr()
        and left.dtype == right.dtype
        and left.shape == right.shape
        and left.stride() == right.stride()
        and tensors.share_storage(left, right)
    )


def _waiting(returned: Returned, left: Savings) -> tuple[int, ...]:
    """The results that wait for a backward. Raises CaptureFailed for one that is put somewhere."""
    real = left.table is None
    waiting = tuple(
        number
        for number, each in enumerate(returned.sources)
        if (each.requires_grad if real else id(each) in left.edges)
    )
    if set(waiting) & set(returned.bound):
        raise CaptureFailed("it keeps a tensor that waits for a backward")
    return waiting


def _require_own_memory(
    returned: Returned, waiting: Sequence[int], leaves: Sequence[Any], left: Savings
) -> None:
    """Raises CaptureFailed for results that autograd knows as views of others: it would have to
    know of writes to them."""
    if left.table is not None:  # the real run was looked at
        return
    owners: dict[int, Any] = {}
    of_leaves = {
        each.untyped_storage().data_ptr() for each in leaves if isinstance(each, torch.Tensor)
    }
    for number in waiting:
        each = returned.sources[number]
        storage = each.untyped_storage().data_ptr()
        if storage in of_leaves and each.numel():
            raise CaptureFailed("it returns a view of what it was given")
        # Pieces of one tensor (chunk, unbind) are known to be written by nobody.
        if owners.setdefault(storage, each.grad_fn) != each.grad_fn and each.numel():
            raise CaptureFailed("it returns two views of the same tensor")


def versions_of(leaves: Sequence[Any]) -> list[int | None]:
    """How often each leaf was written, as torch counts it; None: torch does not."""
    return [
        version(each) if isinstance(each, torch.Tensor) and not each.is_inference() else None
        for each in leaves
    ]


def counted_up(leaves: Sequence[Any], before: Sequence[int | None]) -> set[int]:
    """The leaves that torch has counted a write to since. Some operators write without that: those
    of batch normalization write statistics that a backward of an earlier call may still need."""
    now = versions_of(leaves)
    return {number for number, was in enumerate(before) if now[number] != was}


def against_saving(watched: Watched) -> str | None:
    """Why code that was seen cannot be given hooks on what autograd saves; None: it can."""
    if watched.compiled:
        return "it runs code of torch.compile's, whose backward is not made of torch's operators"
    if any(code in watched.codes for code in _OWN_HOOKS):
        return "it decides itself what autograd saves, as torch.utils.checkpoint does"
    return None


def note_second_derivatives(value: Any, refuse: Callable[[str], None]) -> None:
    """Has `refuse` called where a backward from what a callable returned is to be differentiated
    itself."""

    def look(_: Any) -> None:
        if torch.is_grad_enabled():
            refuse("its gradients are differentiated themselves (create_graph=True)")

    for each in tensors_in(value):
        if each.grad_fn is not None:
            each.grad_fn.register_prehook(look)
