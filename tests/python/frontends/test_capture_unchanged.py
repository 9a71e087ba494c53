"""pygraph.capture: calls are compared past what has not changed, and what has changed is found."""

from __future__ import annotations

import collections
import functools
import gc
import random
import subprocess
import sys
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from places import assert_bits
from torch import nn

import pygraph
from pygraph import _engine
from pygraph._engine import PlaceKind
from pygraph.frontends.callable.differences import same
from pygraph.frontends.callable.structure import NotDescribed, Tree
from pygraph.torch_private.support import metadata_bytes, tensor_access
from pygraph.torch_private.tensors import object_of

#: Whether the interpreter tells of all changes of dictionaries.
WATCHES = sys.version_info >= (3, 12) and sys.version_info[:3] != (3, 13, 0)
WARM = 6  #: calls, of which the last ones are replays past what has not changed

BIAS = 0.25


# ---------------------------------------------------------------------------- whole programs


class Options:
    """A program's own object."""

    def __init__(self) -> None:
        self.power = 2
        self.nested: Any = {"gain": 1.5, "pair": (1.0, [2.0])}


class OtherOptions(Options):
    rate = 8.0


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Block(nn.Module):
    rate = 0.5  # data of the class

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("offset", torch.randn(4))
        self.drop = nn.Dropout(0.5)
        self.scale = 0.75
        self.pair: Any = (1.25, (2, [0.5]))
        self.table: Any = {"a": 1.0, "b": 2.0}
        self.order: Any = collections.OrderedDict(a=2.0, b=3.5, c=0.25)
        self.counts: Any = collections.defaultdict(float, a=1.0)
        self.listed: Any = [1.5, 2.5]
        self.chosen = {1.0, 2.0}
        self.options: Any = Options()
        self.slotted = Slotted(0.25)
        self.free: Any = torch.randn(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.linear(x)) * self.scale + self.offset + self.rate
        if self.training:
            x = x * 3
        x = x * self.pair[0] + self.pair[1][1][0]
        for table in (self.table, self.order, self.counts):
            for number, (key, value) in enumerate(table.items()):
                x = x * (number + 1) + value + len(key)
        for number, value in enumerate(self.listed):
            x = x + number * value
        x = x + sum(self.chosen) + self.options.power + self.slotted.rate
        x = x + getattr(type(self.options), "rate", 0.0) + len(self.options.__dict__)
        nested = self.options.nested
        x = x * nested["gain"] + nested["pair"][1][0]
        return x + self.free.sum() if self.free.requires_grad else x * self.free


