"""Watching a call that runs as it is: which code runs, what it reads, and what a replay would not
repeat.

A profile function sees each function of Python's that is entered; what these name is what they can
read. A dispatch mode sees each operator; the tensors that it is given are what it reads and writes.
Code that Dynamo has compiled is one function to the profile function, whatever it was made of:
where such code runs, all names count.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import dis
import functools
import random
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from pygraph.capturing import tensors
from pygraph.capturing.collection import nothing_collected
from pygraph.capturing.device import Device, is_strided
from pygraph.capturing.holdings import Allocator
from pygraph.capturing.unsafe import Watch
from pygraph.frames import is_programs
from pygraph.frontends.callable.state import is_library
from pygraph.operators import known, obstacles
from pygraph.torch_private import autograd, dispatch, dynamo, modes
from pygraph.torch_private.dispatch import OpOverload, tree_leaves
from pygraph.torch_private.inductor import ALLOCATORS
from pygraph.torch_private.tensors import object_of

#: Functions whose effect a replay does not repeat, and that change nothing it computes.
_NOT_REPEATED = {builtins.print: "print()"}


class Written(NamedTuple):
    """Memory that an operator has written: of a storage, as object_of(), the addresses."""

    storage: int
    start: int
    end: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Written:
        start = tensor.data_ptr()
        storage = object_of(tensor.untyped_storage())
        return cls(storage, start, start + tensors.extent_bytes(tensor))

    def overlaps(self, other: Written) -> bool:
        same = self.storage == other.storage
        return same and self.start < other.end and other.start < self.end


@dataclasses.dataclass
class Watched:
    """What was seen in one call, and in those before."""

    codes: dict[types.CodeType, dict[str, Any]] = dataclasses.field(default_factory=dict)
    ran: set[types.CodeType] = dataclasses.field(default_factory=set)  #: in the last call
    compiled: bool = False  #: Dynamo's code ran
    #: storages and generators that the last call's operators were given, as object_of()
    touched: set[int] = dataclasses.field(default_factory=set)
    #: what the last call's operators have written, whatever is there now
    written: list[Written] = dataclasses.field(default_factory=list)
    #: storages on the host that its operators did more with than to bring them to the device, with
    #: the operator
    used_on_host: dict[int, str] = dataclasses.field(default_factory=dict)
    not_repeated: set[str] = dataclasses.field(default_factory=set)
    #: collectives of the last call, each with what it was given for its group
    collectives: list[tuple[str, Any]] = dataclasses.field(default_factory=list)
    #: other GPUs that the last call has worked on, by torch's index
    others: set[int] = dataclasses.field(default_factory=set)
    #: Why the callable must not be captured.
    reason: str | None = None
    operator: str | None = None

    def written_among(self, leaves: Sequence[Any]) -> set[int]:
        """The leaves that operators have written in the last call. What they were written by need
        not differ from what was there."""
        ranges: dict[int, list[Written]] = {}
        for each in self.written:
            ranges.setdefault(each.storage, []).append(each)
        found = set()
        for number, leaf in enumerate(leaves):
            if is_strided(leaf):
                own = Written.of(leaf)
                if any(each.overlaps(own) for each in ranges.get(own.storage, ())):
                    found.add(number)
        return found

    def allocators(self) -> list[Allocator]:
        """What Inductor's code takes its buffers from."""
        found = {id(each): each for each in self.codes.values()}
        return [(each, name) for each in found.values() for name in ALLOCATORS if name in each]

    def against_unmet(self, met: Sequence[types.FunctionType]) -> str | None:
        """Why what the last call's code reads is not known, if so: a function that was made before
        the call reads variables of the function around it, and was not `met`."""
        ran = [code for code in self.ran if _is_ours(code, self.codes[code])]
        known = {_place_of(each.__code__) for each in met}
        known |= {_place_of(inner) for code in ran for inner in codes_within(code)}
        for code in ran:
            names = [name for name in code.co_freevars if name != "__class__"]
            resumed = code.co_name.startswith(dynamo.RESUMED)
            if names and not resumed and _place_of(code) not in known:
                return (
                    f"{code.co_qualname} reads {', '.join(names)} of a function around it, and "
                    "stands nowhere that the callable reads: what it reads cannot be compared"
                )
        return None

    def codes_of_program(self) -> dict[types.CodeType, dict[str, Any]]:
        """Those that are no library's."""
        return {code: names for code, names in self.codes.items() if _is_ours(code, names)}

    def scope(self) -> Scope:
        """What the code that was seen so far can read."""
        names = frozenset(name for code in self.codes for name in names_in(code))
        if autograd.WAY_IN in names:
            names |= {"grad"}  # which a backward sets, whether any code names it or not
        ours = self.codes_of_program()
        found: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for code, variables in ours.items():
            _, known = found.setdefault(id(variables), (variables, set()))
            known.update(variables_in(code))  # one that is not there may hide a builtin later
        ran = {variables.get("__name__") for variables in self.codes.values()}
        hooks: list[Any] = []
        for name, those in modes.HOOKS.items():
            if self.compiled or name in ran:
                hooks += those
        for name, known_to_torch in modes.VARIABLES.items():
            if name in sys.modules and (self.compiled or name in ran):
                variables = vars(sys.modules[name])
                found[id(variables)] = (variables, known_to_torch & variables.keys())
        return Scope(
            names,
            self.compiled,
            [(variables, frozenset(known)) for variables, known in found.values()],
            frozenset(ours),
            hooks,
        )


