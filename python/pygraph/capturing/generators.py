"""The random generators that a callable draws from: the device's default one, and arguments.

Torch passes generators where a checkpoint recomputes what has drawn random numbers: one advances
with the forward, a copy of it with the backward (torch/_functorch/partitioners.py, "Note [CUDA
Graph Safe RNG Functionalization]"; runtime_wrappers.py, initialize_rng_states). Each call of a
graph reads the states of the generators that are passed to it, and moves those on.

A generator is known by its source: DEFAULT, or the number of the first argument that it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from pygraph import _engine
from pygraph.capturing.device import DEFAULT, CaptureFailed, Device

#: States of generators, by source.
States = Mapping[int, Any]


class Drew(Protocol):
    """A capture (record.Capture): where the states of its generators are, by source, as (address,
    bytes) of seed and offset."""

    @property
    def random(self) -> Mapping[int, Sequence[tuple[int, int]]]: ...


def is_generator(value: Any, device: Device) -> bool:
    """Whether it is a random generator of the device, or of any one of its type, which
    torch.Generator("cuda") is."""
    if not isinstance(value, torch.Generator):
        return False
    own = device.default_generator().device
    return value.device == own or value.device == torch.device(own.type)


def among(values: Sequence[Any], device: Device) -> list[int]:
    """Which of some values are random generators of the device."""
    return [index for index, value in enumerate(values) if is_generator(value, device)]


def source_of(arguments: Sequence[Any], index: int, device: Device) -> int:
    """The source of a generator among the arguments."""
    generator = arguments[index]
    if generator is device.default_generator():
        return DEFAULT
    return next(i for i, argument in enumerate(arguments) if argument is generator)


def sources(arguments: Sequence[Any], device: Device) -> dict[int, torch.Generator]:
    """All generators that a call with these arguments may draw from, by source."""
    found = {DEFAULT: device.default_generator()}
    for index in among(arguments, device):
        found.setdefault(source_of(arguments, index, device), arguments[index])
    return found


def states(arguments: Sequence[Any], device: Device) -> dict[int, Any]:
    """Their states."""
    return {
        source: device.generator_state(generator)
        for source, generator in sources(arguments, device).items()
    }


def drawn(before: States, after: States) -> list[int]:
    """The generators whose states differ: those that a run drew from."""
    return [source for source, state in before.items() if state != after[source]]


def restore(arguments: Sequence[Any], device: Device, which: Sequence[int], wanted: States) -> None:
    """Brings some of the generators to the states `wanted`."""
    known = sources(arguments, device) if which else {}
    for source in which:
        device.restore_generator(known[source], wanted[source])


def stand_ins(arguments: Sequence[Any], device: Device) -> dict[int, torch.Generator]:
    """Copies of the generators among the arguments, for a capture: what happens to them does not
    matter. What is the same generator has the same one."""
    copies: dict[int, torch.Generator] = {DEFAULT: device.default_generator()}
    found: dict[int, torch.Generator] = {}
    for index in among(arguments, device):
        source = source_of(arguments, index, device)
        if source not in copies:
            copies[source] = arguments[index].clone_state()
        found[index] = copies[source]
    return found


def regions(a: Drew, b: Drew) -> dict[int, list[_engine.Region]]:
    """The places of the generators' states in two captures, by source."""
    return {
        source: [
            _engine.Region(in_a=in_a, in_b=in_b, bytes=nbytes)
            for (in_a, nbytes), (in_b, _) in zip(places, b.random[source], strict=True)
        ]
        for source, places in a.random.items()
    }


def argument_spec(arguments: Sequence[Any], index: int, device: Device) -> _engine.ArgumentSpec:
    """The calls that are served have a generator there, and the same one where this call has."""
    source = source_of(arguments, index, device)
    return _engine.ArgumentSpec(kind=_engine.ArgumentKind.GENERATOR, value=source)


def draws(
    regions: Mapping[int, Sequence[int]], before: States, after: States, device: Device
) -> list[_engine.Draw]:
    """How a TensorProgram draws what a run drew that found the generators in the states `before`
    and left them in `after`. `regions`: by number, of their states. Raises CaptureFailed."""
    found: list[_engine.Draw] = []
    for source in drawn(before, after):
        number = _engine.DEFAULT_GENERATOR if source == DEFAULT else source
        try:
            draw = device.draw(number, regions.get(source, ()), before[source], after[source])
        except CaptureFailed as error:
            raise CaptureFailed(f"{name(source)}: {error}") from error
        found.append(draw)
    return found


def name(source: int) -> str:
    """For messages."""
    return "the random generator" if source == DEFAULT else f"argument {source}, a random generator"