class Program:
    """A function that reads all of this, and how it is changed."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.blocks: Any = nn.Sequential(Block(), nn.ModuleList([Block()])[0]).eval()
        self.block: Any = self.blocks[0]
        self.groups: Any = [{"lr": 0.5, "params": [torch.randn(4), torch.randn(4)], "on": True}]
        shift = 1.0

        def assign(value: Any) -> None:
            nonlocal shift
            shift = value

        def step(x: torch.Tensor, factor: float = 2.0, *, extra: float = 0.125) -> torch.Tensor:
            with torch.no_grad():
                for hook in self.hooks:
                    x = hook(x)
                x = self.blocks(x) * factor + extra + shift + BIAS
                for group in self.groups:
                    for each in group["params"]:
                        x = x + each * group["lr"] if group["on"] else x - each
                return x + helper(x)

        def helper(x: torch.Tensor, by: float = 0.5) -> torch.Tensor:
            return x * by

        self.hooks: Any = []
        self.assign, self.step, self.helper = assign, step, helper


def _mutations() -> dict[str, Callable[[Program], Any]]:
    kept: list[Any] = []

    def replace_code(program: Program) -> None:
        def other(x: torch.Tensor, by: float = 0.5) -> torch.Tensor:
            return x * by - 1

        program.helper.__code__ = other.__code__

    def set_global(_: Program) -> None:
        globals()["BIAS"] += 1.0

    def hide_builtin(_: Program) -> None:
        globals()["sum"] = lambda values: 40.0

    def set_class(_: Program) -> None:
        Block.rate += 1.0

    def same_address(program: Program) -> None:
        """A list in place of another one, most likely on its address."""
        listed = program.block.listed
        del program.block.listed
        del listed
        program.block.listed = [9.0, 8.0]

    def new_group(program: Program) -> None:
        """A dictionary in a list, most likely on the address of the one before."""
        group = dict(program.groups.pop())
        group["lr"] = 9.0
        program.groups.append({**group})

    def replaced_dict(program: Program) -> None:
        kept.append(program.block.options.__dict__)  # it stays as it is
        program.block.options.__dict__ = {**kept[-1], "power": 7}

    def set_anew(program: Program) -> None:
        del program.block.scale
        program.block.scale = 2.0

    def smaller(program: Program) -> None:
        program.block.linear = nn.Linear(4, 4, bias=False)

    def hooked(program: Program) -> None:
        program.block.linear.register_forward_pre_hook(lambda module, given: (given[0] * 2,))

    def loaded(program: Program) -> None:
        state = program.blocks.state_dict()
        program.blocks.load_state_dict({key: value * 2 for key, value in state.items()})

    def popped(program: Program) -> None:
        key, value = program.block.table.popitem()
        program.block.table[key] = value + 1

    def inplace_or(program: Program) -> None:
        program.block.table |= {"b": 5.0}

    def refilled(program: Program) -> None:
        program.block.table.clear()
        program.block.table.update({"b": 2.0, "a": 1.0})

    def reinitialised(program: Program) -> None:
        program.block.options.__init__()
        program.block.options.power = 3

    return {
        "attribute": lambda p: setattr(p.block, "scale", 4.0),
        "attribute by __dict__": lambda p: vars(p.block).__setitem__("scale", 5.0),
        "attribute deleted and set": set_anew,
        "submodule": lambda p: setattr(p.block, "linear", nn.Linear(4, 4)),
        "submodule of another type": lambda p: setattr(p.block, "norm", nn.Identity()),
        "module of a sequence": lambda p: p.blocks.__setitem__(1, Block().eval()),
        "module appended": lambda p: p.blocks.append(nn.Sigmoid()),
        "parameter": lambda p: setattr(p.block.linear, "weight", nn.Parameter(torch.randn(4, 4))),
        "parameter of another size": smaller,
        "parameter deleted": lambda p: p.block.linear.register_parameter("bias", None),
        "parameter shared": lambda p: setattr(p.blocks[1], "linear", p.block.linear),
        "buffer": lambda p: p.block.register_buffer("offset", torch.randn(4)),
        "buffer of another dtype": lambda p: p.block.register_buffer("offset", torch.ones(4).int()),
        "buffer in place": lambda p: p.block.offset.add_(1),
        "forward hook": lambda p: p.block.register_forward_hook(lambda m, a, out: out + 1),
        "forward pre-hook": hooked,
        "train": lambda p: p.block.drop.eval() and setattr(p.block, "training", True),
        "data of a tensor": lambda p: setattr(p.block.linear.weight, "data", torch.randn(4, 4)),
        "requires_grad": lambda p: p.block.free.requires_grad_(),
        "tensor": lambda p: setattr(p.block, "free", torch.randn(4)),
        "tensor of another size": lambda p: setattr(p.block, "free", torch.randn(1)),
        "tensor resized": lambda p: setattr(p.block.free, "data", torch.randn(1)),
        "tuple": lambda p: setattr(p.block, "pair", (1.25, (2, [4.0]))),
        "list in a tuple": lambda p: p.block.pair[1][1].__setitem__(0, 6.0),
        "list element": lambda p: p.block.listed.__setitem__(1, 7.0),
        "list element that is equal": lambda p: p.block.listed.__setitem__(1, float("2.5")),
        "list append": lambda p: p.block.listed.append(3.0),
        "list of another order": lambda p: p.block.listed.reverse(),
        "list on the same address": same_address,
        "set": lambda p: p.block.chosen.add(9.0),
        "dict item": lambda p: p.block.table.__setitem__("a", 4.0),
        "dict item that is equal": lambda p: p.block.table.__setitem__("a", float("1.0")),
        "dict update": lambda p: p.block.table.update(a=3.0),
        "dict |=": inplace_or,
        "dict setdefault": lambda p: p.block.table.setdefault("c", 3.0),
        "dict pop": lambda p: p.block.table.pop("a"),
        "dict popitem": popped,
        "dict del": lambda p: p.block.table.__delitem__("a"),
        "dict cleared": lambda p: p.block.table.clear(),
        "dict refilled in another order": refilled,
        "dict replaced": lambda p: setattr(p.block, "table", {"a": 1.0, "b": 6.0}),
        "defaultdict's own item": lambda p: p.block.counts["bb"],
        "OrderedDict.move_to_end": lambda p: p.block.order.move_to_end("a"),
        "OrderedDict.popitem": lambda p: p.block.order.popitem(last=False),
        "OrderedDict item": lambda p: p.block.order.__setitem__("b", 9.0),
        "object's attribute": lambda p: setattr(p.block.options, "power", 5),
        "object's new attribute": lambda p: setattr(p.block.options, "more", 5),
        "object's nested dict": lambda p: p.block.options.nested.update(gain=4.0),
        "object's list in a tuple": lambda p: p.block.options.nested["pair"][1].__setitem__(0, 5.0),
        "object's __class__": lambda p: setattr(p.block.options, "__class__", OtherOptions),
        "object's __dict__": replaced_dict,
        "object's __dict__ cleared": reinitialised,
        "object replaced": lambda p: setattr(p.block, "options", OtherOptions()),
        "object with slots": lambda p: setattr(p.block.slotted, "rate", 3.0),
        "group": lambda p: p.groups[0].update(lr=3.0),
        "group's flag": lambda p: p.groups[0].update(on=False),
        "group's tensors": lambda p: p.groups[0]["params"].append(torch.randn(4)),
        "group's tensor": lambda p: p.groups[0]["params"].__setitem__(0, torch.randn(4)),
        "group's tensors shared": lambda p: p.groups[0]["params"].__setitem__(0, p.block.offset),
        "group on the same address": new_group,
        "another group": lambda p: p.groups.append({**p.groups[0], "lr": 0.25}),
        "nonlocal variable": lambda p: p.assign(3.0),
        "global variable": set_global,
        "global variable over a builtin": hide_builtin,
        "class attribute": set_class,
        "attribute over the class's": lambda p: setattr(p.block, "rate", 6.0),
        "defaults": lambda p: setattr(p.step, "__defaults__", (5.0,)),
        "keyword defaults": lambda p: p.step.__kwdefaults__.update(extra=4.0),
        "keyword defaults replaced": lambda p: setattr(p.step, "__kwdefaults__", {"extra": 3.0}),
        "code": replace_code,
        "hook in a list": lambda p: p.hooks.append(lambda x: x * 2),
        "attribute of the closure": lambda p: setattr(p, "blocks", nn.Sequential(Block().eval())),
        "model loaded": loaded,
    }  # fmt: skip


MUTATIONS = _mutations()
WITHOUT_EFFECT = ("list element that is equal", "dict item that is equal")


@pytest.fixture
def globals_restored() -> Iterator[None]:
    bias, rate = BIAS, Block.rate
    yield
    globals()["BIAS"], Block.rate = bias, rate
    globals().pop("sum", None)


@pytest.mark.usefixtures("globals_restored", "one_thread")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_change_is_found(name: str) -> None:
    program = Program()
    with pygraph.capture(program.step, device="twin") as captured:
        x = torch.randn(4)
        for _ in range(WARM):
            assert_bits(captured(x), program.step(x))
        assert bool(captured._calls.shortcuts) == WATCHES, str(pygraph.report())
        before = program.step(x)
        MUTATIONS[name](program)
        after = program.step(x)
        differs = before.shape != after.shape or not torch.equal(before, after)
        assert differs == (name not in WITHOUT_EFFECT)
        for _ in range(2):
            assert_bits(captured(x), program.step(x))


def test_what_a_call_writes_is_walked_and_the_rest_is_not() -> None:
    """An attribute that each call gives another tensor, and a rate that the program sets."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    state = Options()
    state.last, state.rate = torch.zeros(4), 0.3  # type: ignore[attr-defined]
    plain = Options()
    plain.last, plain.rate = torch.zeros(4), 0.3  # type: ignore[attr-defined]

    def step(x: torch.Tensor, state: Any) -> torch.Tensor:
        with torch.no_grad():
            state.last = model(x) * state.rate + state.last
            return state.last * 2

    with pygraph.capture(step, device="twin") as captured:
        for number in range(40):
            x = torch.randn(4)
            state.rate = plain.rate = 0.3 + number / 100  # type: ignore[attr-defined]
            assert_bits(captured(x, state), step(x, plain))
            assert_bits(state.last, plain.last)  # type: ignore[attr-defined]
        assert not WATCHES or captured._calls.shortcuts > 20


