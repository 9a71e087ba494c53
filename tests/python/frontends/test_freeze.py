"""pygraph.freeze: calls that go to a graph without Dynamo, and each promise broken in turn.

What breaks one must take the slow path (Frozen.misses counts those calls) and have eager's result.
"""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import sys
import threading
import types
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from places import Place, only_graph
from torch import nn
from torch.utils._pytree import tree_leaves

import pygraph
from pygraph import _engine
from pygraph.frontends.compile.bytecode import Beside, beside_graph
from pygraph.frontends.compile.freeze import Frozen
from pygraph.frontends.compile.past_guards import leads

pytestmark = pytest.mark.usefixtures("without_gradients")

FACTOR = 2.0
SETTINGS = types.ModuleType("settings")
Pair = namedtuple("Pair", "one other")


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


class Plain:
    """An object of a program's."""

    WEIGHT = 3.0

    def __init__(self) -> None:
        self.numbers = [1.0, 2.0]
        self.texts = {"how": "add"}


PLAIN = Plain()


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.scale = 1.5
        self.register_buffer("shift", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x) * self.scale + self.shift
        return y + 1 if self.training else y


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    SETTINGS.bias = 3.0  # type: ignore[attr-defined]
    PLAIN.__init__()  # type: ignore[misc]
    yield
    globals()["FACTOR"], Plain.WEIGHT = 2.0, 3.0


def same(found: Any, wanted: Any) -> bool:
    """Whether two results have the same form, and about the same values: a frozen call must do what
    the compiled code does, which may round otherwise than eager code."""
    if isinstance(wanted, torch.Tensor):
        return torch.equal(found, wanted) or torch.allclose(found, wanted)
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, (tuple, list)):
        pairs = zip(found, wanted, strict=True)
        return type(found) is type(wanted) and all(same(a, b) for a, b in pairs)
    return type(found) is type(wanted) and found == wanted


class Led:
    """A compiled callable that nobody has frozen, whose calls are led past the guards."""

    def __init__(self, compiled: Any, *example: Any) -> None:
        self._compiled = compiled
        for _ in range(6):
            compiled(*example)
        self._through = leads(compiled)
        assert self._through is not None, "calls stay with Dynamo"
        self._made = next(iter(self._through.examples))
        self.misses = 0
        self.reason: str | None = None

    def __call__(self, *positional: Any, **named: Any) -> Any:
        calls = self._through._calls
        served, why = calls.served, self._made.difference(calls, positional, named)
        try:
            return self._compiled(*positional, **named)
        finally:
            if calls.served == served:
                self.misses += 1
                self.reason = why or "its graph did not take the call"


class Case:
    """A function that is compiled, and frozen or `led`; both are called and compared."""

    def __init__(
        self, place: Place, function: Any, *example: Any, led: bool = False, **named: Any
    ) -> None:
        self.function = function
        launch = "before_guards" if led else "always"
        self.compiled = place.compile(function, dynamic=False, launch=launch)
        self.fast: Any = (
            Led(self.compiled, *example)
            if led
            else pygraph.freeze(self.compiled, *example, **named)
        )

    def serves(self, *arguments: Any, **named: Any) -> Any:
        """A call that the graph serves."""
        misses, replays = self.fast.misses, self._replays()
        found = self._compare(*arguments, **named)
        assert self.fast.misses == misses, self.fast.reason
        assert self._replays() == replays + 1
        return found

    def misses(self, *arguments: Any, **named: Any) -> str:
        """A call that takes the slow path; why."""
        misses = self.fast.misses
        self._compare(*arguments, **named)
        assert self.fast.misses == misses + 1
        assert self.fast.reason is not None
        return self.fast.reason

    def _replays(self) -> int:
        return self.fast._made.graph.dispatcher.replays

    def _compare(self, *arguments: Any, **named: Any) -> Any:
        wanted = self.function(*arguments, **named)
        found = self.fast(*arguments, **named)
        assert same(found, wanted), (found, wanted)
        return found


@pytest.fixture(params=[False, True], ids=["frozen", "led"])
def net(
    place: Place, request: pytest.FixtureRequest
) -> tuple[Case, Net, Callable[[], torch.Tensor]]:
    module = Net().to(place.torch).eval()
    case = Case(place, module, place.randn(2, 4), led=request.param)
    case.serves(place.randn(2, 4))
    return case, module, lambda: place.randn(2, 4)


# ------------------------------------------------------------------------------- what is served


def test_calls_go_to_the_graph(place: Place) -> None:
    module = Net().to(place.torch).eval()
    case = Case(place, module, place.randn(2, 4))
    kept = [(x := place.randn(2, 4), case.serves(x)) for _ in range(5)]
    for x, found in kept:
        assert same(found, module(x)), "results are the caller's"
    assert "0 calls went to the compiled callable" in repr(case.fast)
    assert only_graph().past_wrappers


