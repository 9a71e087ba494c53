"""What an operator returns, found out without its arguments' values.

Twice: with fake tensors, which know what depends on values and refuse it; and, where the strides of
the result are the kernel's own choice, by a trial of the real operator on zeros. The trial is
needed because downstream kernels add up in the order of the strides, so equal values in another
order of memory end in other bits. It touches none of the caller's tensors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pygraph.operators import collectives
from pygraph.torch_private import fake_tensors
from pygraph.torch_private.dispatch import schema as schema_of
from pygraph.twin import layouts
from pygraph.twin.layouts import TensorLayout

#: Replaces the tensors of an argument structure; the rest stays.
Substitute = Callable[
    [Callable[[int, TensorLayout], torch.Tensor]], tuple[list[Any], dict[str, Any]]
]


class ValueDependent(RuntimeError):
    """The result cannot be known without the arguments' values; the message says what."""


_REFUSED = (
    fake_tensors.DataDependentOutputException,
    fake_tensors.DynamicOutputShapeException,
)


@dataclasses.dataclass
class Prediction:
    """Per declared result: a TensorLayout, a list of them, or what is no tensor."""

    results: tuple[Any, ...]


@functools.cache
def _fake_mode() -> Any:
    return fake_tensors.FakeTensorMode()


def predict(func: Any, substitute: Substitute, written: Sequence[int]) -> Prediction:
    """`written` are the tensors, by number, that the operator writes: their layouts must stay as
    they are. Raises ValueDependent, or what the operator raises about its arguments."""
    fake: Prediction | None = None
    try:
        fake = _run(func, substitute, written, _fake_tensor, fakes=True)
    except _REFUSED as error:
        raise ValueDependent(f"depends on the values in a tensor ({error})") from None
    except ValueDependent:
        raise
    except Exception:  # no fake kernel, or wrong arguments: the trial tells
        fake = None
    # A trial of a collective would wait for one of another rank's.
    if fake is not None and (not _strides_are_open(fake) or collectives.is_collective(func)):
        return fake
    generator = torch.random.default_generator
    before = generator.get_state()
    try:
        return _tried(func, substitute, written, fake)
    finally:
        generator.set_state(before)


def _tried(
    func: Any, substitute: Substitute, written: Sequence[int], fake: Prediction | None
) -> Prediction:
    """What a trial on zeros says; it may draw random numbers."""
    with layouts.below():
        try:
            found = _run(func, substitute, written, lambda _, layout: layouts.zeros(layout))
        except Exception:
            if fake is None:
                raise
            return fake  # zeros may be what the operator refuses (a matrix to invert)
    if fake is not None and _shapes(fake) != _shapes(found) and not _again(func, substitute, found):
        raise ValueDependent("returns sizes that depend on the values in a tensor")
    return found


def _again(func: Any, substitute: Substitute, found: Prediction) -> bool:
    """Whether another trial, on ones, returns the same sizes. Fake kernels leave workspaces out
    that the real ones return. (A replay that returns other sizes fails anyway.)"""
    with layouts.below():
        try:
            again = _run(func, substitute, (), lambda _, layout: layouts.zeros(layout).fill_(1))
        except Exception:
            return False
    return _shapes(again) == _shapes(found)


def _fake_tensor(_: int, layout: TensorLayout) -> torch.Tensor:
    with _fake_mode():
        return layouts.empty(layout)


def _run(
    func: Any,
    substitute: Substitute,
    written: Sequence[int],
    make: Callable[[int, TensorLayout], torch.Tensor],
    fakes: bool = False,
) -> Prediction:
    made: dict[int, torch.Tensor] = {}

    def keep(number: int, layout: TensorLayout) -> torch.Tensor:
        made[number] = make(number, layout)
        return made[number]

    args, kwargs = substitute(keep)
    before = [layouts.layout_of(made[number]) for number in written]
    with warnings.catch_warnings(), _fake_mode() if fakes else contextlib.nullcontext():
        warnings.simplefilter("ignore")  # the function's own run has given them
        results = func(*args, **kwargs)
    if before != [layouts.layout_of(made[number]) for number in written]:
        raise ValueDependent("changes the size of an argument that it writes")
    declared = len(schema_of(func).returns)
    listed = () if declared == 0 else (results,) if declared == 1 else tuple(results)
    return Prediction(tuple(_describe(result) for result in listed))


def _describe(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        if result.layout != torch.strided or result.device.type != "cpu" or result.is_quantized:
            raise ValueDependent(f"returns a {result.device.type} {result.layout} tensor")
        return layouts.layout_of(result)
    if isinstance(result, (list, tuple)):
        return [_describe(item) for item in result]
    return result


def _leaves(prediction: Prediction) -> list[TensorLayout]:
    found: list[TensorLayout] = []
    for result in prediction.results:
        items = result if isinstance(result, list) else [result]
        found.extend(item for item in items if isinstance(item, TensorLayout))
    return found


def _strides_are_open(prediction: Prediction) -> bool:
    """Whether a kernel could have laid its result out otherwise than the fake one. Fake kernels
    differ even where they should not: in dimensions of one element or none, and of pointwise
    operators between a transposed tensor and a single number."""
    return any(
        len(layout.size) > 1 or any(n < 2 for n in layout.size) for layout in _leaves(prediction)
    )


def _shapes(prediction: Prediction) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    return [(layout.dtype, layout.size) for layout in _leaves(prediction)]