def _is_ours(code: types.CodeType, variables: dict[str, Any]) -> bool:
    module = variables.get("__name__") or ""
    ours = is_programs(code.co_filename) and not is_library(module)
    return ours or module == "__main__"


@dataclasses.dataclass(frozen=True)
class Scope:
    """What some code can read, by the names in it."""

    named: frozenset[str] = frozenset()  #: attributes
    every: bool = False  #: there is code that has been compiled, which may read any
    #: the variables of the program's modules, with the names of those that count
    variables: Sequence[tuple[dict[str, Any], frozenset[str]]] = ()
    codes: frozenset[types.CodeType] = frozenset()  #: of the program, that ran
    hooks: Sequence[dict[int, Any]] = ()  #: on all modules, on all optimizers


def _place_of(code: types.CodeType) -> tuple[str, int, str]:
    """By which a function is known that Dynamo has given other code."""
    return code.co_filename, code.co_firstlineno, code.co_name


def codes_within(code: types.CodeType) -> Iterator[types.CodeType]:
    """Of the functions that a function makes, and those within these."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes_within(constant)


def names_in(code: types.CodeType) -> Iterator[str]:
    """What a function names: attributes, variables of its module, and texts that may be either."""
    for own in (code, *codes_within(code)):
        yield from own.co_names
        yield from _texts_in(own.co_consts)


def _texts_in(constants: Sequence[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, tuple):
            yield from (each for each in constant if isinstance(each, str))


_OF_VARIABLES = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME", "DELETE_GLOBAL")


@functools.cache
def variables_in(code: types.CodeType) -> frozenset[str]:
    """The variables of its module that a function names, and those within it."""
    return frozenset(
        each.argval
        for own in (code, *codes_within(code))
        for each in dis.get_instructions(own)
        if each.opname in _OF_VARIABLES
    )


class _Operators(Watch):
    """Notes the generators, and the storages of the tensors, that operators are given."""

    def __init__(self, device: Device, watched: Watched) -> None:
        super().__init__(device)
        self._watched = watched

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        on_host = []
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, torch.Tensor) and each.layout == torch.strided:
                storage = object_of(each.untyped_storage())
                self._watched.touched.add(storage)
                if self._on_host(each):
                    on_host.append(storage)
            elif isinstance(each, torch.Generator):
                self._watched.touched.add(object_of(each))
        if isinstance(func, OpOverload):
            written = known.written(func, args, kwargs)
            self._watched.written += [Written.of(each) for each in written if is_strided(each)]
        result = super().see(func, args, kwargs)
        if on_host and not func.is_view:
            kind = obstacles.of_call(func, args, kwargs, result, self._on_host)
            if kind != "host to device":
                self._watched.used_on_host |= dict.fromkeys(on_host, str(func))
        return result


@contextlib.contextmanager
def watching(watched: Watched, device: Device) -> Iterator[None]:
    """Notes in `watched` what runs meanwhile on this thread, backwards included."""
    watched.ran.clear()
    watched.touched.clear()
    watched.written.clear()
    watched.used_on_host.clear()
    before = random_states_of_python()
    mode = _Operators(device, watched)
    # Finalizers and gc.callbacks are not the callable's code.
    with backwards_here(), casts_anew(), nothing_collected(), _profiled(watched), mode:
        yield
    watched.operator, watched.reason = mode.found, mode.reason
    watched.collectives = mode.collectives
    watched.others = mode.others
    if random_states_of_python() != before:
        watched.reason = "it draws from Python's or NumPy's random numbers, which a graph does not"


@contextlib.contextmanager
def backwards_here() -> Iterator[None]:
    """Backwards run on the thread that calls them."""
    before = autograd.is_multithreading_enabled()
    autograd.set_multithreading_enabled(False)
    try:
        yield
    finally:
        autograd.set_multithreading_enabled(before)


@contextlib.contextmanager
def casts_anew() -> Iterator[None]:
    """What a region of autocast around it has cast before is cast again, and what is cast here is
    not kept: a run reads the weights themselves, and a capture's casts are none for others."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


#: Files with code that runs much of torch's, and nothing of the program: it may do other things
#: when an operator is first met in the process.
_NOT_THE_PROGRAMS = (dynamo.WAY_IN, dispatch.LOOK_UP, known.__file__, obstacles.__file__)


@contextlib.contextmanager
def _profiled(watched: Watched) -> Iterator[None]:
    codes, inside = watched.codes, 0

    def see(frame: types.FrameType, event: str, argument: Any) -> None:
        nonlocal inside
        code = frame.f_code
        if code.co_filename.endswith(_NOT_THE_PROGRAMS):
            inside += {"call": 1, "return": -1}.get(event, 0)
        elif inside:
            return
        elif event == "call":
            watched.ran.add(code)
            if code not in codes:
                codes[code] = frame.f_globals
                watched.compiled |= any(name.startswith(dynamo.COMPILED) for name in code.co_names)
        elif event == "c_call" and argument in _NOT_REPEATED and is_programs(code.co_filename):
            watched.not_repeated.add(_NOT_REPEATED[argument])

    outer = sys.getprofile()
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(outer)


def random_states_of_python() -> Any:
    """By which draws from Python's and NumPy's random numbers are seen."""
    numpy = sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.get_state(legacy=False)["state"]["pos"]
    return random.getstate(), drawn