def test_dynamo_has_no_part_in_them(place: Place) -> None:
    """But the twin's kernels run Python."""
    module = Net().to(place.torch).eval()
    case, x = Case(place, module, place.randn(2, 4)), place.randn(2, 4)

    def ran(function: Any) -> list[str]:
        found: list[str] = []
        sys.setprofile(lambda frame, *_: found.append(frame.f_code.co_filename))
        try:
            function(x)
        finally:
            sys.setprofile(None)
        return [each for each in found if "torch/_dynamo" in each or "frontends/compile" in each]

    assert ran(case.compiled)
    assert not ran(case.fast)


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (lambda x, y: x + y, "tensor"),
        (lambda x, y: (x + y, x * y), "tuple"),
        (lambda x, y: [x + y, (x * y,), 3, "text", None], "list"),
        (lambda x, y: {"sum": x + y, "all": [x * y, {"deep": x - y}]}, "dict"),
        (lambda x, y: (x + y, x), "an argument"),
        (lambda x, y: (z := x + y, z), "twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_results_have_the_form_that_the_function_gives_them(
    place: Place, function: Any, form: str
) -> None:
    case = Case(place, function, place.randn(3), place.randn(3))
    x, y = place.randn(3), place.randn(3)
    found = case.serves(x, y)
    if form == "an argument":
        assert found[1] is x
    if form == "twice":
        assert found[0] is found[1]


def test_arguments_by_name_and_in_containers(place: Place) -> None:
    def function(x: torch.Tensor, *rest: Any, flag: bool = True, **more: Any) -> Any:
        y = x + rest[0]["a"][1] * rest[1]
        return (y if flag else -y) + more["w"]

    def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
        x, a, w = (place.randn(3) for _ in range(3))
        return (x, {"a": [a, a]}, 2.5), {"w": w}

    positional, named = arguments()
    case = Case(place, function, *positional, **named)
    for _ in range(3):
        positional, named = arguments()
        case.serves(*positional, **named)
    assert "argument[2]" in case.misses(*positional[:2], 3.5, **named)
    assert "argument" in case.misses(*positional, flag=False, **named)
    case.misses(*positional, flag=True, **named)  # as the default, but not as in the example
    case.serves(*positional, **named)


def test_more_arguments_than_are_given(place: Place) -> None:
    def function(x: torch.Tensor, *rest: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return sum([*rest, *more.values()], x * len(rest))

    case = Case(place, function, place.randn(3))
    case.serves(place.randn(3))
    case.misses(place.randn(3), place.randn(3))
    case.misses(place.randn(3), more=place.randn(3))


def test_numbers_are_told_by_their_bits(place: Place) -> None:
    case = Case(place, lambda x, s: x * s, place.randn(3), 0.0)
    case.serves(place.randn(3), 0.0)
    x = place.randn(3)
    case.fast(x, -0.0)  # Dynamo takes it for the same
    assert case.fast.misses == 1
    case.misses(x, False)
    case.misses(x, 0)


def test_a_model_of_many_layers_with_tied_weights(place: Place) -> None:
    layers = [nn.Linear(8, 8) for _ in range(16)]
    layers[9].weight = layers[3].weight
    module = nn.Sequential(*layers).to(place.torch)
    case = Case(place, module, place.randn(1, 8))
    case.serves(place.randn(1, 8))
    layers[9].weight = nn.Parameter(layers[3].weight * 2)
    case.misses(place.randn(1, 8))


def test_a_function_that_reads_what_is_around_it(place: Place) -> None:
    inner, cell = nn.Linear(4, 4).to(place.torch), 2.0

    def function(x: torch.Tensor) -> torch.Tensor:
        y = helper(inner(x)) * PLAIN.WEIGHT + PLAIN.numbers[1] + SETTINGS.bias
        return y * cell if PLAIN.texts["how"] == "add" else y

    case = Case(place, function, place.randn(2, 4))
    case.serves(place.randn(2, 4))
    changes: list[tuple[Callable[[], None], Callable[[], None]]] = [
        (lambda: PLAIN.numbers.append(1.0), lambda: PLAIN.numbers.pop() and None),
        (
            lambda: setattr(PLAIN, "numbers", [1.0, 5.0]),
            lambda: setattr(PLAIN, "numbers", [1, 2.0]),
        ),
        (lambda: PLAIN.texts.update(how="not"), lambda: PLAIN.texts.update(how="add")),
        (lambda: setattr(Plain, "WEIGHT", 4.0), lambda: setattr(Plain, "WEIGHT", 3.0)),
        (lambda: setattr(SETTINGS, "bias", 4.0), lambda: setattr(SETTINGS, "bias", 3.0)),
        (lambda: globals().update(FACTOR=5.0), lambda: globals().update(FACTOR=2.0)),
    ]
    for change, back in changes:
        change()
        case.misses(place.randn(2, 4))
        back()
    PLAIN.numbers[0] = 1.0
    case.serves(place.randn(2, 4))
    cell = 7.0
    case.misses(place.randn(2, 4))


def test_a_function_that_is_replaced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(place, lambda x: helper(x) + 1, place.randn(3))
    case.serves(place.randn(3))
    monkeypatch.setitem(globals(), "helper", lambda x: x * 100)
    assert "helper" in case.misses(place.randn(3))


def test_defaults(place: Place) -> None:
    def function(x: torch.Tensor, by: float = 2.0, *, plus: float = 1.0) -> torch.Tensor:
        return x * by + plus

    case = Case(place, function, place.randn(3))
    case.serves(place.randn(3))
    function.__defaults__ = (3.0,)
    case.misses(place.randn(3))
    function.__defaults__ = (2.0,)
    case.serves(place.randn(3))
    assert function.__kwdefaults__ is not None
    function.__kwdefaults__["plus"] = 5.0
    case.misses(place.randn(3))


def test_random_numbers_go_on(place: Place) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    compiled = place.compile(function)
    try:
        fast = pygraph.freeze(compiled, place.randn(64))
    except pygraph.NotFrozen as error:
        pytest.skip(str(error))
    x = place.randn(64)
    torch.manual_seed(3)
    wanted = [compiled(x) for _ in range(3)]
    torch.manual_seed(3)
    assert all(torch.equal(fast(x), each) for each in wanted)
    assert not fast.misses


# ------------------------------------------------------------------------ what breaks the promise


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:1],
        lambda x: x.t().contiguous().t(),
        lambda x: x.double(),
        lambda x: x[None],
        lambda x: nn.Parameter(x, requires_grad=False),
        lambda x: x.clone().requires_grad_(),
    ],
    ids=["size", "stride", "dtype", "rank", "type", "requires grad"],
)
def test_another_tensor(place: Place, change: Any) -> None:
    case = Case(place, lambda x: x * 2 + 1, place.randn(2, 3))
    assert "argument[0]" in case.misses(change(place.randn(2, 3)))
    case.serves(place.randn(2, 3))


