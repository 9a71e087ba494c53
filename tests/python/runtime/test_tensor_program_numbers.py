"""Python numbers that kernels take by value: another one at each call of a program on the twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pygraph import _engine
from pygraph.capturing import tensors
from pygraph.twin import recorder

N = 32
X = torch.arange(1.0, N + 1)
Kind, Placement = _engine.ArgumentKind, _engine.Placement
Operation, Step = _engine.Formula.Operation, _engine.Formula.Step
Number = float | int
#: Of a function of x and numbers: the graph, and the addresses of x and of the result.
Capture = Callable[[Any, int, list[Number]], tuple[Any, int]]

pytestmark = pytest.mark.usefixtures("calibrated")


def recorded(function: Callable[..., torch.Tensor]) -> Capture:
    """Its operators are kernels that take numbers in 8 bytes each."""

    def capture(space: Any, at: int, numbers: list[Number]) -> tuple[Any, int]:
        x = tensors.at_address(X, at, 4 * N)
        stream = _engine.Stream(twin=True)
        made = recorder.record(lambda given: function(*given), [x, *numbers], space, stream)
        ((out, _),) = made.buffers
        return made.graph, out

    return capture


def saxpy(space: Any, at: int, numbers: list[Number]) -> tuple[Any, int]:
    """rate * x + x, whose kernel takes the rate in 4 bytes."""
    out = space.allocate(4 * N)
    stream = _engine.Stream(twin=True)
    _engine.begin_capture(stream.handle, twin=True)
    _engine.twin_saxpy(stream.handle, out, at, at, numbers[0], N)
    return _engine.end_capture(stream.handle, twin=True), out


def link(capture: Capture, *numbers: tuple[Number, Number]) -> Any:
    """Of two captures with these values of the numbers. Region 0 is x, region 1 the result."""
    space = _engine.PhantomSpace(0, 1 << 34, 1 << 21, twin=True)
    graphs, places = [], []
    for which, placement in enumerate((Placement.A, Placement.B)):
        space.begin(placement)
        at = space.allocate(4 * N)
        graph, out = capture(space, at, [number[which] for number in numbers])
        graphs.append(graph)
        places.append((at, out))
    return _engine.link(
        graphs[0].handle,
        graphs[1].handle,
        [_engine.Region(in_a=a, in_b=b, bytes=4 * N) for a, b in zip(*places, strict=True)],
        space.base,
        space.base + space.reserved_bytes,
        twin=True,
        numbers=[_engine.HostNumber(in_a=a, in_b=b) for a, b in numbers],
    )


def patched(**fields: Any) -> Any:
    return _engine.ArgumentSpec(kind=Kind.PATCHED, region=0, bytes=4 * N, **fields)


def make(
    linked: Any,
    arguments: list[Any],
    numbers: list[Any],
    x: Any = None,
    dtype_of: torch.Tensor = X,
) -> Any:
    """`arguments` behind x."""
    assert not linked.problems
    result = _engine.ResultSpec(
        kind=_engine.ResultKind.WHOLE, sizes=[N], strides=[1], dtype_of=dtype_of
    )
    return _engine.TensorProgram.make(
        linked,
        twin=True,
        device_index=0,
        arguments=[x or patched(), *arguments],
        blocks=[_engine.OutputBlock(bytes=4 * N, regions=[1])],
        results=[result],
        numbers=numbers,
    )


def number(floating: bool) -> Any:
    return _engine.ArgumentSpec(kind=Kind.HOST_NUMBER, floating=floating)


def formula(*steps: Any) -> Any:
    """Of arguments (ints), constants (floats) and operations."""
    made: dict[type, Callable[[Any], Any]] = {
        int: lambda step: Step(Operation.ARGUMENT, argument=step),
        float: lambda step: Step(Operation.CONSTANT, constant=step),
    }
    return _engine.Formula([made.get(type(step), Step)(step) for step in steps])


def scaling() -> Any:
    return make(link(recorded(torch.mul), (2.5, 3.5)), [number(floating=True)], [1])


def adding() -> Any:
    return make(link(recorded(torch.add), (5, -9)), [number(floating=False)], [1])


def test_a_floating_number_is_another_one_at_each_call() -> None:
    call = scaling()
    kept = [(rate, call.run([X, rate])[0]) for rate in (2.5, 3.5, 0.1, -0.0, math.inf, 1e-40)]
    for rate, out in kept:
        assert torch.equal(out, X * rate)
    assert call.run([X, math.nan])[0].isnan().all()
    assert call.run([X, -0.0])[0].signbit().all()


def test_an_integer_stays_one() -> None:
    def low_bits(x: torch.Tensor, step: int) -> torch.Tensor:
        return torch.bitwise_and(x.view(torch.int32), step)

    # One of the two is negative, so that all 64 bits differ.
    linked = link(recorded(low_bits), (5, -9))
    int32 = torch.empty(0, dtype=torch.int32)
    call = make(linked, [number(floating=False)], [1], dtype_of=int32)
    for step in (7, -3, 2**24 + 1, 2**31 - 1, -(2**31)):
        assert torch.equal(call.run([X, step])[0], X.view(torch.int32) & step)


def test_an_equal_number_is_no_work() -> None:
    call = scaling()
    x = X.clone()
    where = set()
    for _ in range(4):
        where.add(call.run([x, 0.5])[0].data_ptr())
    assert call.updates == len(where)  # the result alone may have moved
    before = call.updates
    call.run([x, 0.25])
    assert call.updates == before + 1


def test_a_number_has_exactly_its_type() -> None:
    call = scaling()
    assert call.accepts([X, 1.0])
    for other in (1, True, None, torch.tensor(1.0), type("Rate", (float,), {})(1.0), "1.0"):
        assert not call.accepts([X, other]), other
    call = adding()
    for step in (1, -1, 2**63 - 1, -(2**63)):
        assert call.accepts([X, step])
    for other in (2**63, -(2**63) - 1, 1.0, True, None, torch.tensor(1)):
        assert not call.accepts([X, other]), other
    with pytest.raises(ValueError, match="captured with"):
        call.run([X, 1.0])


def test_a_kernel_that_takes_a_float_gets_one() -> None:
    linked = link(saxpy, (0.1, 0.3), (7, 8))
    assert linked.number_words == [1, 0]
    assert linked.noise == 0
    call = make(linked, [number(floating=True), number(floating=False)], [1, 2])
    for rate in (0.1, 0.7, -2.0):
        assert torch.equal(call.run([X, rate, 3])[0], torch.tensor(rate) * X + X)


def test_what_kernels_cannot_take_is_left_to_the_callable() -> None:
    call = make(link(saxpy, (0.1, 0.3)), [number(floating=True)], [1])
    with pytest.raises(RuntimeError, match=r"host number 0 is 1e\+300, which its 4 bytes"):
        call.run([X, 1e300])
    missed: list[Any] = []
    dispatcher = _engine.Dispatcher(missed.append, lambda *failure: pytest.fail(str(failure)))
    dispatcher.add(call)
    for rate, misses in ((0.5, 0), (1e300, 1), (0.25, 1)):
        arguments = [X, rate]
        served = dispatcher(arguments)
        assert len(missed) == misses
        assert served is None or torch.equal(served[0], rate * X + X)


def test_a_number_may_follow_from_arguments() -> None:
    # rate / (1 - 0.5**step) of a float and an int, beside the int itself.
    corrected = formula(1, 1.0, 0.5, 2, Operation.POWER, Operation.SUBTRACT, Operation.DIVIDE)
    linked = link(recorded(lambda x, rate, step: torch.mul(x, rate).add_(step)), (2.5, 3.5), (5, 9))
    assert linked.number_words == [1, 1]
    call = make(linked, [number(floating=True), number(floating=False)], [corrected, 2])
    for rate, step in ((0.1, 1), (0.3, 7), (-4.0, 40)):
        assert torch.equal(call.run([X, rate, step])[0], X * (rate / (1 - 0.5**step)) + step)
    with pytest.raises(RuntimeError, match="a formula of host numbers is inf"):
        call.run([X, 0.1, 0])  # where Python divides by zero


def test_a_formula_takes_tensors_beside_numbers() -> None:
    call = make(
        link(recorded(torch.mul), (2.5, 3.5)),
        [number(floating=False), _engine.ArgumentSpec(kind=Kind.IGNORED)],
        [formula(1, 2, Operation.MULTIPLY)],
    )
    half = torch.tensor(0.5, dtype=torch.float64)
    assert torch.equal(call.run([X, 6, half])[0], X * 3.0)
    assert not call.accepts([X, 6, half.float()])
    assert not call.accepts([X, 6, 0.5])


def test_a_staged_argument_may_follow_from_numbers() -> None:
    computed = [formula(1, float(i), Operation.ADD) for i in range(N // 2)]
    call = make(
        link(recorded(torch.mul), (2.5, 3.5)),
        [number(floating=False)],
        [formula(1, 0.5, Operation.MULTIPLY)],
        x=patched(staged=True, computed=computed),
    )
    brought = torch.arange(7.0, 7 + N // 2, dtype=torch.float64).view(torch.float32)
    assert torch.equal(call.run([X, 7])[0], brought * 3.5)


def test_numbers_and_arguments_must_fit() -> None:
    def refused(numbers: list[Any], message: str) -> None:
        linked = link(recorded(torch.mul), (2.5, 3.5))
        with pytest.raises(ValueError, match=message):
            make(linked, [number(floating=True)], numbers)

    refused([], "1 host numbers were linked, and 0 are specified")
    refused([1, 1], "1 host numbers were linked, and 2 are specified")
    refused([0], "host number 0 is argument 0, which is no host number")
    refused([2], "host number 0 is argument 2, which is no host number")
    refused([formula(2)], "a formula takes argument 2; there are 2")


def test_a_host_number_is_a_float_or_an_int_and_differs() -> None:
    for other in (True, 2**63, "1", torch.tensor(1.0)):
        with pytest.raises(TypeError, match="a host number is a float, or an int of 64 bits"):
            _engine.HostNumber(in_a=1, in_b=other)
    for pair, message in (((2.5, 2.5), "the same 8 bytes"), ((1, 2.5), "an integer in the other")):
        with pytest.raises(ValueError, match=message):
            link(recorded(lambda x, rate: torch.mul(x, 2.0)), pair)


def test_two_numbers_of_the_same_values_are_a_problem() -> None:
    linked = link(recorded(lambda x, rate, _: torch.mul(x, rate)), (2.5, 3.5), (2.5, 3.5))
    (problem,) = linked.problems
    assert "which host numbers explain in more than one way" in problem


def test_the_programs_without_tensors_set_numbers_too() -> None:
    program = link(saxpy, (0.1, 0.3)).program()
    out = torch.empty(N)
    program.bind(0, X.data_ptr())
    program.bind(1, out.data_ptr())
    stream = _engine.Stream(twin=True)
    with pytest.raises(RuntimeError, match="1 host numbers that were never set"):
        program.launch(stream.handle)
    for rate in (0.5, 3):
        program.set_number(0, rate)
        program.launch(stream.handle)
        _engine.twin_synchronize()
        assert torch.equal(out, rate * X + X)
    with pytest.raises(IndexError, match="no such host number"):
        program.set_number(1, 0.5)
