"""What the uncaptured callable makes of one call: its results, and what it does to its arguments.

The caller gets these results whatever becomes of the capture, so later runs of the same call (the
proof's) must not disturb them. They could: a compiled callable may write arguments that nobody
declared as mutated (Inductor reuses the memory of a partition's input for its output, and returns
it). So every argument that changes from call to call is compared with a copy from before the run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pygraph.capturing import generators, numbers, tensors
from pygraph.capturing.device import Device, Function, is_strided

#: The share of free memory that copies for a proof may take.
_MEMORY_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Reference:
    """One real run. `mutated` are the arguments that the callable writes."""

    function: Function
    arguments: Sequence[Any]
    changing: Sequence[int]  #: arguments that differ from call to call
    outputs: Sequence[Any]  #: as returned; may share memory with arguments
    expected: list[Any]  #: the same values, safe from later runs
    mutated: frozenset[int]
    before: dict[int, torch.Tensor]  #: values of the mutated arguments
    after: dict[int, torch.Tensor]
    device: Device
    random_before: generators.States  #: of the device's generator and those among the arguments
    random_after: generators.States
    drew_on_host: bool  #: random numbers, from torch's CPU generator
    seconds: float  #: that it took until the device was idle
    #: outputs that are numbers on the host, and in a graph on the device
    on_host: frozenset[int] = frozenset()

    @property
    def draws(self) -> list[int]:
        """The generators that the callable draws from, by source (generators.py)."""
        return generators.drawn(self.random_before, self.random_after)

    def again(self) -> list[Any]:
        """The values of another real run: those of the results, then those of `after`. It gets the
        very arguments, since a copy may differ from them in what a callable can see: its storage
        offset, its alignment, what stands beside it."""
        self.rewind()
        outputs = self.function(list(self.arguments))
        storages = _storages(self.arguments, self.mutated)
        written = [tensors.static_copy(self.arguments[index]) for index in self.after]
        return [*(_safe(output, storages, self.device) for output in outputs), *written]

    def rewind(self) -> None:
        """Gives mutated arguments the values from before the run, and generators their states."""
        self._write(self.before)
        generators.restore(self.arguments, self.device, self.draws, self.random_before)

    def finish(self) -> None:
        """Gives the mutated arguments (and outputs that share their memory) the values from after
        the run, and generators their states: as if it had happened once."""
        self._write(self.after)
        generators.restore(self.arguments, self.device, self.draws, self.random_after)

    def astray(self) -> str | None:
        """A generator that the run drew from and that is not in the state that it left it in."""
        states = generators.states(self.arguments, self.device) if self.draws else {}
        wrong = (s for s in self.draws if states[s] != self.random_after[s])
        return next(map(generators.name, wrong), None)

    def _write(self, values: dict[int, torch.Tensor]) -> None:
        for index, value in values.items():
            tensors.bytes_of(self.arguments[index]).copy_(tensors.bytes_of(value))


def candidates(
    arguments: Sequence[Any], changing: Iterable[int], declared: Iterable[int], device: Device
) -> list[int]:
    """The arguments that the callable may write, as far as is known before it runs."""
    return [
        index
        for index in sorted({*changing, *declared})
        if device.owns(arguments[index]) and is_strided(arguments[index])
    ]


def shortage(
    arguments: Sequence[Any], changing: Iterable[int], declared: Iterable[int], device: Device
) -> str | None:
    """What a proof lacks of the memory for the copies that it makes of the arguments; None:
    nothing."""
    copied = candidates(arguments, changing, declared, device)
    # As they were, and moved.
    needed = 2 * sum(tensors.extent_bytes(arguments[index]) for index in copied)
    free = device.free_bytes() if needed else 0
    if needed <= _MEMORY_SHARE * free:
        return None
    return (
        f"linking needs {needed >> 20} MiB for copies of the arguments, {free >> 20} MiB are free"
    )


def take(
    function: Function,
    arguments: Sequence[Any],
    changing: Sequence[int],
    declared: Iterable[int],
    device: Device,
    watched: Iterable[int] = (),
) -> Reference:
    """Runs `function(arguments)` once. `declared` are arguments known to be written; `changing`
    and `watched` those that might be."""
    before = {
        index: tensors.static_copy(arguments[index])
        for index in (
            *candidates(arguments, {*changing, *watched}, declared, device),
            *numbers.among(arguments, device),
        )
    }
    random_before, host_before = generators.states(arguments, device), torch.get_rng_state()
    device.synchronize()
    started = time.perf_counter()
    outputs = list(function(list(arguments)))
    device.synchronize()
    seconds = time.perf_counter() - started
    random_after, host_after = generators.states(arguments, device), torch.get_rng_state()
    doubtful = [index for index in before if index not in declared]
    written = tensors.differing(
        [before[index] for index in doubtful], [arguments[index] for index in doubtful]
    )
    mutated = frozenset(declared) & before.keys() | {doubtful[number] for number in written}
    after = {index: tensors.static_copy(arguments[index]) for index in mutated}
    storages = _storages(arguments, mutated)
    return Reference(
        function=function,
        arguments=arguments,
        changing=changing,
        outputs=outputs,
        expected=[_safe(output, storages, device) for output in outputs],
        mutated=mutated,
        before={index: before[index] for index in mutated},
        after=after,
        device=device,
        random_before=random_before,
        random_after=random_after,
        drew_on_host=not torch.equal(host_before, host_after),
        seconds=seconds,
    )


def _storages(arguments: Sequence[Any], indices: Iterable[int]) -> set[int]:
    """Where the storages of some arguments start."""
    return {
        arguments[index].untyped_storage().data_ptr()
        for index in indices
        if arguments[index].numel()
    }


def _safe(output: Any, storages: set[int], device: Device) -> Any:
    shares = (
        device.owns(output)
        and is_strided(output)
        and output.untyped_storage().data_ptr() in storages
    )
    return tensors.static_copy(output) if shares else output