def test_a_subclass_of_tensor(place: Place) -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, *_: Any, **__: Any) -> Any:
            return "loud"

    case = Case(place, lambda x: x * 2, place.randn(2, 3))
    assert case.fast(place.randn(2, 3).as_subclass(Loud)) == "loud"
    assert case.fast.misses == 1


def test_a_negated_tensor(place: Place) -> None:
    case = Case(
        place, lambda x: x * 2, torch.view_as_real(place.randn(3, dtype=torch.cfloat))[:, 1]
    )
    x = place.randn(3, dtype=torch.cfloat)
    case.serves(x.imag)
    case.misses(x.conj().imag)
    one = Case(place, lambda x: x * 2, x[0].imag)
    one.serves(x[1].imag)
    one.misses(x[1].conj().imag)
    complex_ = Case(place, lambda x: x * 2, x)
    complex_.serves(x * 3)
    complex_.misses(x.conj())


def test_other_arguments(place: Place) -> None:
    case = Case(place, lambda *given: given[0] + given[-1], place.randn(3), place.randn(3))
    x, y = place.randn(3), place.randn(3)
    case.serves(x, y)
    case.misses(x)
    case.misses(x, y, x)
    case.serves(y, x)


def test_arguments_that_were_one_object(place: Place) -> None:
    """Dynamo's graph has one argument for both."""
    x, y = place.randn(3), place.randn(3)
    case = Case(place, lambda one, other: one * 2 + other, x, x)
    case.serves(y, y)
    case.misses(x, y)
    other = Case(place, lambda one, other: one * 3 + other, x, y)
    other.serves(x, y)
    other._compare(y, y)


def test_an_argument_that_is_a_parameter(place: Place) -> None:
    module = nn.Linear(4, 4, bias=False).to(place.torch)
    weight = module.weight

    def function(x: torch.Tensor) -> torch.Tensor:
        return module(x) + x

    case = Case(place, function, weight)
    case.serves(weight)
    case.misses(nn.Parameter(place.randn(4, 4)))


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "scale", 2.5),
        lambda net: net.train(),
        lambda net: setattr(net.layers[0], "weight", nn.Parameter(net.shift.new_ones(4, 4).t()[:])),
        lambda net: setattr(net.layers[0], "bias", None),
        lambda net: net.layers[0].weight.requires_grad_(False),
        lambda net: setattr(net.layers[0].weight, "data", net.layers[0].weight.data.clone()),
        lambda net: setattr(net.layers[0].weight, "data", net.layers[0].weight.data.t()),
        lambda net: net.layers.append(nn.ReLU()),
        lambda net: net.layers.__delitem__(1),
        lambda net: setattr(net, "layers", nn.Sequential(net.layers[2], net.layers[0])),
        lambda net: setattr(net, "shift", torch.zeros(1, device=net.shift.device)),
        lambda net: setattr(net, "forward", lambda x: x * 100),
        lambda net: setattr(net.layers[1], "forward", lambda x: x * 100),
        lambda net: setattr(net, "__class__", type("Other", (Net,), {"forward": lambda s, x: x})),
        lambda net: net.register_forward_hook(lambda *given: given[2] * 100) and None,
        lambda net: net.register_forward_pre_hook(lambda *given: given[1][0] * 100) and None,
    ],
    ids=[
        "attribute", "training", "weight of other strides", "no bias", "requires grad", "same data",
        "transposed data", "one layer more", "one layer less", "another module", "buffer",
        "forward of the object", "forward of a layer", "class", "hook", "hook in front",
    ],
)  # fmt: skip
def test_the_module_changes(net: Any, change: Any, request: pytest.FixtureRequest) -> None:
    case, module, draw = net
    change(module)
    x = draw()
    found, what = case.fast(x), request.node.callspec.id.rpartition("-")[2]
    # The guards of torch 2.11 do not look at these strides.
    assert same(found, module(x)) or (what == "transposed data" and same(found, case.compiled(x)))
    assert case.fast.misses == (0 if what == "same data" else 1), case.fast.reason


class Scale(nn.Parameter):
    pass


def data(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], None]:
    """Another tensor's data for a parameter, which stays the object that it is."""
    return lambda parameter: setattr(parameter, "data", change(parameter.data))


