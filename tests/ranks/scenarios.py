"""What two ranks do in the tests. Each function is called on both ranks, and returns what its rank
has found."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import pygraph
from pygraph.capturing import pipeline, proof, record, reference
from pygraph.capturing.device import CaptureFailed
from pygraph.runtime import selecting
from tests.ranks.launch import ON_GPUS, TIME_OUT_S

CALLS = 12
_known: dict[str, Callable[[], dict[str, Any]]] = {}


def scenario(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    _known[function.__name__] = function
    return function


def run(name: str) -> dict[str, Any]:
    torch._dynamo.reset()
    pygraph.reset()
    torch.manual_seed(dist.get_rank())
    return _known[name]()


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if ON_GPUS else torch.device("cpu")


def options(**more: Any) -> dict[str, Any]:
    return ({} if ON_GPUS else {"device": "twin", "compiler": "aot"}) | {"select": "always"} | more


def new_group(ranks: list[int] | None = None) -> Any:
    return dist.new_group(ranks, timeout=datetime.timedelta(seconds=TIME_OUT_S))


class Parallel:
    """Two layers, split among the ranks: their results are summed up."""

    def __init__(self, group: Any = None, **more: Any) -> None:
        self.group = group or new_group()
        self.up = torch.randn(16, 32, device=device()) / 8
        self.down = torch.randn(32, 16, device=device()) / 8
        self.compiled = torch.compile(
            self.function, backend="pygraph", options=options(**more), dynamic=False
        )
        self.wrong = 0

    def function(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.relu(x @ self.up) @ self.down
        return functional.all_reduce(part, "sum", self.group) + x

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.relu(x @ self.up) @ self.down
        dist.all_reduce(part, group=self.group)
        return part + x

    @torch.no_grad()
    def call(self, rows: int = 4) -> None:
        x = torch.randn(rows, 16, device=device())
        found = self.compiled(x)
        wanted = self.expected(x)
        self.wrong += not torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)

    def calls(self, count: int = CALLS) -> Parallel:
        for _ in range(count):
            self.call()
        return self

    def found(self) -> dict[str, Any]:
        graphs = pygraph.report().graphs
        return {
            "wrong": self.wrong,
            "states": [each.state for each in graphs],
            "replays": sum(each.replays for each in graphs),
            "reasons": [each.reason or "" for each in graphs],
            "collectives": [each.collectives or "" for each in graphs],
            "selection": [str(each.selection[-1].graph) for each in graphs if each.selection],
        }


def on_rank(number: int) -> bool:
    return dist.get_rank() == number


@contextlib.contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    """A fault, on one rank."""
    with mock.patch.object(owner, name, by) if on_rank(1) else contextlib.nullcontext():
        yield


def raising(error: BaseException, times: int | None = None) -> Callable[..., Any]:
    """Raises in place of `original`, in its first `times` calls, or in all."""
    calls = itertools.count()

    def fault(original: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*args: Any, **kwargs: Any) -> Any:
            if times is None or next(calls) < times:
                raise error
            return original(*args, **kwargs)

        return faulty

    return fault


class Faulty:
    """A program whose runs raise."""

    def __init__(self, program: Any, error: Exception) -> None:
        self._program, self._error = program, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, *_: Any) -> Any:
        raise self._error


# ---------------------------------------------------------------------------------- in order


@scenario
def sums() -> dict[str, Any]:
    return Parallel().calls().found()


@scenario
def several_sizes() -> dict[str, Any]:
    model = Parallel()
    for _ in range(4):
        for rows in (2, 3, 4):
            model.call(rows)
    return model.found()


@scenario
def measured() -> dict[str, Any]:
    """Each rank has other clocks; the slowest one's count."""
    add = selecting.Selecting.add

    def seen(self: Any, *args: Any, **kwargs: Any) -> None:
        times.append([kwargs["callable_s"], kwargs["graph_s"]])
        add(self, *args, **kwargs)

    times: list[list[float]] = []
    with mock.patch.object(selecting.Selecting, "add", seen):
        found = Parallel(select="measure").calls().found()
    return found | {"times": times}


@scenario
def proven_again() -> dict[str, Any]:
    """What repeats proofs leaves those with collectives alone."""
    return Parallel(debug="paranoid", debug_interval=2).calls().found()


@scenario
def group_of_one() -> dict[str, Any]:
    groups = [new_group([rank]) for rank in range(dist.get_world_size())]
    return Parallel(groups[dist.get_rank()]).calls().found()