# ---------------------------------------------------------------------------- one tree


class Compared:
    """A tree as a call found it, and whether later calls are found to be the same: past what has
    not changed, by a whole walk, and by a comparison with a new tree."""

    def __init__(self, *roots: Any) -> None:
        assert tensor_access() == "direct"
        self._roots = roots
        self._tree = self._describe()
        assert self._tree is not None
        self.owner = object()
        self.function = _engine.CapturedFunction(lambda *call: False, lambda tensors: None)
        self.calls = _engine.EngineCalled(self.function)
        self.function.add_as_it_is(
            nodes=self._tree.nodes({}),
            roots=tuple(self._tree.roots[2:]),
            modes=_engine.ModeGuard([]),
            function=lambda: True,
            owner=self.owner,
        )
        self._tree.forget()  # or nothing would ever stand on the address of something else

    def _describe(self) -> Tree | None:
        tree = Tree(frozenset(), every=True)
        tree.add_positional([])
        tree.add_root("argument", {})
        try:
            for root in self._roots:
                tree.add_root("root", root)
        except NotDescribed:
            return None
        return tree

    def check(self) -> bool:
        found = self.calls()
        whole = self.function.first_mismatch(self.owner, (), {})
        assert found == (whole is None), (found, whole and self._tree.path(whole))
        now = self._describe()
        assert found == (now is not None and same(self._tree, now))
        return found


class Point:
    def __init__(self, x: Any) -> None:
        self.x = x


class Other(Point):
    pass


class Table(dict[Any, Any]):
    pass


class OtherTable(Table):
    pass


class Pair(tuple[Any, ...]):
    pass


class OtherPair(Pair):
    pass


#: Each of one layout, so that an object may change from one to the other.
TWINS = {Point: Other, Table: OtherTable, Pair: OtherPair}
TWINS |= {other: one for one, other in TWINS.items()}


class Text(str):
    """Compared by code of the program's, which may do anything."""

    def __new__(cls, text: str, then: Callable[[], Any] = lambda: None) -> Text:
        made = super().__new__(cls, text)
        made.then = then
        return made

    then: Callable[[], Any]

    def __hash__(self) -> int:
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self.then()
        return super().__eq__(other)


