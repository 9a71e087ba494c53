"""Objects of every kind that a captured callable may keep a number in: no replay repeats what the
callable does to them, so it runs as it is, or sees what others did."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import ctypes
import enum
import functools
import io
import itertools
import math
import mmap
import os
import queue
import random
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from callable_support import Unseen
from places import Place
from torch.optim.optimizer import register_optimizer_step_pre_hook

import pygraph

CALLS = 12
Take = Callable[[], Any]
MANY = tuple(float(number) for number in range(1, 100))
ALIVE: list[Any] = []


class Box:
    n = 0.0


class Slots:
    __slots__ = ("n",)


class Number(float):
    pass


class Text(str):
    pass


class Complex(complex):
    pass


class Own(random.Random):
    pass


class Structure(ctypes.Structure):
    _fields_ = (("n", ctypes.c_double),)


class Meta(type):
    n = 0.0


class OfMeta(metaclass=Meta):
    pass


class Base:
    n = 0.0


class Derived(Base):
    @classmethod
    def take(cls) -> float:
        Base.n += 1
        return cls.n


def counting(box: Any) -> Take:
    """Counts in an attribute."""

    def take() -> float:
        box.n += 1
        return float(box.n)

    return take


def counting_in(container: Any, key: Any) -> Take:
    """Counts in an item."""

    def take() -> float:
        container[key] += 1
        return float(container[key])

    return take


def numpy() -> Any:
    return pytest.importorskip("numpy")


def kept_alive(value: Any) -> Any:
    ALIVE.append(value)
    return value


def in_namespace() -> Take:
    return counting(argparse.Namespace(n=0.0))


def in_simple_namespace() -> Take:
    return counting(types.SimpleNamespace(n=0.0))


def in_slots() -> Take:
    box = Slots()
    box.n = 0.0
    return counting(box)


def in_class() -> Take:
    Box.n = 0.0
    return counting(Box)


def in_class_above() -> Take:
    Base.n = 0.0
    return Derived.take


def in_metaclass() -> Take:
    Meta.n = 0.0

    def take() -> float:
        Meta.n += 1
        return OfMeta.n

    return take


def in_function() -> Take:
    def helper() -> float:
        helper.n += 1  # type: ignore[attr-defined]
        return float(helper.n)  # type: ignore[attr-defined]

    helper.n = 0.0  # type: ignore[attr-defined]
    return lambda: helper()


def in_value_of_its_own() -> Take:
    box = types.SimpleNamespace(n=Number(0))

    def take() -> float:
        box.n = Number(box.n + 1)
        return float(box.n)

    return take


def in_user_dict() -> Take:
    return counting_in(collections.UserDict(n=0.0), "n")


def in_chain_map() -> Take:
    return counting_in(collections.ChainMap({"n": 0.0}), "n")


def in_weak_keys() -> Take:
    key = kept_alive(Box())
    return counting_in(weakref.WeakKeyDictionary({key: 0.0}), key)


def behind_reference() -> Take:
    reference = weakref.ref(kept_alive(Box()))

    def take() -> float:
        box: Any = reference()
        box.n += 1
        return float(box.n)

    return take


def in_weak_values() -> Take:
    boxes = weakref.WeakValueDictionary({"box": kept_alive(Box())})

    def take() -> float:
        boxes["box"].n += 1
        return boxes["box"].n

    return take


def in_context() -> Take:
    variable: contextvars.ContextVar[float] = contextvars.ContextVar("variable", default=0.0)

    def take() -> float:
        variable.set(variable.get() + 1)
        return variable.get()

    return take


def in_thread() -> Take:
    local = threading.local()
    local.n = 0.0
    return counting(local)


def in_environment() -> Take:
    os.environ["PYGRAPH_TEST_COUNT"] = "0"

    def take() -> float:
        os.environ["PYGRAPH_TEST_COUNT"] = str(int(os.environ["PYGRAPH_TEST_COUNT"]) + 1)
        return float(os.environ["PYGRAPH_TEST_COUNT"])

    return take


def in_array_of_python() -> Take:
    return counting_in(array.array("d", [0.0]), 0)


def in_bytes() -> Take:
    return counting_in(bytearray(1), 0)


def in_memory() -> Take:
    return counting_in(memoryview(bytearray(1)), 0)


def in_mapped_memory() -> Take:
    return counting_in(mmap.mmap(-1, 8), 0)


def in_array_of_numpy() -> Take:
    return counting_in(numpy().zeros(1), 0)


def in_array_without_dimensions() -> Take:
    return counting_in(numpy().array(0.0), ())


def in_masked_array() -> Take:
    return counting_in(numpy().ma.zeros(1), 0)


def in_c() -> Take:
    value = ctypes.c_double(0.0)

    def take() -> float:
        value.value += 1
        return value.value

    return take


def in_structure() -> Take:
    return counting(Structure(0.0))


def from_queue() -> Take:
    given: queue.Queue[float] = queue.Queue()
    for each in MANY:
        given.put(each)
    return given.get


def from_queue_in_c() -> Take:
    given: queue.SimpleQueue[float] = queue.SimpleQueue()
    for each in MANY:
        given.put(each)
    return lambda: given.get()


def from_deque() -> Take:
    return collections.deque(MANY).popleft


def from_iterator() -> Take:
    return itertools.count(1.0).__next__


def from_text() -> Take:
    lines = io.StringIO("\n".join(map(str, MANY)))
    return lambda: float(lines.readline())


def from_file() -> Take:
    file = kept_alive(tempfile.TemporaryFile())  # noqa: SIM115 - as long as the tests
    file.write(bytes(range(1, 100)))
    file.seek(0)
    return lambda: file.read(1)[0]


def drawn() -> Take:
    return random.Random(0).random


def drawn_by_own_kind() -> Take:
    generator = Own(0)
    return lambda: generator.random()


def drawn_by_numpy() -> Take:
    generator = numpy().random.default_rng(0)
    return lambda: float(generator.random())


def drawn_by_legacy_numpy() -> Take:
    generator = numpy().random.RandomState(0)
    return lambda: float(generator.rand())


SOURCES = [
    in_namespace, in_simple_namespace, in_slots, in_class, in_class_above, in_metaclass,
    in_function, in_value_of_its_own, in_user_dict, in_chain_map, in_weak_keys, behind_reference,
    in_weak_values, in_context, in_thread, in_environment, in_array_of_python, in_bytes, in_memory,
    in_mapped_memory, in_array_of_numpy, in_array_without_dimensions, in_masked_array, in_c,
    in_structure, from_queue, from_queue_in_c, from_deque, from_iterator, from_text, from_file,
    drawn, drawn_by_own_kind, drawn_by_numpy, drawn_by_legacy_numpy,
]  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_callable_counts_or_draws_it_goes_on_to(
    place: Place, source: Callable[[], Take]
) -> None:
    take = source()
    expected = [float(take()) for _ in range(CALLS)]
    take = source()
    captured = pygraph.capture(lambda x: x * float(take()), device=place.name)
    x = place.randn(4)
    assert all(torch.equal(captured(x), x * each) for each in expected)
    assert sum(each.replays for each in pygraph.report().graphs) == 0
    assert pygraph.report().events or pygraph.report().graphs  # says why


@pytest.mark.parametrize("when", [1, 2], ids=["watched", "linked"])
@pytest.mark.parametrize("kind", ["function", "class"])
def test_an_attribute_that_comes_later(place: Place, kind: str, when: int) -> None:
    runs = Unseen("runs", 0)

    class Bare:
        pass

    def bare() -> None:
        pass

    # Met behind `runs`: what it gets stands behind everything else.
    thing: Any = Bare if kind == "class" else bare

    def step(x: torch.Tensor) -> torch.Tensor:
        runs.set(runs.get() + 1)
        if runs.get() == when + 1:
            thing.later = 2.0
        return x * getattr(thing, "later", 1.0)

    captured = pygraph.capture(step, device=place.name)
    for number in range(CALLS):
        x = place.randn(4)
        assert torch.equal(captured(x), x * (2.0 if number >= when else 1.0)), number


class Doubling:
    def go(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def later_on_a_class(thing: Any) -> tuple[Callable[..., Any], Any]:
    return lambda x: x * thing.scale, lambda: setattr(type(thing), "scale", 3.0)


def later_without_a_base(thing: Any) -> tuple[Callable[..., Any], Any]:
    return lambda x: x * getattr(thing, "more", 1.0), lambda: setattr(type(thing), "more", 3.0)


def later_on_an_object(thing: Any) -> tuple[Callable[..., Any], Any]:
    return lambda x: x * thing.scale, lambda: setattr(thing, "scale", 3.0)


def later_as_a_method(thing: Any) -> tuple[Callable[..., Any], Any]:
    return lambda x: thing.go(x), lambda: setattr(type(thing), "go", lambda self, x: x * 3)


def later_as_a_special_method(thing: Any) -> tuple[Callable[..., Any], Any]:
    def put() -> None:
        type(thing).__call__ = lambda self: 3.0

    return lambda x: x * thing() if callable(thing) else x, put


def later_on_a_function(thing: Any) -> tuple[Callable[..., Any], Any]:
    def probe() -> None:
        pass

    return lambda x: x * getattr(probe, "more", 1.0), lambda: setattr(probe, "more", 3.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        later_on_a_class,
        later_without_a_base,
        later_on_an_object,
        later_as_a_method,
        later_as_a_special_method,
        later_on_a_function,
    ],
)
def test_what_comes_in_front_of_something_is_seen(
    place: Place, change: Any, compiled: bool
) -> None:
    class Base(Doubling):
        scale = 2.0

    class Own(Base):
        pass

    function, put = change(Own())
    inner = function
    if compiled:
        torch._dynamo.reset()
        inner = torch.compile(function, backend="eager")
    captured = pygraph.capture(lambda x: inner(x), device=place.name)
    for number in range(CALLS):
        if number == CALLS // 2:
            put()
        x = place.randn(4)
        assert torch.equal(captured(x), inner(x))
    assert sum(each.replays for each in pygraph.report().graphs) >= CALLS // 2 - 3


class OfDict(dict[str, float]):
    scale = 2.0


class OfList(list[float]):
    scale = 2.0


def around(value: Any) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    """A method that reads a variable around its class, and what sets that."""

    class Inner:
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x * value

    def put(other: Any) -> None:
        nonlocal value
        value = other

    inner = Inner()
    return lambda x: inner.go(x), put


def changed_method(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    class Own(Doubling):
        pass

    def put(value: Any) -> None:
        Own.go = lambda self, x: x * value  # type: ignore[method-assign]

    own = Own()
    put(2.0)
    return lambda x: own.go(x), put


def changed_method_of_module(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    def put(value: Any) -> None:
        Own.forward = lambda self, x: x * value  # type: ignore[method-assign]

    return Own(), put


def changed_property(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    class Own:
        scale = property(lambda self: 2.0)

    def put(value: Any) -> None:
        Own.scale = property(lambda self: value)

    own = Own()
    return lambda x: x * own.scale, put


def changed_default(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    class Own:
        @staticmethod
        def go(x: torch.Tensor, scale: list[Any] = [2.0]) -> torch.Tensor:  # noqa: B006
            return x * scale[0]

    def put(value: Any) -> None:
        Own.go.__defaults__[0][0] = value  # type: ignore[index]

    return lambda x: Own.go(x), put


def changed_around_a_method(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    return around(2.0)


def changed_tensor_around_a_method(
    place: Place,
) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    call, put = around(torch.full((4,), 2.0, device=place.torch))
    return call, lambda value: put(torch.full((4,), value, device=place.torch))


def changed_around_a_wrapper(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    scale = [2.0]

    def scaled(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*arguments: Any) -> Any:
            return function(*arguments) * scale[0]

        return wrapper

    class Own:
        @scaled
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x

    own = Own()
    return lambda x: own.go(x), functools.partial(scale.__setitem__, 0)


def changed_around_a_backward(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    scale = [2.0]

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * scale[0]

    return lambda x: Scaled.apply(x), functools.partial(scale.__setitem__, 0)


def changed_beside_a_tensor(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    weight = torch.ones(4, device=place.torch)
    weight.scale = 2.0  # type: ignore[attr-defined]

    def put(value: Any) -> None:
        weight.scale = value  # type: ignore[attr-defined]

    return lambda x: x * weight * weight.scale, put  # type: ignore[attr-defined]


def changed_beside_items(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    kept, listed = OfDict(a=1.0), OfList([1.0])
    kept.scale, listed.scale = 2.0, 1.0

    def put(value: Any) -> None:
        kept.scale, listed.scale = value / 2, 2.0

    return lambda x: x * kept.scale * listed.scale, put


def with_scale(value: Any, scale: float) -> Any:
    value.scale = scale
    return value


def changed_beside_a_value(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    part, number = with_scale(functools.partial(len), 2.0), with_scale(Number(1.0), 1.0)

    def put(value: Any) -> None:
        part.scale, number.scale = value / 2, 2.0

    return lambda x: x * part.scale * number.scale, put


def another(make: Callable[[], Any]) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    """Something of the same that is another object, and has another attribute."""
    box: Any = Box()

    def put(scale: Any) -> None:
        box.kept = with_scale(make(), scale)

    put(2.0)
    return lambda x: x * box.kept.scale, put


def another_list(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    return another(lambda: OfList([1.0]))


def another_dict(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    return another(lambda: OfDict(a=1.0))


def another_tensor(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    return another(lambda: torch.ones(4, device=place.torch))


def another_function(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    return another(lambda: lambda: None)


def another_partial(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    return another(lambda: functools.partial(len))


def another_number(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    return another(lambda: Number(1.0))


def changed_of_a_thread(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    local = with_scale(threading.local(), 2.0)
    return lambda x: x * local.scale, functools.partial(setattr, local, "scale")


def changed_set(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    there = {Box(), Box()}
    return lambda x: x * len(there), lambda value: there.add(Box())


def changed_descriptor(place: Place) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    class Descriptor:
        value = 2.0

        def __get__(self, instance: Any, owner: Any) -> Any:
            return self.value

    class Own:
        scale = Descriptor()

    own = Own()
    return lambda x: x * own.scale, functools.partial(setattr, vars(Own)["scale"], "value")


CHANGES = [
    changed_method, changed_method_of_module, changed_property, changed_default,
    changed_around_a_method, changed_tensor_around_a_method, changed_around_a_wrapper,
    changed_around_a_backward, changed_beside_a_tensor, changed_beside_items,
    changed_beside_a_value, another_list, another_dict, another_tensor, another_function,
    another_partial, another_number, changed_of_a_thread, changed_set, changed_descriptor,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_others_change_is_seen(place: Place, change: Callable[..., Any]) -> None:
    """What a callable comes to by its classes and functions, or beside what an object holds."""
    function, put = change(place)
    captured = pygraph.capture(function, device=place.name)
    for scale in (2.0, 3.0):
        if scale != 2.0:
            put(scale)
        for _ in range(CALLS // 2):
            x = place.randn(4)
            assert torch.equal(captured(x), x * scale)
    assert sum(each.replays for each in pygraph.report().graphs) >= 2 * (CALLS // 2 - 3)


class Output(dict[str, torch.Tensor]):
    """Its items are attributes as well, as those of transformers' outputs are."""

    def __init__(self, **items: torch.Tensor) -> None:
        super().__init__(items)
        vars(self).update(items)