#: What may happen to a parameter in place, and whether calls are the graph's afterwards.
IN_PLACE: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "values": (lambda p: p.mul_(2), True),
    "data": (data(torch.clone), True),
    "data on another offset": (data(lambda d: torch.cat(33 * [d])[-4:]), True),
    "data of other sizes": (data(lambda d: d[:1].clone()), False),
    "data of other strides": (data(lambda d: d.t()), False),
    "data of another dtype": (data(torch.Tensor.half), False),
    "data that is negated": (data(lambda d: torch.complex(d, d).conj().imag), False),
    "sizes": (lambda p: p.set_(p.detach()[:1].clone()), False),
    "strides": (lambda p: p.t_(), False),
    "requires_grad": (lambda p: p.requires_grad_(False), False),
    "type": (lambda p: setattr(p, "__class__", Scale), False),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_parameter_changes_in_place(place: Place, name: str) -> None:
    """Tensors that have not changed are compared as one piece of memory."""
    module = Net().to(place.torch).eval()
    case = Case(place, module, place.randn(2, 4))
    for _ in range(3):
        case.serves(place.randn(2, 4))
    change, served = IN_PLACE[name]
    change(module.layers[0].weight)
    if served:
        case.serves(place.randn(2, 4))
        return
    case.fast._compiled = lambda *given: "called"
    assert case.fast(place.randn(2, 4)) == "called"


def test_the_memory_of_a_parameter_is_freed(place: Place) -> None:
    module = Net().to(place.torch).eval()
    case = Case(place, module, place.randn(2, 4))
    case.serves(place.randn(2, 4))
    case.serves(place.randn(2, 4))
    compiled, case.fast._compiled = case.fast._compiled, lambda *given: "called"
    storage = module.layers[0].weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    assert case.fast(place.randn(2, 4)) == "called"
    storage.resize_(size)
    module.layers[0].weight.fill_(1)
    case.fast._compiled = compiled
    case.serves(place.randn(2, 4))


def test_hooks_on_all_modules(net: Any) -> None:
    case, _, draw = net
    seen: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m))
    try:
        with pytest.warns(UserWarning, match="global hooks"):
            case.misses(draw())
        assert seen
    finally:
        handle.remove()
    case.serves(draw())


def test_a_hook_on_what_was_compiled(net: Any) -> None:
    case, _, draw = net
    handle = case.compiled.register_forward_hook(lambda m, _, out: out * 2)
    x = draw()
    assert same(case.fast(x), case.compiled(x))
    if isinstance(case.fast, Frozen):  # else it stands in front of what is led
        assert case.fast.misses == 1
    handle.remove()
    case.serves(draw())


def test_a_method_that_is_replaced(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case, _, draw = net
    monkeypatch.setattr(Net, "forward", lambda self, x: x * 100)
    assert "forward" in case.misses(draw())


def around(factor: float, forward: Any, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    return forward(x * factor) + sum(more)


def partial_of(factor: float, module: nn.Module) -> Any:
    return functools.partial(around, factor, module.forward)


def set_within(module: nn.Module, factor: float) -> None:
    """In the partial object itself."""
    forward: Any = module.forward
    forward.__setstate__((around, (factor, *forward.args[1:]), {}, {}))


@pytest.mark.parametrize(
    "change",
    [
        None,
        lambda net: setattr(net, "forward", partial_of(3.0, net)),
        lambda net: setattr(net.layers[0], "forward", partial_of(3.0, net.layers[2])),
        lambda net: set_within(net, 3.0),
        lambda net: set_within(net.layers[0], 3.0),
        lambda net: delattr(net, "forward"),
        lambda net: setattr(net, "scale", 2.5),
        lambda net: setattr(net.layers[2], "bias", None),
        lambda net: net.forward.keywords.update(x=net.shift),
        lambda net: net.register_forward_hook(lambda *given: given[2] * 100) and None,
    ],
    ids=[
        "none", "another", "another in a layer", "its arguments", "a layer's arguments", "gone",
        "attribute", "no bias", "its keywords", "hook",
    ],
)  # fmt: skip
@pytest.mark.parametrize("led", [False, True], ids=["frozen", "led"])
def test_a_function_in_place_of_forward(place: Place, led: bool, change: Any) -> None:
    """As accelerate puts them there."""
    module = Net().to(place.torch).eval()
    for each in (module.layers[0], module):
        each.forward = partial_of(2.0, each)
    case = Case(place, module, place.randn(2, 4), led=led)
    for _ in range(2):
        case.serves(place.randn(2, 4))
    assert isinstance(case.misses(place.randn(2, 4), place.randn(4)), str)
    if change is None:
        return
    change(module)
    x = place.randn(2, 4)
    try:
        wanted = module(x)
    except TypeError:
        with pytest.raises(TypeError):
            case.fast(x)
    else:
        assert same(case.fast(x), wanted)
    assert case.fast.misses == 2, case.fast.reason


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "forward", helper),
        lambda net: delattr(net, "forward"),
        lambda net: net.register_forward_hook(lambda *given: given[2] * 100) and None,
    ],
    ids=["another", "gone", "hook"],
)
@pytest.mark.parametrize("led", [False, True], ids=["frozen", "led"])
def test_a_plain_function_in_place_of_forward(place: Place, led: bool, change: Any) -> None:
    module = Net().to(place.torch).eval()
    layers = module.layers
    module.forward = lambda x: layers(x) + 1  # type: ignore[method-assign]
    case = Case(place, module, place.randn(2, 4), led=led)
    case.serves(place.randn(2, 4))
    change(module)
    x = place.randn(2, 4)
    assert same(case.fast(x), module(x))
    assert case.fast.misses == 1, case.fast.reason