class Garden:
    """A random tree of everything that can be walked, and random changes of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.met: list[Any] = []  #: to be shared, and changed
        self.root = Point(None)
        self.root.x = {"first": self.container(4), "second": self.container(4)}
        self.listed = [self.container(3), self.container(2)]

    def variables(self) -> Callable[[], Any]:
        root, listed = self.root, self.listed
        return lambda: (root, listed)

    def atom(self) -> Any:
        return self.random.choice(
            [0, 1, 1000, 1001, 0.0, -0.0, 2.5, "a", "bc", None, True, b"x", torch.float32, (1, 2.5)]
        )

    def tensor(self) -> torch.Tensor:
        made = torch.zeros(self.random.choice([(2,), (2, 2), (0,)]))
        made.requires_grad_(self.random.random() < 0.5)
        return made

    def leaf(self) -> Any:
        chosen = self.random.random()
        if chosen < 0.15 and self.met:
            return self.random.choice(self.met)
        if chosen < 0.3:
            return self.tensor()
        if chosen < 0.4:
            return self.random.choice([{1, 2}, frozenset({3}), collections.deque([1, 2]), set()])
        return self.atom()

    def container(self, depth: int) -> Any:
        def inside() -> Any:
            return self.container(depth - 1)

        if depth == 0:
            return self.leaf()
        count = self.random.randrange(4)
        keys: list[Any] = self.random.sample(["a", "b", "c", 1, 2.5, (1, 2)], count)
        if self.random.random() < 0.1:
            keys.append(self.random.choice([torch.zeros(1), Text("key")]))
        kind = self.random.randrange(11)
        made: Any
        if kind < 3:
            made = {key: inside() for key in keys}
        elif kind == 3:
            made = collections.OrderedDict((key, inside()) for key in keys)
        elif kind == 4:
            kind_of_dict: Any = self.random.choice(
                [functools.partial(collections.defaultdict, list), Table, OtherTable]
            )
            made = kind_of_dict({key: inside() for key in keys})
        elif kind == 5:
            made = [inside() for _ in keys]
        elif kind == 6:
            made = self.random.choice([tuple, tuple, Pair, OtherPair])([inside() for _ in keys])
        elif kind == 7:
            made = Slotted(inside())
        elif kind == 8:
            made = self.function(inside(), inside())
        else:
            made = self.random.choice([Point, Other])(inside())
            made.more = inside()
        if self.random.random() < 0.1:
            made = self.random.choice(
                [functools.partial(max, made, key=made), nn.Identity(), nn.Linear(2, 2)]
            )
        self.met.append(made)
        return made

    def function(self, inner: Any, default: Any) -> Callable[..., Any]:
        def function(x: Any = default, *, y: Any = inner) -> Any:
            return inner, x, y

        return function

    def change(self) -> None:
        """Changes something in some way, which may leave it as it was."""
        target = self.random.choice([self.root, self.root.x, self.listed, *self.met])
        if type(target) in TWINS and self.random.random() < 0.2:
            target.__class__ = TWINS[type(target)]
        elif isinstance(target, dict):
            self.change_dict(target)
        elif isinstance(target, list):
            self.change_list(target)
        elif isinstance(target, torch.Tensor):
            self.change_tensor(target)
        elif isinstance(target, Slotted):
            self.put_anew(lambda: target.rate, lambda value: setattr(target, "rate", value))
        elif isinstance(target, functools.partial):
            self.change_partial(target)
        elif isinstance(target, set):
            target.symmetric_difference_update({self.random.randrange(4)})
        elif isinstance(target, types.FunctionType):
            self.change_function(target)
        elif isinstance(target, (Point, nn.Module)):
            self.change_instance(target)

    def put_anew(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Puts something in the place of what is there, perhaps at its very address."""
        value = get()
        if self.random.random() < 0.5:
            put(self.like(value))
            return
        parts = list(value) if isinstance(value, tuple) else None
        self.met = [each for each in self.met if each is not value]
        kind, attributes = type(value), getattr(value, "__dict__", None)
        put(None)
        if parts is not None and kind in (tuple, Pair, OtherPair):
            del value
            match self.random.randrange(4):
                case 0 if parts:
                    parts[0] = self.like(parts[0])
                case 1 if parts:
                    parts.pop()
                case 2:
                    parts.append(0)
            put(kind(parts))
        elif kind in (Point, Other):
            del value
            made = kind(None)
            made.__dict__.update(attributes)
            put(made)
        elif kind is functools.partial:
            function, given, named = value.func, value.args, value.keywords
            del value
            put(functools.partial(function, *(self.like(each) for each in given), **named))
        else:
            put(value)

    def change_partial(self, target: functools.partial[Any]) -> None:
        """In ways that CPython has for them."""
        match self.random.randrange(3):
            case 0:
                target.keywords["key"] = self.like(target.keywords.get("key"))
            case 1:
                given = tuple(self.like(each) for each in target.args)
                target.__setstate__((target.func, given, target.keywords, vars(target)))
            case 2:
                function = self.random.choice([max, min])
                target.__setstate__((function, target.args, target.keywords, vars(target)))

    def like(self, value: Any) -> Any:
        """The same once more, an equal one, or something else."""
        chosen = self.random.random()
        if chosen < 0.3:
            return value
        if chosen < 0.6:
            for kind in (dict, Table, list, collections.OrderedDict, set):
                if type(value) is kind:
                    return kind(value)
            if isinstance(value, tuple):
                return type(value)(value)
            if type(value) in (Point, Other):
                made = type(value)(value.x)
                made.__dict__.update(value.__dict__)
                return made
            if type(value) is float:
                return float(repr(value))
            if type(value) is torch.Tensor:
                return torch.zeros_like(value).requires_grad_(value.requires_grad)
        return self.container(self.random.randrange(3))

    def change_dict(self, target: Any) -> None:
        key = self.random.choice([*target, "a", "z"])
        before = dict(target)
        value = before.get(key, 0)
        match self.random.randrange(13):
            case 0:
                target[key] = self.like(value)
            case 1:
                target.pop(key, None)
            case 2 if target:
                name, value = target.popitem()
                target[name] = self.like(value)
            case 3:
                target.setdefault(key, value)
            case 4:
                target.update({key: self.like(value)})
            case 5:
                target |= {key: self.like(value)}
            case 6:
                target.clear()
                target.update(before)
            case 7:
                target.clear()
            case 8 if target:
                del target[next(iter(target))]
            case 9 if isinstance(target, collections.OrderedDict) and target:
                target.move_to_end(self.random.choice([*target]), self.random.random() < 0.5)
            case 10 if isinstance(target, collections.OrderedDict) and target:
                target.popitem(last=False)
            case 11:
                for each in before:  # to the end, in the same order
                    target[each] = target.pop(each)
            case 12 if isinstance(target, collections.defaultdict):
                assert target[key] is not None or key in before

    def change_list(self, target: list[Any]) -> None:
        match self.random.randrange(6):
            case 0:
                target.append(self.leaf())
            case 1 if target:
                place = self.random.randrange(len(target))
                target[place] = self.like(target[place])
            case 2 if target:
                place = self.random.randrange(len(target))
                value = target.pop(place)
                self.met = [each for each in self.met if each is not value]
                value = dict(value) if type(value) is dict else value  # perhaps where it was
                target.insert(place, value)
            case 3:
                target.reverse()
            case 4:
                target[:] = list(target)
            case 5:
                target.clear()

    def change_tensor(self, target: torch.Tensor) -> None:
        with torch.no_grad():
            match self.random.randrange(5):
                case 0:
                    target.requires_grad_(not target.requires_grad)
                case 4:
                    filled = target.untyped_storage().nbytes()
                    needed = target.numel() * target.element_size()
                    target.untyped_storage().resize_(0 if filled else needed)
                case 1:
                    target.data = self.tensor().data
                case 2 if target.requires_grad:
                    target.grad = self.random.choice([None, torch.zeros_like(target)])
                case 3:
                    target.data = torch.zeros_like(target)

    def change_function(self, target: Any) -> None:
        match self.random.randrange(4):
            case 0 if target.__closure__:
                cell = target.__closure__[0]
                self.put_anew(
                    lambda: cell.cell_contents, lambda value: setattr(cell, "cell_contents", value)
                )
            case 1:
                target.__defaults__ = (self.like(target.__defaults__),)
            case 2:
                target.__kwdefaults__ = self.random.choice([None, {"y": 1}, target.__kwdefaults__])
            case 3 if target.__closure__:
                target.__code__ = self.function(1, 2).__code__.replace()

    def change_instance(self, target: Any) -> None:
        match self.random.randrange(6):
            case 0:
                module = isinstance(target, nn.Module)
                name = self.random.choice(["training"] if module else [*vars(target), "more"])
                value = vars(target).get(name)
                object.__setattr__(target, name, self.like(value))
            case 1:
                for _ in range(20):  # so often that it is compiled for this very kind
                    target.flag = 1
                    target.flag = 2
                del target.flag
            case 2:
                target.__dict__ = dict(vars(target))
            case 3:
                self.met.append(target.__dict__)  # it lives longer than it is there
                target.__dict__ = dict(vars(target))
                if isinstance(target, Point) and self.random.random() < 0.7:
                    self.set_x(target, self.like(self.random.random()))
            case 4 if type(target) in (Point, Other):
                self.set_x(target, self.like(target.x) if hasattr(target, "x") else 1)
            case 5:
                target.flag = 1

    @staticmethod
    def set_x(target: Any, value: Any) -> None:
        target.x = value