def first_of(values: Any) -> Any:
    return next(iter(values))


#: Pairs of values that Python takes for equal, or that look alike, and what a callable reads.
TAKEN_FOR_EQUAL: list[tuple[Any, Any, Callable[[Any], Any]]] = [
    ({1: 0}, {1.0: 0}, first_of),
    ({0.0: 0}, {-0.0: 0}, first_of),
    ({1: 0, 2: 0}, {2: 0, 1: 0}, first_of),
    ({(1,): 0}, {(1.0,): 0}, lambda value: first_of(value)[0]),
    ({"a": 2}, {Text("a"): 3}, lambda value: 2 if type(first_of(value)) is str else 3),
    ({1}, {1.0}, first_of),
    ({0, 8}, {8, 0}, first_of),
    ({(1, 2)}, {(1.0, 2)}, lambda value: first_of(value)[0]),
    (frozenset([1]), frozenset([True]), lambda value: 2 + (first_of(value) is True)),
    (frozenset([frozenset([1])]), frozenset([frozenset([1.0])]), lambda v: first_of(first_of(v))),
    (collections.deque([1]), collections.deque([1.0]), first_of),
    (collections.deque([1], 2), collections.deque([1], 3), lambda value: value.maxlen),
    (collections.defaultdict(int), collections.defaultdict(float), lambda v: v.default_factory()),
    (slice(0, 1), slice(0.0, 1), lambda value: value.start),
    (range(1, 1), range(2, 2), lambda value: value.start),
    (range(0, 1, 1), range(0, 1, 2), lambda value: value.step),
    (0j, -0j, lambda value: math.copysign(2.0, value.real)),
    (Complex(0j), Complex(-0j), lambda value: math.copysign(2.0, value.real)),
    (Number(0.0), Number(-0.0), lambda value: math.copysign(2.0, value)),
]


