"""Operations: an operator, its fixed arguments and the layouts of its tensors, interned.

Equal operations have one number, so that capture and probe launch the same kernel. What may differ
between two launches of one operation stands in the parameter block: the addresses of all tensors,
and the numbers; of a random generator the address of a place that has the address of its object. A
replay gets them back from there and from nowhere else (`Operation.run`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pygraph import _engine
from pygraph.operators import collectives
from pygraph.torch_private import distributed
from pygraph.torch_private.tensors import object_of
from pygraph.twin import layouts, resized
from pygraph.twin.layouts import TensorLayout
from pygraph.twin.predict import Substitute, predict

_INT64 = range(-(2**63), 2**63)
#: Types of arguments whose numbers change no layout. (A number may stand where a tensor is asked
#: for: torch's wrapped numbers.)
_VALUE_TYPES = frozenset(
    f"{prefix}{kind}{suffix}"
    for kind in ("number", "float", "Tensor")
    for prefix, suffix in (("", ""), ("Optional[", "]"))
)


class Unsupported(RuntimeError):
    """An argument that no parameter block can hold."""


class Alias(int):
    """Says that a result is tensor argument number `self`."""


class _Word(int):
    """Stands for word number `self` of the block in an argument structure."""


class _Empty:
    """Stands for a tensor without elements, which has no address."""

    def __init__(self, layout: TensorLayout, number: int) -> None:
        self.layout = layout
        self.number = number


class OperatorCall:
    """The arguments of one call of an operator, taken apart."""

    __slots__ = (
        "_generators",
        "_places",
        "args",
        "generators",
        "key",
        "kinds",
        "kwargs",
        "layouts",
        "tensors",
        "words",
    )

    def __init__(
        self,
        free: tuple[bool, ...],
        names: dict[str, bool],
        args: Any,
        kwargs: Any,
        generators: Mapping[int, int],
    ):
        """`free`, by position, and `names` say of which arguments `value_arguments` is true.
        `generators`: the places of random generators, by identity (torch's `_cdata`)."""
        self._generators = generators
        self.generators: set[int] = set()  #: words that are places of generators
        self.words: list[Any] = []
        self.kinds: list[str] = []
        self.layouts: dict[int, TensorLayout] = {}  #: per word that is an address
        self.tensors: list[torch.Tensor] = []  #: each once, in order
        self._places: dict[int, Any] = {}  #: per tensor by identity, what stands for it
        self.key: list[Any] = []
        self.args = [self._take(*pair) for pair in zip(args, free, strict=False)]
        self.kwargs = {}
        for name, value in kwargs.items():
            self.key.append(name)
            self.kwargs[name] = self._take(value, names[name])

    def _word(self, kind: str, value: Any) -> _Word:
        self.kinds.append(kind)
        self.words.append(value)
        return _Word(len(self.words) - 1)

    def _take(self, value: Any, free: bool) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
                raise Unsupported(f"takes a {value.device.type} {value.layout} tensor")
            return self._take_tensor(value)
        if kind is int or kind is float or kind is bool:
            if kind is int and value not in _INT64:
                self.key.append(value)
                return value
            self.key.append(kind if free else (kind, value))
            return self._word("i" if kind is int else "f" if kind is float else "b", value)
        if kind is list or kind is tuple:
            self.key.append((kind, len(value)))
            if all(type(item) is int for item in value):
                self.key.append(tuple(value))
                return value
            return [self._take(item, free) for item in value]
        if isinstance(value, torch.Generator):
            return self._take_generator(value)
        if kind is torch.device and value.type != "cpu":
            raise Unsupported(f"goes to {value}")
        self.key.append(value)
        return value

    def _take_tensor(self, tensor: torch.Tensor) -> Any:
        """A tensor given twice stays one: some operators look (attention, for its weights)."""
        place = self._places.get(id(tensor))
        if place is not None:
            self.key.append(("again", next(i for i, t in enumerate(self.tensors) if t is tensor)))
            return place
        layout = layouts.layout_of(tensor)
        self.key.append(layout)
        if tensor.numel() == 0:
            place = _Empty(layout, len(self.tensors))
        else:
            place = self._word("p", resized.address_of(tensor))
            self.layouts[place] = layout
        self.tensors.append(tensor)
        self._places[id(tensor)] = place
        return place

    def _take_generator(self, generator: torch.Generator) -> Any:
        if object_of(generator) == object_of(torch.random.default_generator):
            self.key.append("default generator")
            return torch.random.default_generator
        place = self._generators.get(object_of(generator))
        if place is None:
            raise Unsupported("takes a random generator that is no argument, or is not drawn from")
        self.key.append("generator")
        word = self._word("p", place)
        self.generators.add(word)
        return word

    def number_of(self, place: Any) -> int | None:
        """The number of the tensor that a part of the arguments stands for, if it does."""
        if isinstance(place, _Empty):
            return place.number
        if type(place) is _Word and place in self.layouts:
            return next(i for i, t in enumerate(self.tensors) if self._places[id(t)] is place)
        return None


def value_arguments(schema: Any) -> tuple[bool, ...]:
    """Per argument, whether a number there leaves the results' layouts alone. In a factory none
    does: the bounds of an arange are its size."""
    types = [str(argument.type) for argument in schema.arguments]
    if not any("Tensor" in kind for kind in types):
        return (False,) * len(types)
    return tuple(kind in _VALUE_TYPES for kind in types)


class Operation:
    """`results` says per declared result of the operator what it is: a TensorLayout or a list of
    them (fresh memory, whose addresses are the last words of the block), an Alias, or what is no
    tensor."""

    __slots__ = (
        "_addresses",
        "_args",
        "_func",
        "_generators",
        "_kwargs",
        "_out",
        "number",
        "results",
    )

    def __init__(self, func: Any, call: OperatorCall, results: tuple[Any, ...]) -> None:
        self._func = func
        self._args = [_static(value) for value in call.args]
        self._kwargs = {name: _static(value) for name, value in call.kwargs.items()}
        self.results = results
        self.number = -1
        nbytes = [(word, layout, layout.nbytes()) for word, layout in call.layouts.items()]
        self._addresses: list[tuple[int, TensorLayout, int]] = nbytes
        self._generators = sorted(call.generators)
        self._out: list[tuple[int, int | None, int, TensorLayout, int]] = []
        word = len(call.words)
        for index, result in enumerate(results):
            inside = isinstance(result, list)
            for item, layout in enumerate(result if inside else [result]):
                if isinstance(layout, TensorLayout) and (size := layout.nbytes()):
                    place = item if inside else None
                    self._out.append((word, place, index, layout, size))
                    word += 1

    def __str__(self) -> str:
        return str(self._func)

    def run(self, values: list[Any]) -> None:
        """Does the work on the words of a block. Raises when the operator does, or when its result
        is not what was captured."""
        with layouts.below():
            for word, layout, nbytes in self._addresses:
                values[word] = layouts.at_address(values[word], layout, nbytes)
            for word in self._generators:
                address = ctypes.c_uint64.from_address(values[word]).value
                values[word] = _engine.twin_generator(address)
            args = [_fill(value, values) for value in self._args]
            kwargs = {name: _fill(value, values) for name, value in self._kwargs.items()}
            found = self._func(*args, **kwargs)
            if collectives.is_collective(self._func):
                _wait_for(found)
            many = len(self.results) > 1
            for word, place, index, layout, nbytes in self._out:
                result = found[index] if many else found
                if place is not None:
                    result = result[place]
                if result.dtype != layout.dtype or tuple(result.shape) != layout.size:
                    raise RuntimeError(
                        f"{self._func} returned {result.dtype} {tuple(result.shape)} and was "
                        f"captured with {layout.dtype} {layout.size}"
                    )
                layouts.at_address(values[word], layout, nbytes).copy_(result)


def _wait_for(found: Any) -> None:
    """A collective's results are there when it is done."""
    for each in found if isinstance(found, (list, tuple)) else [found]:
        distributed.wait(each)


def _static(value: Any) -> Any:
    """The argument structure as a replay needs it."""
    if isinstance(value, _Empty):
        return layouts.empty(value.layout)
    if isinstance(value, list):
        return [_static(item) for item in value]
    return value


def _fill(value: Any, values: list[Any]) -> Any:
    if type(value) is _Word:
        return values[value]
    if type(value) is list:
        return [_fill(item, values) for item in value]
    return value


_interned: dict[tuple[Any, ...], Operation] = {}
_predicted: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def results_of(
    func: Any, call: OperatorCall, aliases: tuple[Alias | None, ...], written: Iterable[int]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The results' description (see Operation) and the key of what it holds for. `aliases` gives
    per declared result the tensor argument that is returned; `written` are the tensor arguments
    that the operator writes."""
    key = (func, torch.get_default_dtype(), *call.key)
    results = _predicted.get(key)
    if results is None:
        prediction = predict(func, _substitute(call), list(written))
        results = tuple(
            found if alias is None else alias
            for found, alias in zip(prediction.results, aliases, strict=True)
        )
        _predicted[key] = results
    return results, key


def intern(
    func: Any,
    call: OperatorCall,
    results: tuple[Any, ...],
    key: tuple[Any, ...],
    kinds: str,
    align: int,
) -> Operation:
    """The operation of a call whose block is laid out as `kinds`; `align` is what its aligned
    pointers must be a multiple of, in bytes."""
    key = (key, kinds, align)
    operation = _interned.get(key)
    if operation is None:
        operation = Operation(func, call, results)
        operation.number = _engine.twin_register_operation(
            str(func),
            kinds,
            align,
            lambda values: operation.run(values),  # looked up in each run, which others surround
        )
        _interned[key] = operation
    return operation


def _substitute(call: OperatorCall) -> Substitute:
    def substitute(make: Callable[[int, TensorLayout], torch.Tensor]) -> Any:
        made: dict[int, torch.Tensor] = {}

        def visit(value: Any) -> Any:
            if isinstance(value, list):
                return [visit(item) for item in value]
            number = call.number_of(value)
            if type(value) is _Word and value in call.generators:
                return torch.Generator()
            if number is None:
                return call.words[value] if type(value) is _Word else value
            if number not in made:
                made[number] = make(number, layouts.layout_of(call.tensors[number]))
            return made[number]

        args = [visit(value) for value in call.args]
        return args, {name: visit(value) for name, value in call.kwargs.items()}

    return substitute