class Weight(torch.Tensor):
    pass


def sized(tensor: torch.Tensor, *sizes: int) -> None:
    """Keeps memory and number of elements."""
    tensor.data = tensor.data.view(sizes)


#: A tensor, and what changes it.
TENSORS: dict[str, tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], Any]]] = {
    "requires_grad": (lambda: torch.zeros(2, 3), lambda t: t.requires_grad_()),
    "sizes": (lambda: torch.zeros(2, 3), lambda t: sized(t, 3, 2)),
    "rank": (lambda: torch.zeros(4, 1), lambda t: sized(t, 4)),
    "rank of nothing": (lambda: torch.zeros(1, 1, 1), lambda t: sized(t)),
    "sizes by resize_": (lambda: torch.zeros(2, 3), lambda t: t.resize_(3, 2)),
    "sizes by set_": (lambda: torch.zeros(2, 3), lambda t: t.set_(torch.zeros(1, 3))),
    "rank by unsqueeze_": (lambda: torch.zeros(2, 3), lambda t: t.unsqueeze_(0)),
    "strides": (lambda: torch.zeros(3, 3), lambda t: t.t_()),
    "strides by as_strided_": (lambda: torch.zeros(4, 4), lambda t: t.as_strided_((4, 4), (2, 1))),
    "strides of other data": (lambda: torch.zeros(3, 3), lambda t: setattr(t, "data", t.data.t())),
    "dtype": (lambda: torch.zeros(3), lambda t: setattr(t, "data", t.data.view(torch.int32))),
    "dtype of a scalar": (
        lambda: torch.zeros((), dtype=torch.int64),
        lambda t: setattr(t, "data", t.data.view(torch.float64)),
    ),
    "sizes of six dimensions": (
        lambda: torch.zeros(2, 2, 2, 2, 2, 2),
        lambda t: sized(t, 2, 2, 2, 2, 4, 1),
    ),
    "sizes of seven dimensions": (
        lambda: torch.zeros(2, 1, 1, 1, 1, 1, 2),
        lambda t: sized(t, 1, 2, 1, 1, 1, 1, 2),
    ),
    "type": (lambda: torch.zeros(3), lambda t: setattr(t, "__class__", Weight)),
    "conjugate": (
        lambda: torch.zeros(3, dtype=torch.cfloat),
        lambda t: setattr(t, "data", t.data.conj()),
    ),
    "negative": (
        lambda: torch.zeros(3, dtype=torch.cfloat).imag,
        lambda t: setattr(t, "data", torch.zeros(3, dtype=torch.cfloat).conj().imag),
    ),
    "negative one": (
        lambda: torch.zeros(1, dtype=torch.cfloat)[0].imag,
        lambda t: setattr(t, "data", torch.zeros(1, dtype=torch.cfloat)[0].conj().imag),
    ),
    "meta": (
        lambda: torch.zeros(3),
        lambda t: torch.utils.swap_tensors(t, torch.zeros(3, device="meta")),
    ),
}


@pytest.mark.parametrize("held", [Point, lambda tensor: [tensor]], ids=["attribute", "list"])
@pytest.mark.parametrize("name", TENSORS)
def test_a_change_of_a_tensor_is_found(name: str, held: Any) -> None:
    make, change = TENSORS[name]
    tensor = make()
    compared = Compared(held(tensor))
    for _ in range(3):
        assert compared.check()
    change(tensor)
    for _ in range(2):
        assert not compared.check()


def test_another_tensor_on_the_same_address_is_found() -> None:
    point = Point(torch.zeros(2, 3))
    compared = Compared(point)
    for _ in range(3):
        assert compared.check()
    reused = 0
    for _ in range(100):
        address = object_of(point.x)
        del point.x
        point.x = torch.zeros(3, 2)
        reused += object_of(point.x) == address
        assert not compared.check()
        del point.x
        point.x = torch.zeros(2, 3)
        assert compared.check()
    assert reused


def test_metadata_is_compared_at_once() -> None:
    """Otherwise each fact is asked for, and calls take twice as long."""
    assert metadata_bytes() > 0


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_are_found(seed: int) -> None:
    garden = Garden(seed)
    compared = Compared(garden.variables())
    same_again = shortcuts = 0
    for _ in range(100):
        before = compared.function.shortcuts
        for _ in range(2):
            assert compared.check()
        shortcuts += compared.function.shortcuts - before
        for _ in range(garden.random.randrange(1, 6)):
            garden.change()
            found = compared.check()
            same_again += found
            if not found:
                break
        if garden.random.random() < 0.1:
            gc.collect()
        compared = Compared(garden.variables())
    assert same_again > 10
    assert not WATCHES or shortcuts > 50, shortcuts


def settled(*roots: Any) -> Compared:
    """Compared so often that only what may have changed unheard is looked at."""
    compared = Compared(*roots)
    for _ in range(3):
        assert compared.check()
    assert not WATCHES or compared.function.shortcuts
    return compared


