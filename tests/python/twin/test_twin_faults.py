"""The twin misbehaves on demand; what is linked meanwhile computes the right result or fails."""

from __future__ import annotations

import contextlib
import faulthandler
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import twin_support

from pygraph import _engine
from pygraph.twin import faults, recorder


@pytest.fixture(autouse=True)
def on_the_twin() -> Iterator[None]:
    torch.manual_seed(0)
    with twin_support.twin_memory(), torch.no_grad():
        yield


def network(given: list[Any]) -> Any:
    x, w = given
    y = torch.relu(x @ w).add_(1.5)
    return torch.where(y > 2, y, y * 2).any(0, keepdim=True) * y.softmax(1)


def inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 5), torch.randn(5, 6)]


def test_padding_noise_is_seen_and_left_alone() -> None:
    quiet = twin_support.check(network, inputs())
    with faults.padding_noise():
        noisy = twin_support.check(network, inputs())
    assert quiet.linked.noise == 0
    assert noisy.linked.noise > 0
    assert noisy.linked.relocations == quiet.linked.relocations


def test_numbers_that_look_like_addresses_are_left_alone() -> None:
    quiet = twin_support.check(network, inputs())
    with faults.coincident_words():
        moved = twin_support.check(network, inputs())
    assert moved.linked.coincidences == moved.linked.kernels
    assert moved.linked.relocations == quiet.linked.relocations


def test_a_changed_coincidence_fails_the_launch() -> None:
    """Makes such a number a relocation: here it is the address of `x`, which stands in the way of
    no phantom memory, and a region is made to say that it moves."""
    space = _engine.PhantomSpace(0, 1 << 30, 1 << 21, twin=True)
    x = torch.randn(4)
    captures = []
    with faults.coincident_words():
        for placement in (_engine.Placement.A, _engine.Placement.B):
            space.begin(placement)
            stream = _engine.Stream(twin=True)
            captures.append(recorder.record(lambda given: given[0] + 1, [x], space, stream))
    a, b = captures
    ((in_a, nbytes),), ((in_b, _),) = a.buffers, b.buffers
    regions = [
        _engine.Region(in_a=in_a, in_b=in_b, bytes=nbytes),
        _engine.Region(in_a=x.data_ptr(), in_b=x.data_ptr(), bytes=16),
    ]
    end = space.base + space.reserved_bytes
    linked = _engine.link(a.graph.handle, b.graph.handle, regions, space.base, end, twin=True)
    program = linked.program()
    elsewhere, out = torch.randn(4), torch.empty(4)
    program.bind(0, out.data_ptr())
    program.bind(1, elsewhere.data_ptr())
    stream = _engine.Stream(twin=True)
    program.launch(stream.handle)
    with pytest.raises(_engine.DriverError, match="LAUNCH_FAILED"):
        _engine.twin_synchronize()
    assert "only looks like an address" in _engine.twin_last_error()


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_hidden_pointer_never_gives_a_result(number: int) -> None:
    with faults.hidden_pointers(number):
        moved = twin_support.Moved(network, inputs())
    given = inputs()
    expected = network(given)
    try:
        found = moved(given)[0]
    except AssertionError as error:
        assert "phantom memory was written" in str(error)
    except _engine.DriverError as error:
        assert "LAUNCH_FAILED" in str(error)
    else:
        assert not torch.equal(found, expected)


def test_a_hidden_result_writes_the_canary() -> None:
    with faults.hidden_pointers(-1):
        moved = twin_support.Moved(lambda given: given[0] + 1, [torch.randn(4)])
    with pytest.raises(AssertionError, match="phantom memory was written"):
        moved([torch.randn(4)])


def test_kernels_that_demand_an_alignment() -> None:
    with faults.alignment_demand(64):
        moved = twin_support.check(network, inputs())
    x, w = inputs()
    shifted = torch.empty(21)[1:].view(4, 5).copy_(x)
    assert shifted.data_ptr() % 64 != 0
    with pytest.raises(_engine.DriverError, match="LAUNCH_FAILED"):
        moved([shifted, w])
    assert "is not a multiple of 64" in _engine.twin_last_error()
    assert torch.equal(moved([x, w])[0], network([x, w]))


def test_an_address_that_was_not_aligned_when_captured_need_not_be() -> None:
    with faults.alignment_demand(64):
        twin_support.check(lambda given: given[0][1:] * 2, [torch.randn(9)])


@pytest.mark.parametrize(
    "symbol",
    ["cuStreamBeginCapture", "cuLaunchKernel", "cuMemcpyDtoDAsync", "cuMemsetD8Async",
     "cuStreamEndCapture", "cuGraphClone", "cuGraphInstantiate", "cuGraphLaunch"],
)  # fmt: skip
def test_a_failing_driver_call_raises_and_leaves_all_as_it_was(symbol: str) -> None:
    def function(given: list[Any]) -> Any:
        return torch.zeros(3).add_(given[0]).clone()

    with faults.failing_call(symbol), pytest.raises(_engine.DriverError, match="INVALID_VALUE"):
        twin_support.check(function, [torch.randn(3)])
    twin_support.check(function, [torch.randn(3)])


def test_two_threads_wait_for_each_other_without_the_interpreters_lock() -> None:
    """Kernels need the lock to run. A thread that waited for another's launches holding it would
    stop both."""
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(64, 64, generator=generator)
        with torch.no_grad():
            moved = captures[seed]
            for _ in range(20):
                with contextlib.suppress(AssertionError):
                    if not torch.equal(moved([x])[0], chain([x])):
                        failures.append(f"thread {seed}")

    def chain(given: list[Any]) -> Any:
        y = given[0]
        for _ in range(10):
            y = torch.tanh(y @ given[0])
        return y

    captures = [twin_support.Moved(chain, [torch.randn(64, 64)]) for _ in range(2)]
    faulthandler.dump_traceback_later(120, exit=True)  # nobody can raise without the lock
    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "the threads wait for each other"
    faulthandler.cancel_dump_traceback_later()
    assert not failures