@pytest.mark.parametrize("pair", TAKEN_FOR_EQUAL, ids=lambda pair: repr(pair[:2]))
def test_what_python_takes_for_equal_is_told_apart(place: Place, pair: Any) -> None:
    one, other, read = pair
    box: Any = Box()
    box.kept = one
    captured = pygraph.capture(lambda x: x * read(box.kept), device=place.name)
    for number in range(CALLS):
        if number == CALLS // 2:
            box.kept = other
        x = torch.arange(4, device=place.torch)
        found, expected = captured(x), x * read(box.kept)
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    assert sum(each.replays for each in pygraph.report().graphs) >= CALLS - 6


@pytest.mark.parametrize("pair", [("float32", 0.0, -0.0), ("float64", 0.0, -0.0)])
def test_scalars_of_numpy_are_told_apart(place: Place, pair: Any) -> None:
    name, one, other = pair
    test_what_python_takes_for_equal_is_told_apart(
        place,
        (
            getattr(numpy(), name)(one),
            getattr(numpy(), name)(other),
            lambda value: math.copysign(2.0, value),
        ),
    )


@pytest.mark.parametrize(
    ("as_it_is", "shown_otherwise"),
    [
        (lambda z: z, lambda z: z.conj()),
        (lambda z: z.imag, lambda z: z.conj().imag),
        (lambda z: z[0].imag, lambda z: z[0].conj().imag),
    ],
    ids=["conjugated", "negated", "one number, negated"],
)
def test_memory_that_is_shown_otherwise_is_told_apart(
    place: Place, as_it_is: Any, shown_otherwise: Any
) -> None:
    """The graph would read what stands in memory."""
    captured = pygraph.capture(lambda x: x * 2, device=place.name)
    for _ in range(CALLS):
        z = place.randn(4, dtype=torch.cfloat)
        for view in (as_it_is, shown_otherwise):
            assert torch.equal(captured(view(z)), view(z) * 2)
    assert pygraph.report().replays