@pytest.mark.parametrize("looked", [False, True])
def test_an_attribute_that_a_function_gets_is_found(looked: bool) -> None:
    def function() -> None:
        pass

    if looked:
        assert vars(function) == {}  # which makes the dictionary
    compared = settled(Point({"function": function}))
    function.flag = 1  # type: ignore[attr-defined]
    assert not compared.check()
    del function.flag  # type: ignore[attr-defined]
    assert compared.check()
    function.__dict__ = {"flag": 1}
    assert not compared.check()
    function.__dict__ = {}
    assert compared.check()


def test_another_class_of_slots_is_found() -> None:
    class Kind:
        __slots__ = ("rate",)

        def __init__(self) -> None:
            self.rate = 0.25

    class Like(Kind):
        __slots__ = ()

    class Own(Kind):
        __slots__ = ()

    held = Like()
    compared = settled(Point({"held": held}))
    held.__class__ = Own
    assert not compared.check()
    held.__class__ = Like
    assert compared.check()
    Like.rate = property(lambda _: 8.0)  # type: ignore[assignment, method-assign]
    assert not compared.check()
    del Like.rate
    assert compared.check()


@pytest.mark.parametrize("emptied", [False, True])
def test_memory_that_a_tensor_gets_or_loses_is_found(emptied: bool) -> None:
    held = torch.zeros(4)
    sizes = [held.untyped_storage().nbytes(), 0]
    held.untyped_storage().resize_(sizes[emptied])
    compared = settled(Point({"held": held}))
    held.untyped_storage().resize_(sizes[not emptied])
    assert not compared.check()
    held.untyped_storage().resize_(sizes[emptied])
    assert compared.check()


def put_in_its_place(held: Slotted, make: Callable[[], Any]) -> None:
    """Another object for `held.rate`, at the address of the one that goes. What gets other memory
    that was free is kept meanwhile, so that in the end there is this alone."""
    address, kept = id(held.rate), []
    held.rate = None
    for _ in range(100_000):
        made = make()
        if id(made) == address:
            held.rate = made
            return
        kept.append(made)
    raise AssertionError(f"none of {len(kept)} objects came to the address of the one before")


def test_another_function_in_the_place_of_one_is_found() -> None:
    """At its very address, and with a variable of its own."""

    def make(value: float) -> Callable[[], float]:
        return lambda: value

    held = Slotted(make(1.5))
    kept = held.rate.__closure__[0]
    compared = settled(Point({"held": held}))
    put_in_its_place(held, lambda: make(2.5))
    assert kept.cell_contents == 1.5 and not compared.check()


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_list_that_changes_is_found(length: int) -> None:
    """A list is no dictionary: nothing tells of its changes."""
    held = Slotted([Point(number) for number in range(length)])
    compared = settled(Point({"held": held, "listed": [held] * length}))
    changes: list[Callable[[list[Any]], Any]] = [
        lambda listed: listed.append(Point(5)),
        lambda listed: listed.extend([Point(5)] * 50),
        lambda listed: listed.__setitem__(slice(None), [Point(7) for _ in listed]),
    ]
    if length > 0:
        changes += [
            lambda listed: listed.clear(),
            lambda listed: listed.pop(),
            lambda listed: listed.__setitem__(-1, Point(9)),
            lambda listed: setattr(listed[0], "x", 9),
        ]
    for change in changes:
        before, values = [*held.rate], [each.x for each in held.rate]
        change(held.rate)
        assert compared.check() == (length == 0 and not held.rate)
        for each, value in zip(before, values, strict=True):
            each.x = value
        held.rate[:] = before
        for _ in range(3):
            assert compared.check()


def test_another_list_in_the_place_of_one_is_found() -> None:
    """At its very address."""
    held = Slotted([Point(1), Point(2)])
    compared = settled(Point({"held": held}))
    kept = [*held.rate]
    put_in_its_place(held, lambda: [kept[1], kept[0]])
    assert not compared.check()


def test_slots_and_methods_in_lists_and_slots_are_found_to_change() -> None:
    """The object with slots is met again in another list."""
    held = Slotted(1.5)
    method = Slotted(Options().__init__)
    compared = settled(Point({"held": [held], "again": [held], "method": method}))
    held.rate = 2.5
    assert not compared.check()
    held.rate = 1.5
    assert compared.check()
    method.rate.__self__.power = 7
    assert not compared.check()
    method.rate.__self__.power = 2
    assert compared.check()
    method.rate = Options().__init__
    assert compared.check()
    method.rate.__self__.power = 7
    assert not compared.check()


def test_an_attribute_that_is_not_there_is_asked_for() -> None:
    values: dict[str, Any] = {}

    class Kind:
        def __getattr__(self, name: str) -> Any:
            if name not in values:
                raise AttributeError(name)
            return values[name]

    function = _engine.CapturedFunction(lambda *call: False, lambda tensors: None)
    nodes = [
        _engine.Place(PlaceKind.TUPLE, type=tuple),  # arguments
        _engine.Place(PlaceKind.DICT, type=dict),
        _engine.Place(PlaceKind.INSTANCE, children=1, type=Point),
        _engine.Place(PlaceKind.DICT, children=1, type=dict, key="x"),
        _engine.Place(PlaceKind.ATTRIBUTES, children=1, type=Kind, key="held"),
        _engine.Place(PlaceKind.EMPTY, key="rate"),
    ]
    call, root = _engine.EngineCalled(function), Point({"held": Kind()})
    function.add_as_it_is(
        nodes=nodes,
        roots=(root,),
        modes=_engine.ModeGuard([]),
        function=lambda: True,
        owner=call,
    )
    assert call() and call() and call()
    assert bool(function.shortcuts) == WATCHES
    values["rate"] = 1
    assert not call()
    del values["rate"]
    assert call()


def test_another_method_in_the_place_of_one_is_found() -> None:
    """At its very address, of the same function."""
    one, other = Options(), Options()
    other.power = 7
    held = Slotted(one.__init__)
    compared = settled(Point({"held": held}))
    put_in_its_place(held, lambda: other.__init__)
    assert not compared.check()