@scenario
def two_groups() -> dict[str, Any]:
    first, second = new_group(), new_group()

    class Two(Parallel):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            y = functional.all_reduce(x @ self.up @ self.down, "sum", first)
            return functional.all_reduce(y, "max", second)

        def expected(self, x: torch.Tensor) -> torch.Tensor:
            y = x @ self.up @ self.down
            dist.all_reduce(y, group=first)
            dist.all_reduce(y, dist.ReduceOp.MAX, group=second)
            return y

    return Two().calls().found()


@scenario
def group_ends() -> dict[str, Any]:
    model = Parallel().calls()
    before = model.found()
    dist.destroy_process_group(model.group)
    return model.found() | {"before": before["states"], "wrong": before["wrong"]}


# ------------------------------------------------------------------------ faults on one rank


@scenario
def capture_refused() -> dict[str, Any]:
    refused = raising(CaptureFailed("planted"))(record.record)
    with replaced(record, "record", refused):
        return Parallel().calls().found()


@scenario
def proof_failed() -> dict[str, Any]:
    with replaced(proof, "_compare", lambda found, repeats: proof.failed("planted")):
        return Parallel().calls().found()


@scenario
def proof_failed_at_first() -> dict[str, Any]:
    """Of the first attempt; the second one passes, on both ranks."""
    verdicts = iter([proof.failed("planted")])
    compare = proof._compare
    with replaced(proof, "_compare", lambda *args: next(verdicts, None) or compare(*args)):
        return Parallel().calls().found()


@scenario
def memory_runs_out_while_linking() -> dict[str, Any]:
    short = raising(torch.OutOfMemoryError("planted"), times=2)(pipeline._link)
    with replaced(pipeline, "_link", short):
        return Parallel().calls(24).found()


@scenario
def memory_runs_out_in_a_run() -> dict[str, Any]:
    prove = proof.prove
    left = [1, 1]

    def faulty(program: Any, *args: Any, **kwargs: Any) -> Any:
        if left and left.pop():
            program = Faulty(program, torch.OutOfMemoryError("planted"))
        return prove(program, *args, **kwargs)

    with replaced(proof, "prove", faulty):
        return Parallel().calls(24).found()


@scenario
def no_memory_for_copies() -> dict[str, Any]:
    known = iter(["no memory, planted"])
    with replaced(reference, "shortage", lambda *_: next(known, None)):
        return Parallel().calls(24).found()


@scenario
def more_repeats() -> dict[str, Any]:
    """One rank wants further runs of the callable, which the other one makes, too."""
    compare, made = proof._compare, []

    def doubting(found: Any, repeats: Any) -> Any:
        repeats.spread(2 * (len(made) + 1))
        made.append(len(made))
        return compare(found, repeats)

    with replaced(proof, "_compare", doubting):
        found = Parallel().calls().found()
    return found | {"made": len(made)}


@scenario
def other_times() -> dict[str, Any]:
    """The ranks come to calls that they link at different times."""

    class Uneven(Parallel):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return functional.all_reduce(x.sum(0), "sum", self.group) + x

        def expected(self, x: torch.Tensor) -> torch.Tensor:
            total = x.sum(0)
            dist.all_reduce(total, group=self.group)
            return total + x

    model = Uneven()
    for call in range(CALLS):
        model.call(3 + (call % 3 if on_rank(0) else 0) // 2)
    return model.found()


@scenario
def other_calls() -> dict[str, Any]:
    """One rank links at its second call, the other at its third."""
    return Parallel(capture_at=2 + dist.get_rank()).calls().found()


@scenario
def one_without() -> dict[str, Any]:
    """One rank runs no graphs."""
    model = Parallel()
    if on_rank(1):
        model.compiled = model.function
    return model.calls().found()


# ------------------------------------------------------------------------------- a rank dies


def _die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _until_it_raises(model: Parallel) -> dict[str, Any]:
    """Calls, and what ends them."""
    made = 0
    try:
        for _ in range(CALLS):
            model.call()
            made += 1
            if ON_GPUS:
                torch.cuda.synchronize()
    except Exception as error:
        return model.found() | {"made": made, "raised": type(error).__name__}
    return model.found() | {"made": made, "raised": ""}


@scenario
def dies_while_capturing() -> dict[str, Any]:
    with replaced(record, "record", _die):
        return _until_it_raises(Parallel())


@scenario
def dies_before_the_proof() -> dict[str, Any]:
    with replaced(proof, "prove", _die):
        return _until_it_raises(Parallel())


@scenario
def dies_between_runs() -> dict[str, Any]:
    with replaced(proof, "_compare", _die):
        return _until_it_raises(Parallel())


@scenario
def dies_while_served() -> dict[str, Any]:
    model = Parallel().calls(6)
    if on_rank(1):
        _die()
    return _until_it_raises(model)