def bases() -> list[Any]:
    pair = collections.namedtuple("pair", "a b")
    return [
        (list, ([1.0],)), (dict, ()), (tuple, ([1.0],)), (set, ()), (collections.deque, ()),
        (float, (1.0,)), (str, ("a",)), (pair, (1, 2)), (functools.partial, (len,)),
    ]  # fmt: skip


@pytest.mark.parametrize("what", ["method", "data"])
@pytest.mark.parametrize("base", bases(), ids=lambda base: base[0].__name__)
def test_a_class_of_values_is_compared(place: Place, base: Any, what: str) -> None:
    class Own(base[0]):  # type: ignore[misc]
        scale = 2.0

        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    own = Own(*base[1])
    captured = pygraph.capture(lambda x: own.go(x), device=place.name)
    for number in range(CALLS):
        if number == CALLS // 2 and what == "data":
            Own.scale = 3.0
        elif number == CALLS // 2:
            Own.go = lambda self, x: x * 3.0  # type: ignore[method-assign]
        x = place.randn(4)
        assert torch.equal(captured(x), own.go(x))
    assert sum(each.replays for each in pygraph.report().graphs) >= CALLS - 6


def changed_member(kind: Any) -> None:
    kind.ONE.scale = 3.0


def changed_class_of_members(kind: Any) -> None:
    kind.factor = 3.0