def test_what_is_met_again_is_the_same_again() -> None:
    one, other = Point(1.5), Point(1.5)
    held = Slotted([one, other])
    again = Slotted([one])
    compared = settled(Point({"held": held, "again": again}))
    again.rate[0] = other
    assert not compared.check()
    again.rate[0] = one
    assert compared.check()
    held.rate[:] = [other, one]
    again.rate[0] = other
    assert compared.check()
    again.rate[0] = one
    assert not compared.check()


@pytest.mark.parametrize("other", [{"a": 2.0}, {"a": 1.0, "b": 1.0}, {}])
def test_another_dictionary_in_the_place_of_one_is_found(other: Any) -> None:
    """At its very address."""
    held = Slotted({"a": 1.0})
    compared = settled(Point({"held": held}))
    put_in_its_place(held, lambda: {**other})
    assert not compared.check()


def test_what_is_another_object_each_time_ends_no_record() -> None:
    held = Slotted((1.5, 2.5))
    compared = settled(Point({"held": held}))
    for number in range(30):
        held.rate = (1.5, number * 0.0 + 2.5)
        before = compared.function.shortcuts
        assert compared.check()
    assert compared.function.shortcuts - before == WATCHES


def test_a_tuple_of_another_size_in_the_place_of_one_is_found() -> None:
    """At its very address, if CPython gives that out again."""
    held = Slotted(Pair([[1], [2]]))
    compared = settled(Point({"held": held}))
    first, second = held.rate
    address = id(held.rate)
    for more in range(20):
        held.rate = None
        others = [Pair([first, second, more]) for _ in range(more)]
        held.rate = Pair([first, second, more])
        if id(held.rate) == address:
            break
        del others
    assert not compared.check()


def test_attributes_set_by_specialised_code_are_found() -> None:
    """The interpreter has instructions of its own for attributes of one type, with and without a
    dictionary."""
    points = [Point(number) for number in range(4)]

    def assign(point: Any, value: Any) -> None:
        point.x = value

    def read(point: Any) -> Any:
        return point.x

    compared = Compared(lambda: points)
    for number in range(400):
        point = points[number % 4]
        before = read(point)
        assert compared.check()
        assert compared.check()
        for value in (1, 2, 3):
            assign(point, value)
        assert not compared.check() or before == 3
        assign(point, before)
        assert compared.check()
        for _ in range(30):
            assert read(point) == before
        assert compared.check()
        if number % 40 == 0:
            compared = Compared(lambda: points)


class InSlots:
    __slots__ = ("first", "second")

    def __init__(self) -> None:
        self.first: Any = 1
        self.second: Any = [2]


class Naming(type):
    """Its classes tell of a slot that their objects do not have."""

    own = property(lambda kind: InSlots.__dict__["second"])


class OfNaming(metaclass=Naming):
    __slots__ = ("own", "unlike")

    def __init__(self) -> None:
        self.own = 3
        self.unlike = 4


def replaced(kind: Any) -> Callable[[], None]:
    """Makes the slot another attribute of the class, and returns what mends it."""
    before = kind.__dict__["first"]
    kind.first = property(lambda self: 7)
    return lambda: setattr(kind, "first", before)


def emptied(holder: Any) -> Callable[[], None]:
    before = holder.first
    del holder.first
    return lambda: setattr(holder, "first", before)


