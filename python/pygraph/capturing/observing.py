"""Whether the nodes of a graph leave alone what they are not said to write.

Lanes rest on what operators and compilers say that their kernels write (operators/accesses.py).
Runs in the order of the capture show whether that is so: what a region holds behind one of its
writers it must hold in front of the next one, but for what that writes. Each run looks at some of
the regions, for all copies of all regions are many times what a call takes. Regions that nobody is
said to write are arguments, of which sums are compared, for they may be large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import tensors
from pygraph.capturing.device import is_strided
from pygraph.capturing.reference import Reference, candidates
from pygraph.capturing.running import Make, run

#: Copies may take as much as this, though a call takes less: no reason to run once more.
_LITTLE = 256 << 20


def fault(chain: _engine.Linked, reference: Reference, make: Make) -> str | None:
    """What is wrong; None: nothing is. `chain` is left as it is. Raises what says that memory is
    short."""
    arguments = reference.arguments
    kept = [
        tensors.bytes_of(arguments[index])
        for index in candidates(arguments, range(len(arguments)), (), reference.device)
        if index not in reference.mutated and arguments[index].numel()
    ]
    try:
        before = _sums(kept)
        observers = _observers(chain, _most(chain, reference))
        looks = (_look(observer, chain, reference, make) for observer in observers)
        found = next(filter(None, looks), None)
        if not torch.equal(before, _sums(kept)):
            return "a node writes an argument that it is not said to write"
    finally:
        reference.finish()
    return found


def _look(
    observer: _engine.Observer, chain: _engine.Linked, reference: Reference, make: Make
) -> str | None:
    device = reference.device
    memory = torch.empty(observer.bytes, dtype=torch.uint8, device=device.place)
    program = make(observer.observed(chain, memory.data_ptr()))
    run(program, reference)
    device.synchronize()
    for pair in _changed(observer.pairs, memory):
        names = {chain.node_name(n) for n in range(pair.first_node, pair.last_node + 1)}
        return f"{_listed(sorted(names))} writes memory that it is not said to write"
    return None


def _observers(chain: _engine.Linked, most: int) -> Iterator[_engine.Observer]:
    first: int | None = 0
    while first is not None:
        observer = _engine.Observer(chain, first, most)
        yield observer
        first = observer.next


def _most(chain: _engine.Linked, reference: Reference) -> int:
    """Bytes that copies may take: about what a call does."""
    outputs = sum(map(tensors.extent_bytes, filter(is_strided, reference.outputs)))
    return max(_LITTLE, chain.arena_bytes + outputs)


def _sums(kept: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of each piece of memory one number, which nearly any change changes."""
    found = [_as_words(each).sum(dtype=torch.int64) for each in kept]
    return torch.stack(found) if found else torch.empty(0)


def _as_words(memory: torch.Tensor) -> torch.Tensor:
    begins = (memory.data_ptr(), memory.storage_offset())  # torch asks for both to be aligned
    aligned = memory.numel() % 4 == 0 and not any(each % 4 for each in begins)
    return memory.view(torch.int32) if aligned else memory


def _changed(pairs: Sequence[Any], memory: torch.Tensor) -> list[Any]:
    """Those of which more has changed than may."""
    before = [memory[each.before : each.before + each.bytes] for each in pairs]
    after = [memory[each.after : each.after + each.bytes] for each in pairs]
    return [
        pairs[index]
        for index in tensors.differing(before, after)
        if bool(((before[index] != after[index]) & ~_allowed(pairs[index], memory)).any())
    ]


def _allowed(pair: Any, memory: torch.Tensor) -> torch.Tensor:
    """The bytes of a pair that may differ."""
    found = torch.zeros(pair.bytes, dtype=torch.bool, device=memory.device)
    for each in pair.but:
        if not each.item_bytes:
            return torch.ones_like(found)
        sizes = [size for size, _ in each.dimensions]
        strides = [stride for _, stride in each.dimensions]
        found.as_strided([*sizes, each.item_bytes], [*strides, 1], each.offset).fill_(True)
    return found


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names[:4])}"