def changed_method_of_members(kind: Any) -> None:
    kind.go = lambda self, x: x * 3.0


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "change", [changed_member, changed_class_of_members, changed_method_of_members]
)
def test_an_enumeration_is_compared(place: Place, change: Any, given: bool) -> None:
    class Kind(enum.Enum):
        ONE = 1

        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale * self.factor  # type: ignore[attr-defined]

    kind: Any = Kind
    kind.ONE.scale, kind.factor = 2.0, 2.0

    def step(x: torch.Tensor, member: Any = None) -> torch.Tensor:
        return (member or Kind.ONE).go(x)

    captured = pygraph.capture(step, device=place.name)
    more = (Kind.ONE,) if given else ()
    for number in range(CALLS):
        if number == CALLS // 2:
            change(kind)
        x = place.randn(4)
        assert torch.equal(captured(x, *more), step(x, *more))
    assert sum(each.replays for each in pygraph.report().graphs) >= CALLS - 6


class Sparse:
    __slots__ = ("__private", "n")

    def go(self, x: torch.Tensor) -> torch.Tensor:
        return x * getattr(self, "n", 1.0) * self.__private

    def put(self, private: float) -> None:
        self.__private = private


class Dense(Sparse):
    """Has a place for each of some attributes, and a dictionary."""

    def go(self, x: torch.Tensor) -> torch.Tensor:
        return super().go(x) * getattr(self, "m", 1.0)