def given(holder: Any, name: str, value: Any) -> Callable[[], None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    return lambda: setattr(holder, name, before)


def other_state(made: Any) -> Callable[[], None]:
    before = made.__reduce__()[2]
    made.__setstate__((made.func, (5,), {}, None))
    return lambda: made.__setstate__(before)


@pytest.mark.parametrize(
    "change",
    [
        lambda held: given(held[0], "first", 8),
        lambda held: given(held[0], "second", [9]),
        lambda held: emptied(held[0]),
        lambda held: replaced(InSlots),
        lambda held: given(held[1], "own", 4),
        lambda held: other_state(held[2]),
        lambda held: given(held[3], "requires_grad", True),
        lambda held: given(held[0], "first", None),
    ],
)
def test_attributes_that_are_read_past_their_names_are_found_to_change(change: Any) -> None:
    held = [InSlots(), OfNaming(), functools.partial(max, 4), torch.ones(3)]
    for root in (held, held, Point({"held": held})):  # a class may be learnt anew
        compared = Compared(root)
        assert [compared.check() for _ in range(3)] == [True] * 3
        mend = change(held)
        assert not compared.check()
        mend()
        assert compared.check()


@pytest.mark.parametrize("key", [None, "keys", ("keys",), (["keys"], None), ((), ["names"])])
def test_a_place_of_a_class_says_which_keys_it_has(key: Any) -> None:
    function = _engine.CapturedFunction(lambda *_: None, lambda *_: None)
    with pytest.raises(ValueError, match="does not say which keys it has"):
        function.add_as_it_is(
            nodes=[_engine.Place(PlaceKind.METHODS, object=int, type=int.__mro__, key=key)],
            roots=(),
            modes=_engine.ModeGuard([]),
            function=lambda: None,
            owner=function,
        )


@pytest.mark.parametrize("later", range(1, 6))  # in the record's walk, too, which is one more
def test_code_that_a_comparison_runs_may_change_everything(later: int) -> None:
    inside = [False]

    def nested() -> None:
        if not inside[0]:
            inside[0] = True
            compared.calls()

    changes: list[Callable[[Any], Any]] = [
        lambda root: None,
        lambda root: root.__dict__.clear(),
        lambda root: setattr(root, "__dict__", {}),
        lambda root: setattr(root, "x", None),
        lambda root: setattr(root.first, "x", 7.5),
        lambda root: nested(),
        lambda root: root.last.__dict__.clear(),
        lambda root: setattr(root.last, "x", 7.5),
        lambda root: delattr(root, "last"),
        lambda root: root.listed.clear(),
        lambda root: root.held.rate.clear(),
        lambda root: setattr(root.held, "rate", None),
        lambda root: setattr(root.plain, "x", 7.5),
    ]
    for change in changes:
        for warm in range(4):
            root: Any = Point({"deep": Point([Point(1.5)])})
            root.first = Point(2.5)
            if warm % 2:  # else without an anchor behind the texts
                root.order = collections.OrderedDict({1: [1], 2: [2]})
            root.listed = [Point(1), Point(2)]
            root.last = Point({"deep": Point([Point(2.5)]), "list": [Point(1)]})
            root.order = collections.OrderedDict({1: [Text("a")], 2: [Text("b")]})
            root.held = Slotted([Point(1.5), Point([2.5])])
            root.plain = Point(1.5)
            compared = Compared(lambda root=root: root)
            left = [0]  #: of comparisons with a text, until there is a change
            inside[0] = False

            def then(left: list[int] = left, change: Any = change, root: Any = root) -> None:
                left[0] -= 1
                if left[0] == 0:
                    change(root)

            root.order = collections.OrderedDict({1: [Text("a", then)], 2: [Text("b", then)]})
            for _ in range(warm):
                assert compared.calls()
            left[0] = later
            found = compared.calls()
            # What is changed behind the texts is found by the comparison that it interrupts.
            assert not found or change is not changes[-1] or later > 2
            left[0] = 0
            gc.collect()
            for _ in range(3):
                found = compared.calls()
                whole = compared.function.first_mismatch(compared.owner, (), {})
                assert found == (whole is None)


def test_threads_may_compare_while_one_changes() -> None:
    garden = Garden(3)
    compared = Compared(garden.variables())
    done = threading.Event()

    def compare() -> None:
        while not done.is_set():
            compared.calls()

    threads = [threading.Thread(target=compare) for _ in range(3)]
    for each in threads:
        each.start()
    for _ in range(300):
        garden.change()
    done.set()
    for each in threads:
        each.join()
    compared.check()


def test_what_stands_in_a_tuple_is_not_kept_alive() -> None:
    def step(x: torch.Tensor, holder: Any) -> Any:
        with torch.no_grad():
            return holder.x.rate[0](x) + 1

    with pygraph.capture(step, device="twin") as captured:
        holder = Point(Slotted((nn.Linear(4, 4),)))
        for _ in range(WARM):
            captured(torch.randn(2, 4), holder)
        died = weakref.ref(holder.x.rate[0])
        del holder
        gc.collect()
        assert died() is None


def test_a_callable_may_stand_in_a_tuple_that_it_reads() -> None:
    """All of it goes together."""

    def made() -> weakref.ref[Any]:
        holder = Point(None)

        @functools.partial(pygraph.capture, device="twin")
        def step(x: torch.Tensor) -> torch.Tensor:
            return x + len(holder.x.rate)

        marker = types.SimpleNamespace  # a class, which the tree keeps
        own = type("Own", (), {"step": step})
        holder.x = Slotted((marker, own))
        for _ in range(WARM):
            step(torch.randn(2))
        assert not WATCHES or step._calls.shortcuts
        return weakref.ref(own)

    gone = made()
    gc.collect()
    assert gone() is None


def test_what_was_compared_is_not_kept_alive() -> None:
    def step(x: torch.Tensor, model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model(x) + 1

    with pygraph.capture(step, device="twin") as captured:
        for _ in range(3):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            for _ in range(WARM):
                x = torch.randn(4)
                assert_bits(captured(x, model), step(x, model))
            before = captured._calls.shortcuts
            captured(x, model)
            assert captured._calls.shortcuts - before == WATCHES
            kept = weakref.ref(model)
            del model
            gc.collect()
            assert kept() is None


def test_one_record_does_not_end_with_another() -> None:
    shared = Point({"a": Point(1.5)})
    first, second = Compared(lambda: shared), Compared(lambda: [shared])
    for _ in range(3):
        assert first.check() and second.check()
    del first
    assert second.check()
    shared.x["a"].x = 2.5
    assert not second.check()
    shared.x["a"].x = 1.5
    assert second.check()


def test_dictionaries_that_change_in_each_call_cost_the_shortcut_only_a_while() -> None:
    root = Point({"calm": Point(1.5), "busy": Point(2.5)})
    compared = Compared(lambda: root)
    for number in range(20):
        root.x["busy"].x = 2.5 + number
        assert compared.check() == (number == 0)
        root.x["busy"].x = float("2.5")
        assert compared.check()
    assert not WATCHES or compared.function.shortcuts > 10

    def fresh() -> Any:  # others in each call, and equal
        return [{"a": Point({"b": number})} for number in range(20)]

    kept: list[Any] = []
    current = fresh()
    compared = Compared(lambda: (current, root))
    for _ in range(40):
        assert compared.check()
        kept.append(current)
        current = fresh()
    assert not WATCHES or compared.function.shortcuts > 20


@pytest.mark.parametrize("apart", [1, 20])
def test_what_a_script_assigns_costs_the_shortcut_only_a_while(apart: int) -> None:
    """Its loop's variables stand beside what its functions read. A record that has served 20 calls
    has paid, and ends with them all the same."""
    script: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    exec("scale = 1.5\ndef step(x):\n    return torch.sin(x) * scale", script)
    with pygraph.capture(script["step"], device="twin") as captured:
        for number in range(60 + 3 * apart):
            if number % apart == 0:
                script["step_number"] = number
            x, before = torch.randn(4), captured._calls.shortcuts
            assert_bits(captured(x), torch.sin(x) * 1.5)
            assert captured._calls.shortcuts == before + WATCHES or number < 6 + 3 * apart
        script["scale"] = 2.5
        assert_bits(captured(x), torch.sin(x) * 2.5)


def test_a_process_ends_with_records() -> None:
    program = """
        import torch
        from torch import nn

        import pygraph

        model = nn.Linear(4, 4)

        @pygraph.capture(device="twin")
        def step(x):
            with torch.no_grad():
                return model(x)

        class Late:
            def __del__(self):
                model.bias = None
                step.function(torch.ones(4))

        for _ in range(8):
            step(torch.ones(4))
        print(step._calls.shortcuts > 0)
        late = Late()
        torch.late = late
        model.me = model
    """
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(WATCHES)]