def test_a_partial_object_of_another_in_place_of_forward(place: Place) -> None:
    """Which Python does not make one of, since the inner one has an attribute."""
    module = Net().to(place.torch).eval()
    inner = partial_of(2.0, module)
    inner.name = "inner"  # type: ignore[attr-defined]
    module.forward = functools.partial(inner)  # type: ignore[method-assign]
    case = Case(place, module, place.randn(2, 4), led=True)
    case.serves(place.randn(2, 4))
    inner.__setstate__((around, (3.0, *inner.args[1:]), {}, {}))
    case.misses(place.randn(2, 4))


@pytest.mark.parametrize("changed", [0, 1], ids=["its own", "the other"])
def test_a_method_of_another_module_in_place_of_forward(place: Place, changed: int) -> None:
    both = [Net().to(place.torch).eval() for _ in range(2)]
    both[0].forward = both[1].forward  # type: ignore[method-assign]
    case = Case(place, both[0], place.randn(2, 4), led=True)
    case.serves(place.randn(2, 4))
    if changed == 0:
        both[0].register_forward_hook(lambda *given: given[2] * 100)
    else:
        both[1].scale = 2.5
    case.misses(place.randn(2, 4))


class Fields(nn.Module):
    """There is one empty tuple, which is a function's cells, too."""

    fields: tuple[str, ...] = ()

    def __init__(self, *fields: str) -> None:
        super().__init__()
        self.fields = fields

    @staticmethod
    def half(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = {"one": self.half(x), "other": x * 3}
        return tuple(found[name] for name in self.fields) if self.fields else (found["one"],)


@pytest.mark.parametrize("led", [False, True], ids=["frozen", "led"])
def test_a_static_method_and_an_empty_tuple(
    place: Place, led: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Fields()
    case = Case(place, module, place.randn(3), led=led)
    case.serves(place.randn(3))
    module.fields = ("other", "one")
    case.misses(place.randn(3))
    module.fields = ()
    case.serves(place.randn(3))
    monkeypatch.setattr(Fields, "half", staticmethod(lambda x: x / 4))
    case.misses(place.randn(3))


class Collector:
    """As a library has one that its models write to while they run."""

    def __init__(self) -> None:
        self.active: bool | None = None


class Written(Collector):
    """Whoever sets an attribute is heard."""

    heard = 0

    def __setattr__(self, name: str, value: Any) -> None:
        type(self).heard += 1
        super().__setattr__(name, value)


COLLECTOR, WRITTEN = Collector(), Written()


def sets_and_resets(x: torch.Tensor) -> torch.Tensor:
    COLLECTOR.active = True
    y = x * 2
    COLLECTOR.active = None
    return y


def sets(x: torch.Tensor) -> torch.Tensor:
    COLLECTOR.active = True
    return x * 2


@pytest.mark.parametrize("led", [False, True], ids=["frozen", "led"])
@pytest.mark.parametrize("function", [sets, sets_and_resets])
def test_an_attribute_that_is_set_to_what_it_is(place: Place, led: bool, function: Any) -> None:
    COLLECTOR.active = None
    case = Case(place, function, place.randn(3), led=led)
    function(place.randn(3))
    end = COLLECTOR.active
    case.serves(place.randn(3))
    assert COLLECTOR.active is end
    for other in (False, "other", not end):
        COLLECTOR.active = other  # type: ignore[assignment]
        misses = case.fast.misses
        case.fast(place.randn(3))
        assert case.fast.misses == misses + 1 and COLLECTOR.active is end
    case.serves(place.randn(3))


def test_an_object_that_hears_of_attributes(place: Place) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        WRITTEN.active = True
        return x * 2

    compiled = place.compile(function)
    assert refusal(compiled, place.randn(3))
    heard = Written.heard
    compiled(place.randn(3))
    assert Written.heard == heard + 1


class Asks(nn.Module):
    """Looks for attributes of everything around it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * getattr(self.config, "scale", 2.0) + getattr(self, "offset", 1.0)
        # A buffer that is looked up by getattr, and the class of an object.
        y = y + getattr(self, "shift", 0.0) * (2.0 if isinstance(self.config, Plain) else 3.0)
        return y * 5 if hasattr(x, "mark") else y


class Mapped(Plain):
    """Looks attributes up by other names, as configurations of a well-known library do."""

    names: dict[str, str] = {}

    def __getattribute__(self, name: str) -> Any:
        names = super().__getattribute__("names")
        return super().__getattribute__(names.get(name, name))


@pytest.mark.parametrize("led", [False, True], ids=["frozen", "led"])
@pytest.mark.parametrize("config", [Plain, Mapped])
@pytest.mark.parametrize(
    "change",
    [
        lambda module, _: setattr(module.config, "scale", 3.0),
        lambda module, patch: patch.setattr(Plain, "scale", 4.0, raising=False),
        lambda module, _: setattr(module, "offset", 2.0),
        lambda module, patch: patch.setattr(Asks, "offset", 3.0, raising=False),
        lambda module, _: module.register_parameter("offset", nn.Parameter(module.shift * 7)),
        lambda module, _: vars(module).update(shift=2.0),
        lambda module, patch: patch.setattr(Asks, "shift", 3.0, raising=False),
        lambda module, _: setattr(
            module.config, "__class__", type("Other", (type(module.config),), {})
        ),
    ],
    ids=[
        "variable", "variable of its class", "of a module", "of its class", "a parameter",
        "in front of a buffer", "of the class, in front of a buffer", "class",
    ],
)  # fmt: skip
def test_attributes_that_are_not_there(
    place: Place,
    led: bool,
    config: Any,
    change: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Asks(config()).to(place.torch)
    case = Case(place, module, place.randn(3), led=led)
    case.serves(place.randn(3))
    change(module, monkeypatch)
    x, misses = place.randn(3), case.fast.misses
    found = case.fast(x)
    assert case.fast.misses == misses + 1
    # Dynamo's guards do not look for all of what may stand in front of a buffer.
    assert same(found, case.compiled(x))


class Derived(Plain):
    """A variable of its class, and a property."""

    SHARE = 0.5

    @property
    def first(self) -> float:
        return self.numbers[0]


@pytest.mark.parametrize("led", [False, True], ids=["frozen", "led"])
@pytest.mark.parametrize(
    "change",
    [
        lambda module, patch: patch.setattr(Derived, "SHARE", 0.25),
        lambda module, patch: patch.setattr(Plain, "WEIGHT", 5.0),
        lambda module, _: setattr(module.config, "SHARE", 0.125),
        lambda module, _: module.config.numbers.__setitem__(0, 7.0),
    ],
    ids=["class", "class above", "object", "property"],
)
def test_variables_of_a_class_and_properties(
    place: Place, led: bool, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = Derived()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.config.SHARE + self.config.first * self.config.WEIGHT

    module = Reads()
    case = Case(place, module, place.randn(3), led=led)
    case.serves(place.randn(3))
    change(module, monkeypatch)
    case.misses(place.randn(3))


@pytest.mark.parametrize("led", [False, True], ids=["frozen", "led"])
def test_an_attribute_that_a_tensor_has_not(place: Place, led: bool) -> None:
    module = Asks(Plain()).to(place.torch)
    case = Case(place, module, place.randn(3), led=led)
    marked = place.randn(3)
    marked.mark = 1  # type: ignore[attr-defined]
    case.misses(marked)
    case.serves(place.randn(3))


def test_weights_that_are_others_of_the_same_shape_are_read(net: Any, place: Place) -> None:
    """As Dynamo's code does, which reads them in each call."""
    case, module, draw = net
    module.layers[0].weight.add_(1)
    case.serves(draw())
    module.layers[0].weight.data = torch.randn_like(module.layers[0].weight)
    case._compare(draw())
    module.layers[0].weight = nn.Parameter(place.randn(4, 4))
    case._compare(draw())
    other = Net().to(place.torch)
    module.load_state_dict(other.state_dict())
    case._compare(draw())
    module.load_state_dict(other.state_dict(), assign=True)
    case._compare(draw())
    module.shift = torch.full((4,), 3.0, device=place.torch)
    case._compare(draw())


def test_a_parameter_goes_when_it_is_replaced(net: Any, place: Place) -> None:
    case, module, draw = net
    gone = weakref.ref(module.layers[0].weight)
    module.layers[0].weight = nn.Parameter(place.randn(4, 4))
    gc.collect()
    case._compare(draw())
    if place.name == "twin":
        assert gone() is None


# ------------------------------------------------------------------------------------------ modes


@pytest.mark.parametrize(
    "mode",
    [
        torch.enable_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("cpu"),
        torch.autograd.forward_ad.dual_level,
        lambda: torch.autograd.graph.save_on_cpu(),
    ],
    ids=["gradients", "inference", "autocast", "default device", "forward mode", "saved tensors"],
)
def test_another_mode(net: Any, mode: Any) -> None:
    case, module, draw = net
    x = draw()
    with mode():
        wanted = module(x)
        found = case.fast(x)
        assert same(found, wanted) or found.dtype == torch.bfloat16
        assert (found.dtype, found.requires_grad) == (wanted.dtype, wanted.requires_grad)
    assert case.fast.misses == 1
    assert case.fast.reason == "torch's modes are others"
    case.serves(draw())


def test_settings_of_torch(net: Any) -> None:
    case, _, draw = net
    torch.use_deterministic_algorithms(True)
    try:
        case.misses(draw())
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        case.misses(draw().float())
    finally:
        torch.set_default_dtype(torch.float32)
    case.serves(draw())


def test_a_transform_of_functions(net: Any) -> None:
    case, module, draw = net
    x = draw()
    assert same(torch.func.vmap(case.fast)(x[None])[0], module(x))
    assert case.fast.misses == 1


def test_in_the_mode_of_the_example(place: Place) -> None:
    module = Net().to(place.torch).eval()
    with torch.inference_mode():
        case = Case(place, module, place.randn(2, 4))
        found = case.serves(place.randn(2, 4))
        assert found.is_inference()
    assert not case.fast(place.randn(2, 4)).is_inference()
    assert case.fast.misses == 1


@pytest.mark.parametrize("net", [False], indirect=True)
def test_within_compiled_code(net: Any, place: Place) -> None:
    case, module, draw = net
    around = place.compile(lambda x: case.fast(x - 1) + 3)
    for _ in range(4):
        x = draw()
        assert same(around(x), module(x - 1) + 3)


# -------------------------------------------------------------------------------------- whose life


def test_several_threads(net: Any) -> None:
    case, module, draw = net
    wrong: list[Any] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(200):
                x = draw()
                if not same(case.fast(x), module(x)):
                    wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_it_goes_with_all_that_it_holds(place: Place) -> None:
    module = Net().to(place.torch).eval()
    compiled = place.compile(module)
    fast = pygraph.freeze(compiled, place.randn(2, 4))
    gone = weakref.ref(fast)
    fast.itself = fast  # type: ignore[attr-defined]
    del fast
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("net", [False], indirect=True)
def test_it_is_neither_pickled_nor_copied(net: Any) -> None:
    case, _, _ = net
    with pytest.raises(TypeError, match="a frozen callable is tied to its module and its graph"):
        pickle.dumps(case.fast)
    with pytest.raises(TypeError, match="freeze the compiled callable again"):
        copy.deepcopy(case.fast)


@pytest.mark.parametrize("net", [False], indirect=True)
def test_when_graphs_are_dropped(net: Any) -> None:
    case, module, draw = net
    torch._dynamo.reset()
    case.serves(draw())
    pygraph.reset()
    x = draw()
    assert same(case.fast(x), module(x))
    assert case.fast.misses == 1
    assert case.fast.reason == "its graph did not take the call"


def test_an_error_is_the_callers(net: Any, place: Place) -> None:
    case, _, _ = net
    with pytest.raises(Exception, match=r"shape|size"):
        case.fast(place.randn(2, 5))
    with pytest.raises(TypeError, match="missing"):
        case.fast()


# ---------------------------------------------------------------------------------- what is refused


def refusal(compiled: Any, *example: Any, **named: Any) -> str:
    with pytest.raises(pygraph.NotFrozen) as caught:
        pygraph.freeze(compiled, *example, **named)
    return str(caught.value)


def test_what_is_not_compiled(place: Place) -> None:
    assert "nothing that torch.compile has returned" in refusal(lambda x: x, place.randn(2))
    other = torch.compile(lambda x: x + 1, backend="eager")
    assert 'no graph of PyGraph\'s; needed: backend="pygraph"' in refusal(other, place.randn(2))


def test_graph_breaks(place: Place) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return x + 1

    assert "without graph breaks" in refusal(place.compile(broken), place.randn(2))


def test_code_in_front_of_the_one_graph(place: Place) -> None:
    said: list[str] = []

    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        said.append("in front")
        torch._dynamo.graph_break()
        return x * 2 + 1

    found = refusal(place.compile(broken), place.randn(2))
    assert "in front of its graph, which a frozen call would leave out" in found


def test_a_graph_that_falls_back(place: Place) -> None:
    found = refusal(place.compile(lambda x: x[x > 0] + 1), place.randn(2))
    assert "is not served by one graph" in found


def test_a_forward(place: Place) -> None:
    module = Net().to(place.torch)
    with torch.enable_grad():
        found = refusal(place.compile(module), place.randn(2, 4))
    assert "it is a forward" in found and "torch.no_grad()" in found


class Cached(nn.Module):
    """A cache, as a decode step has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(x)
        return x.mul_(2) + self.cache


@pytest.mark.parametrize("led", [False, True])
def test_arguments_that_are_written(place: Place, led: bool) -> None:
    """By the graph; their versions are counted up as by AOTAutograd's wrappers."""
    slow, fast = Cached().to(place.torch), Cached().to(place.torch)
    compiled = place.compile(fast, dynamic=False, launch="before_guards" if led else "always")
    for call in range(12):
        if call == 4 and not led:
            compiled = pygraph.freeze(compiled, place.randn(2, 3))
            fast.cache.copy_(slow.cache)
        x = place.randn(2, 3)
        y, versions = x.clone(), (slow.cache._version, fast.cache._version)
        expected, found = slow(x), compiled(y)
        assert torch.equal(found, expected) and torch.equal(x, y)
        assert torch.equal(slow.cache, fast.cache)
        assert slow.cache._version == versions[0] + 1
        if call >= 2:  # uncaptured, the twin's operators count them up besides
            assert (fast.cache._version - versions[1], y._version) == (1, 1)
    assert only_graph().replays >= 6
    if led:
        assert only_graph().past_guards
    else:
        assert compiled.misses == 0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = torch.zeros(())
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.last = y
        return y


LOG: list[Any] = []


def appends(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    LOG.clear()
    LOG.append(y)
    return y


def sets_a_variable(x: torch.Tensor) -> torch.Tensor:
    global LAST
    LAST = x * 2
    return LAST


@pytest.mark.parametrize("make", [Counting, lambda: appends])
def test_side_effects(place: Place, make: Any) -> None:
    found = refusal(place.compile(make()), place.randn(2))
    assert "does more than to call its graph" in found


def test_a_variable_that_is_set(place: Place) -> None:
    assert refusal(place.compile(sets_a_variable), place.randn(2))


@pytest.mark.parametrize(
    "function",
    [lambda x: Pair(x + 1, x * 2), lambda x: OrderedDict(one=x + 1)],
    ids=["namedtuple", "OrderedDict"],
)
def test_results_of_other_kinds(place: Place, function: Any) -> None:
    assert "does more than to call its graph" in refusal(place.compile(function), place.randn(2))


def test_arguments_of_other_kinds(place: Place) -> None:
    found = refusal(place.compile(lambda x, p: x * p.numbers[0]), place.randn(2), PLAIN)
    assert "argument[1] is a Plain; needed: tensors, numbers, texts" in found


def test_what_a_tensor_has_besides(place: Place) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.grad is None else x * 3

    found = refusal(place.compile(function), place.randn(2))
    assert "cannot be compared from call to call" in found


def test_a_module_among_other_arguments(place: Place) -> None:
    class Strange(nn.Module):
        scale = 2.0

        def __init__(self) -> None:
            super().__init__()
            self.factor = 3.0

        def forward(*given: Any) -> torch.Tensor:
            self, x = given
            return x * self.factor * self.scale

    with pytest.raises(pygraph.NotFrozen, match="bound to more than its own arguments"):
        pygraph.freeze(place.compile(Strange()), place.randn(2))


def test_a_function_around_what_is_compiled(place: Place) -> None:
    compiled = place.compile(lambda x: x + 1)

    class Around(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return compiled(x) * 2

    around = torch.compile(Around(), backend="eager")
    found = refusal(around, place.randn(2))
    assert found
    module = Net().to(place.torch).eval()
    module.register_forward_hook(lambda *given: given[2] * 2)
    assert refusal(place.compile(module), place.randn(2, 4))


def test_a_module_compiled_in_place(place: Place) -> None:
    module = Net().to(place.torch).eval()
    options = {"device": place.name, "compiler": "aot"}
    module.compile(backend="pygraph", options=options)
    fast, x = pygraph.freeze(module, place.randn(2, 4)), place.randn(2, 4)
    assert torch.equal(fast(x), module(x)) and not fast.misses
    module.scale = 3.0
    assert torch.equal(fast(x), module(x)) and fast.misses == 1
    module.register_forward_hook(lambda *given: given[2] * 2)
    assert torch.equal(fast(x), module(x)) and fast.misses == 2


# ------------------------------------------------------------------------- Dynamo's own guards


@pytest.mark.parametrize("led", [False, True], ids=["frozen", "led"])
@pytest.mark.parametrize("seed", range(12))
def test_a_call_that_is_served_is_one_that_the_guards_admit(
    place: Place, seed: int, led: bool
) -> None:
    """Random changes: whenever the guards refuse, so does the frozen call. (It may refuse more.)"""
    generator = torch.Generator().manual_seed(seed)

    def one_of(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    module = Net().to(place.torch).eval()
    module.extra = {"list": [1.0, 2.0], "tuple": (3.0, "a")}

    def forward(x: torch.Tensor) -> Any:
        y = module(x) * module.extra["list"][1]
        return helper(y), y * module.extra["tuple"][0] + PLAIN.WEIGHT

    case = Case(place, forward, place.randn(2, 4), led=led)
    for _ in range(8):
        change: Callable[[], Any] = one_of(
            lambda: None,
            lambda: setattr(module, "scale", one_of(1.5, 2.5)),
            lambda: module.train(one_of(True, False)),
            lambda: module.extra.update(list=[1.0, one_of(2.0, 3.0)]),
            lambda: module.extra.update(tuple=(one_of(3.0, 4.0), "a")),
            lambda: setattr(Plain, "WEIGHT", one_of(3.0, 4.0)),
            lambda: globals().update(FACTOR=one_of(2.0, 3.0)),
            lambda: setattr(module.layers[0], "bias", one_of(module.layers[0].bias, None)),
            lambda: setattr(module.layers[2], "weight", nn.Parameter(place.randn(4, 4))),
        )
        change()
        case._compare(place.randn(2, 4))


def test_the_instructions_of_code() -> None:
    names = {
        "__compiled_fn_1": lambda *_: (),
        "other": lambda *_: (),
        "here": sys.modules[__name__],
    }

    def beside(source: str) -> Beside:
        made = compile(f"def function(x, y):\n    {source}", "test", "exec")
        code = next(each for each in made.co_consts if isinstance(each, types.CodeType))
        return beside_graph(code, names)

    def of(source: str) -> str | None:
        found = beside(source)
        assert not found.sets
        return found.reason

    (found,) = beside("r = __compiled_fn_1(x); here.COLLECTOR.active = None; return r").sets
    assert found == ("G['here'].COLLECTOR.active", COLLECTOR, "active", None)

    assert of("r = __compiled_fn_1(x, y.a['b']); return {'k': (r[0], [r[1], 3])}") is None
    assert of("a, b = __compiled_fn_1(x); return [b, a]") is None
    for source, found in {
        "return x": "it calls 0 graphs",
        "__compiled_fn_1(x); return __compiled_fn_1(y)": "it calls 2 graphs",
        "r = __compiled_fn_1(x); other(y); return r": "it calls something",
        "r = __compiled_fn_1(x); y.append(r); return r": ("it calls something", "it runs LOAD_MET"),
        "r = __compiled_fn_1(x); y.a = r; return r": "it runs STORE_ATTR",
        "r = __compiled_fn_1(x); here.COLLECTOR.active = r; return r": "it sets active of",
        "r = __compiled_fn_1(x); here.COLLECTOR.active = 3; return r": "it sets active of",
        "r = __compiled_fn_1(x); here.WRITTEN.active = None; return r": "it runs STORE_ATTR",
        "r = __compiled_fn_1(x); here.FACTOR = None; return r": "it runs STORE_ATTR",
        "r = __compiled_fn_1(x); y['a'] = r; return r": "it runs STORE_SUBSCR",
        "r = __compiled_fn_1(x); return r if y else x": "it runs POP_JUMP",
        "r = __compiled_fn_1(x); return r[0] + 1": "it runs BINARY_OP",
    }.items():
        more = of(source)
        assert more is not None and more.startswith(found), (source, more)


@pytest.mark.parametrize("net", [False], indirect=True)
def test_it_is_an_engines(net: Any) -> None:
    case, _, _ = net
    assert isinstance(case.fast, Frozen) and isinstance(case.fast, _engine.EngineCalled)
    assert tree_leaves(case.fast) == [case.fast]