@pytest.mark.parametrize("kind", [Sparse, Dense])
def test_attributes_with_places_of_their_own_are_compared(place: Place, kind: Any) -> None:
    thing: Any = kind()
    thing.put(2.0)
    captured = pygraph.capture(lambda x: thing.go(x), device=place.name)
    changes: list[Callable[[], Any]] = [
        lambda: setattr(thing, "n", 3.0),
        lambda: delattr(thing, "n"),
        lambda: thing.put(5.0),
        lambda: kind is Dense and setattr(thing, "m", 7.0),
    ]
    for change in changes:
        for _ in range(CALLS // 2):
            x = place.randn(4)
            assert torch.equal(captured(x), thing.go(x))
        change()
        x = place.randn(4)
        assert torch.equal(captured(x), thing.go(x))
    assert sum(each.replays for each in pygraph.report().graphs) >= CALLS


@pytest.mark.parametrize("kind", [set, collections.deque])
def test_tensors_in_sets_and_deques(place: Place, kind: Any) -> None:
    captured = pygraph.capture(lambda x, given: x * sum(given), device=place.name)
    for number in range(CALLS):
        x, given = place.randn(4), kind(place.randn(4) for _ in range(1 + number // 6))
        assert torch.equal(captured(x, given), x * sum(given))
    assert sum(each.replays for each in pygraph.report().graphs) == CALLS - 5


def test_a_ring_of_tensors_goes_on(place: Place) -> None:
    ring: collections.deque[torch.Tensor] = collections.deque(maxlen=2)
    own: collections.deque[torch.Tensor] = collections.deque(maxlen=2)

    def step(x: torch.Tensor, ring: collections.deque[torch.Tensor]) -> torch.Tensor:
        ring.append(x * 2)
        return ring[0] + ring[-1]

    captured = pygraph.capture(lambda x: step(x, ring), device=place.name)
    for _ in range(CALLS):
        x = place.randn(4)
        assert torch.equal(captured(x), step(x, own))


def test_each_thread_has_its_own(place: Place) -> None:
    local = with_scale(threading.local(), 2.0)
    captured = pygraph.capture(lambda x: x * local.scale, device=place.name)

    def call() -> None:
        for _ in range(CALLS // 2):
            x = place.randn(4)
            results.append(torch.equal(captured(x), x * local.scale))

    def call_elsewhere() -> None:
        local.scale = 3.0
        call()

    results: list[bool] = []
    call()
    other = threading.Thread(target=call_elsewhere)
    other.start()
    other.join()
    call()
    assert results == [True] * (CALLS // 2 * 3)
    assert sum(each.replays for each in pygraph.report().graphs) >= CALLS - 3
    assert "local.scale is 3.0, and was 2.0" in str(pygraph.report())


def test_items_that_are_attributes_as_well_are_no_more_than_items(place: Place) -> None:
    captured = pygraph.capture(lambda out: out.hidden * 2, device=place.name)
    for _ in range(CALLS):
        x = place.randn(4)
        assert torch.equal(captured(Output(hidden=x)), x * 2)
    assert sum(each.replays for each in pygraph.report().graphs) == CALLS - 3


def test_an_argument_with_attributes_of_its_own_is_named(place: Place) -> None:
    captured = pygraph.capture(lambda given: given["x"] * given.scale, device=place.name)
    for number in range(CALLS):
        given: Any = Output(x=place.randn(4))
        given.scale = 2.0 + number // 6
        assert torch.equal(captured(given), given["x"] * given.scale)
    assert "argument[0] is a Output with attributes of its own (scale)" in str(pygraph.report())


def test_a_method_that_changes_often_is_seen(place: Place) -> None:
    """The class has another version in each call, and mostly the same methods."""
    own = Doubling()
    captured = pygraph.capture(lambda x: own.go(x), device=place.name)
    before = Doubling.go
    try:
        for number in range(CALLS):
            setattr(Doubling, f"other_{number}", number)
            if number == CALLS - 2:
                Doubling.go = lambda self, x: x * 3  # type: ignore[method-assign]
            x = place.randn(4)
            assert torch.equal(captured(x), x * (2 if number < CALLS - 2 else 3))
    finally:
        Doubling.go = before  # type: ignore[method-assign]
    assert sum(each.replays for each in pygraph.report().graphs) == CALLS - 2 - 3


def test_a_function_that_stands_nowhere_is_named(place: Place) -> None:
    scale = 2.0

    @torch.library.custom_op("capture_state::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * scale

    captured = pygraph.capture(torch.ops.capture_state.scaled, device=place.name)
    for number in range(CALLS):
        scale = 2.0 if number < CALLS // 2 else 3.0
        x = place.randn(4)
        assert torch.equal(captured(x), x * scale)
    assert "scaled reads scale of a function around it, and stands nowhere" in str(pygraph.report())


def test_a_schedule_in_the_step_goes_on(place: Place) -> None:
    """Whose rate stays the same in the calls that are watched and linked."""

    def trained(wrap: Callable[[Any], Any]) -> torch.Tensor:
        parameter = torch.nn.Parameter(torch.ones(4, device=place.torch))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            (parameter * x).sum().backward()
            optimizer.step()
            schedule.step()

        call = wrap(step)
        for number in range(CALLS):
            call(torch.full((4,), number / 8, device=place.torch))
        return parameter.detach()

    expected = trained(lambda step: step)
    assert torch.equal(trained(lambda step: pygraph.capture(step, device=place.name)), expected)


class Agent:
    """As programs have them: much that the step does not read, in one object."""

    def __init__(self, place: Place) -> None:
        self.weight = place.randn(4)
        self.random = random.Random(0)
        self.queue: queue.Queue[Any] = queue.Queue()
        self.log = io.BytesIO()
        self.arguments = argparse.Namespace(scale=2.0, counted=0)
        self.lock = threading.Lock()
        self.steps = itertools.count()

    def step(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            return x * self.weight * self.arguments.scale

    def explore(self) -> float:
        self.queue.put(next(self.steps))
        self.log.write(b"explored")
        self.arguments.counted += 1
        return self.random.random()


@pytest.mark.parametrize("compiled", [False, True])
def test_state_that_a_step_does_not_read_is_in_nobodys_way(place: Place, compiled: bool) -> None:
    agent = Agent(place)
    inner = agent.step
    if compiled:
        torch._dynamo.reset()
        inner = torch.compile(agent.step, backend="eager")
    captured = pygraph.capture(lambda x: inner(x) + 1, device=place.name)
    for number in range(CALLS):
        agent.explore()
        agent.arguments.counted = 0  # which compiled code may read, as far as is known
        if number == CALLS - 3:
            agent.arguments.scale = 3.0
        x = place.randn(4)
        assert torch.equal(captured(x), x * agent.weight * agent.arguments.scale + 1)
    assert sum(each.replays for each in pygraph.report().graphs) >= CALLS - 6


def is_replayed(place: Place, double: Callable[..., Any]) -> None:
    """All calls but the first three."""
    captured = pygraph.capture(double, device=place.name)
    for _ in range(CALLS):
        x = place.randn(4)
        assert torch.equal(captured(x), x * 2)
    assert sum(each.replays for each in pygraph.report().graphs) == CALLS - 3


def library(name: str, source: str) -> types.ModuleType:
    module = types.ModuleType(name)
    exec(compile(source, f"/packages/{name.replace('.', '/')}.py", "exec"), vars(module))
    return module


def test_what_triton_keeps_for_each_launch_is_no_state(place: Place) -> None:
    """As Inductor's code gives it for each kernel (CachingAutotuner.run)."""
    allocation = """
import contextvars
_allocator = contextvars.ContextVar("_allocator", default=None)
def set_allocator(allocator): _allocator.set(allocator)
"""
    heuristics = """
def launch(set_allocator):
    def alloc_fn(size): return bytearray(size)
    set_allocator(alloc_fn)
"""
    triton = library("triton.runtime._allocation", allocation)
    inductor = library("torch._inductor.runtime.triton_heuristics", heuristics)

    def step(x: torch.Tensor) -> torch.Tensor:
        inductor.launch(triton.set_allocator)
        return x * 2

    is_replayed(place, step)


def test_a_file_that_is_written_only_is_no_state(place: Place) -> None:
    with open(os.devnull, "w") as sink:

        def step(x: torch.Tensor) -> torch.Tensor:
            sink.write("a step\n")
            return x * 2

        is_replayed(place, step)


def test_a_class_may_say_that_it_is_of_any_module(place: Place) -> None:
    class Odd:
        __module__ = 3  # type: ignore[assignment]
        n = 2.0

    odd = Odd()
    captured = pygraph.capture(lambda x: x * odd.n, device=place.name)
    for _ in range(CALLS):
        x = place.randn(4)
        assert torch.equal(captured(x), x * 2)


def test_an_array_without_plain_bytes_runs_as_it_is(place: Place) -> None:
    dates = numpy().zeros(2, "datetime64[D]")
    objects = numpy().zeros(1, [("number", "i4"), ("object", "O")])
    objects["object"][0] = [2.0]
    for captured in (
        pygraph.capture(lambda x: x * len(dates), device=place.name),
        pygraph.capture(lambda x: x * objects["object"][0][0], device=place.name),
    ):
        for _ in range(5):
            x = place.randn(4)
            assert torch.equal(captured(x), x * 2)
    assert sum(each.replays for each in pygraph.report().graphs) == 0


def test_what_cannot_be_compared_is_named(place: Place) -> None:
    generator = random.Random(0)
    captured = pygraph.capture(lambda x: x * generator.random(), device=place.name)
    for _ in range(3):
        captured(place.randn(4))
    assert (
        "'s generator is a Random: its state cannot be compared: nothing tells of a change"
        in str(pygraph.report())
    )


def hook_on_all_modules(place: Place) -> Any:
    return torch.nn.modules.module.register_module_forward_hook(lambda m, given, made: made * 2)


def hook_before_all_modules(place: Place) -> Any:
    hook = lambda module, given: (given[0] * 2,)  # noqa: E731
    return torch.nn.modules.module.register_module_forward_pre_hook(hook)


def hook_on_all_backwards(place: Place) -> Any:
    hook = lambda module, inner, outer: tuple(None if each is None else each * 2 for each in inner)  # noqa: E731
    return torch.nn.modules.module.register_module_full_backward_hook(hook)


def hook_on_all_optimizers(place: Place) -> Any:
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        for each in optimizer.param_groups[0]["params"]:
            each.grad.mul_(2)

    return register_optimizer_step_pre_hook(hook)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "hook",
    [hook_on_all_modules, hook_before_all_modules, hook_on_all_backwards, hook_on_all_optimizers],
)
def test_hooks_on_everything_are_seen(place: Place, hook: Any, compiled: bool) -> None:
    def train(wrap: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        torch._dynamo.reset()
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).to(place.torch)
        inner = torch.compile(net, backend="aot_eager") if compiled else net
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = inner(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call, found, held = wrap(step), [], None
        try:
            for number in range(CALLS):
                if number == CALLS // 2:
                    held = hook(place)
                found.append(call(place.randn(2, 4)).clone())
        finally:
            held.remove()
        return [*found, *(each.detach().clone() for each in net.parameters())]

    expected = train(lambda step: step)
    found = train(functools.partial(pygraph.capture, device=place.name))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert sum(each.replays for each in pygraph.report().graphs) >= CALLS // 2 - 3


@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.backends.cudnn.flags(enabled=False),
        lambda: torch.backends.cudnn.flags(allow_tf32=False),
        lambda: torch.backends.cudnn.flags(deterministic=True),
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        torch.autograd.detect_anomaly,
    ],
    ids=["cudnn", "tf32", "deterministic", "attention", "anomaly"],
)
def test_calls_with_other_choices_have_graphs_of_their_own(place: Place, around: Any) -> None:
    net = torch.nn.Linear(4, 4).to(place.torch)
    captured = pygraph.capture(lambda x: net(x), device=place.name)

    def replays() -> int:
        return sum(each.replays for each in pygraph.report().graphs)

    with torch.no_grad():
        for _ in range(CALLS // 2):
            captured(place.randn(2, 4))
        before = replays()
        with around():
            x = place.randn(2, 4)
            assert torch.equal(captured(x), net(x))
            assert replays() == before
        captured(place.randn(2, 4))
        assert replays() == before + 1


def test_a_context_variable_that_others_set_is_seen(place: Place) -> None:
    scale: contextvars.ContextVar[torch.Tensor | float] = contextvars.ContextVar("scale")
    captured = pygraph.capture(lambda x: x * scale.get(2.0), device=place.name)
    values = [None, 3.0, place.randn(4), place.randn(4), 5.0]
    for value in values:
        if value is not None:
            scale.set(value)
        for _ in range(5):
            x = place.randn(4)
            assert torch.equal(captured(x), x * scale.get(2.0))
    assert sum(each.replays for each in pygraph.report().graphs) >= 6


def test_what_a_weak_reference_refers_to_is_seen(place: Place) -> None:
    box = Box()
    reference = weakref.ref(box)

    def step(x: torch.Tensor) -> torch.Tensor:
        there = reference()
        return x if there is None else x * there.n

    captured = pygraph.capture(step, device=place.name)
    for n in (2.0, 3.0):
        box.n = n
        for _ in range(5):
            x = place.randn(4)
            assert torch.equal(captured(x), x * n)
    replays = sum(each.replays for each in pygraph.report().graphs)
    assert replays >= 4
    del box
    for _ in range(5):
        x = place.randn(4)
        assert torch.equal(captured(x), x)
