"""The CI run of random programs on the twin, and the test of that test: broken backends are found.

The long run is long_run.py.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch

from pygraph.capturing import observing, proof
from pygraph.operators import accesses
from trust import backends, branches, check, fleet, long_run, strategies
from trust.programs import ALIGNMENT, Base, Call, Program
from trust.tally import Tally

#: Of programs that torch itself compiles rightly, at least so many are graphed...
GRAPHED_SHARE = 0.9
#: ...and of all programs, at most so many are compiled to something else than eager by torch.
TORCH_DIFFERS_SHARE = 0.06
#: Of programs of branches, at least so many have a graph of more than one lane.
WIDE_SHARE = 0.75

Function = Callable[..., Any]


@pytest.mark.slow
def test_random_programs_on_the_twin(capsys: pytest.CaptureFixture[str]) -> None:
    profile = fleet.PROFILES["ci"]
    tally = fleet.run("twin", profile, workers=2, chunk_timeout_s=1800)
    with capsys.disabled():
        print("\n" + tally.summary())
    assert not tally.failures
    assert tally.programs >= profile.programs
    assert tally.graphed_share() >= GRAPHED_SHARE
    assert tally.states["torch differs"] <= TORCH_DIFFERS_SHARE * tally.programs
    assert tally.replays > tally.programs
    assert tally.through_dynamo > 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["train", "lanes"])
def test_random_programs_in_other_ways_on_the_twin(
    way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = fleet.run(f"twin-{way}", fleet.PROFILES[way], workers=2, chunk_timeout_s=1800)
    with capsys.disabled():
        print("\n" + tally.summary())
    assert not tally.failures
    assert tally.graphed_share() >= GRAPHED_SHARE
    assert tally.replays > tally.programs
    assert tally.wide_share() >= (WIDE_SHARE if way == "lanes" else 0)
    assert fleet.missing(f"twin-{way}", tally) is None


def each(programs: Any, examples: int, run: Callable[[Program], None]) -> None:
    """Draws programs, the same in each run."""

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(programs)
    def every(program: Program) -> None:
        run(program)

    every()


# ------------------------------------------------------------- backends that are wrong on purpose


def stale_input(function: Function) -> Function:
    """Reads the first argument of the second call for ever, as a graph without relocation does."""
    seen: list[Any] = []

    def call(*arguments: Any) -> Any:
        seen.append(arguments)
        first = seen[1][0] if len(seen) > 1 else arguments[0]
        return function(first, *arguments[1:])

    return call


def reused_output(function: Function) -> Function:
    """Returns the same memory at every call, as graphs with static outputs do."""
    memory: dict[Any, torch.Tensor] = {}

    def call(*arguments: Any) -> Any:
        results = list(function(*arguments))
        if isinstance(results[0], torch.Tensor) and results[0].is_contiguous():
            key = results[0].shape, results[0].dtype
            results[0] = memory.setdefault(key, results[0].clone()).copy_(results[0])
        return tuple(results)

    return call


def lost_write(function: Function) -> Function:
    """Works on copies of its arguments."""

    def call(*arguments: Any) -> Any:
        return function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments))

    return call


def one_bit(function: Function) -> Function:
    """From the third call on, one bit of the first result is another."""
    calls = [0]

    def call(*arguments: Any) -> Any:
        results = function(*arguments)
        calls[0] += 1
        first = results[0]
        if calls[0] > 2 and isinstance(first, torch.Tensor) and first.dtype == torch.float32:
            changed = first.clone()
            changed.view(torch.int32).bitwise_xor_(1)
            return (changed, *results[1:])
        return results

    return call


def other_strides(function: Function) -> Function:
    """Returns results of the right values in another layout."""

    def call(*arguments: Any) -> Any:
        return tuple(
            r.transpose(0, -1).contiguous().transpose(0, -1)
            if isinstance(r, torch.Tensor) and r.dim() > 1
            else r
            for r in function(*arguments)
        )

    return call


def degenerate_strides(function: Function) -> Function:
    """Dimensions without a second element have another stride, which leads nowhere."""

    def call(*arguments: Any) -> Any:
        return tuple(
            r.as_strided(r.shape, [s + (n < 2) for n, s in zip(r.shape, r.stride(), strict=True)])
            if isinstance(r, torch.Tensor)
            else r
            for r in function(*arguments)
        )

    return call


def lonely_empties(function: Function) -> Function:
    """Results without elements share no storage with anything."""

    def call(*arguments: Any) -> Any:
        return tuple(
            torch.empty(0, dtype=r.dtype).set_(
                torch.UntypedStorage(0), r.storage_offset(), r.shape, r.stride()
            )
            if isinstance(r, torch.Tensor) and not r.numel() and r._is_view()
            else r
            for r in function(*arguments)
        )

    return call


def wrong_gradient(function: Function) -> Function:
    """From the third call on, one bit of what flows back into the first argument is another."""
    calls = [0]

    def disturb(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.clone()
        if changed.dtype == torch.float32:
            changed.view(torch.int32).bitwise_xor_(1)
        return changed

    def call(*arguments: Any) -> Any:
        calls[0] += 1
        first = arguments[0]
        if calls[0] > 2 and first.requires_grad:
            first = first.clone()
            first.register_hook(disturb)
        return function(first, *arguments[1:])

    return call


@pytest.mark.parametrize("trains", [False, True], ids=["runs", "trains"])
@pytest.mark.parametrize(
    "wrong",
    [
        *(stale_input, reused_output, lost_write, one_bit, other_strides),
        *(degenerate_strides, lonely_empties, wrong_gradient),
    ],
)
def test_a_wrong_backend_is_found(wrong: Callable[[Function], Function], trains: bool) -> None:
    if wrong is wrong_gradient and not trains:
        pytest.skip("there are no gradients")

    def compile_wrongly(graph: Any, inputs: list[Any]) -> Function:
        return wrong(graph.forward)

    backend = backends.Backend("wrong", "cpu", compile_wrongly, ours=False, trains=trains)
    with pytest.raises(check.Mismatch):
        each(strategies.programs(dynamo_share=0), 60, lambda program: check.run(program, backend))


# ----------------------------------------------------------------------------- programs of branches


def in_lanes(examples: int) -> list[check.Outcome]:
    """Of some programs of branches; all are right."""
    found: list[check.Outcome] = []

    def run(program: Program) -> None:
        found.append(check.run(program, backends.backend("twin-lanes")))

    each(branches.programs(dynamo_share=0), examples, run)
    return found


def wide(found: list[check.Outcome]) -> int:
    return sum(max(each.lanes, default=0) > 1 for each in found)


def test_branches_run_side_by_side() -> None:
    found = in_lanes(12)
    assert wide(found) >= WIDE_SHARE * len(found)
    assert max(max(each.lanes) for each in found if each.lanes) == 4
    assert not any(each.in_a_row for each in found)


def test_a_missing_order_that_passes_its_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes, it is said, so nothing waits; in the calls behind the proof, too, nodes run in
    any order that the edges allow."""
    monkeypatch.setattr(accesses, "writing", lambda tensor, *_: accesses.reading(tensor))
    monkeypatch.setattr(observing, "fault", lambda *_: None)
    monkeypatch.setattr(proof.Verdict, "passed", True)
    with pytest.raises(check.Mismatch):
        in_lanes(12)


@pytest.mark.parametrize("observed", [True, False])
def test_a_missing_order_is_found_by_proofs(
    observed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run that is observed, and by those in other orders."""
    monkeypatch.setattr(accesses, "writing", lambda tensor, *_: accesses.reading(tensor))
    if not observed:
        monkeypatch.setattr(observing, "fault", lambda *_: None)
    found = in_lanes(12)
    assert wide(found) < WIDE_SHARE * len(found) / 2
    said = "not said to write" if observed else "lanes a proof failed"
    assert said in " ".join(why for each in found for why in each.in_a_row)


@pytest.mark.parametrize(("lanes", "why"), [(1, []), (2, []), (2, ["it writes"])])
def test_a_run_for_lanes_in_which_there_are_none_fails(
    lanes: int,
    why: list[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    tally = Tally()
    tally.add(program("v0 = x0 + 1"), check.Outcome(["graphed"], lanes=[1, lanes], in_a_row=why))
    monkeypatch.setattr(fleet, "run", lambda *_: tally)

    def status(device: str) -> int:
        out = tmp_path / f"{device}.json"
        monkeypatch.setattr("sys.argv", ["long_run.py", "--device", device, "--out", str(out)])
        return long_run.main()

    assert status("twin") == 0
    assert status("twin-lanes") == (1 if lanes == 1 or why else 0)
    said = capsys.readouterr().out
    assert f"{lanes - 1} of 2 of these graphs have more than one lane" in said
    assert ("no graph of 1 programs has more than one lane" in said) == (lanes == 1)
    assert (
        "to run in lanes and do not: 1" in said and "why in a row: 1 it writes" in said
    ) == bool(why)


def program(line: str, **changes: Any) -> Program:
    calls = tuple(Call(size=4, seed=seed) for seed in range(1, 6))
    made = Program((Base("float32", "(N, 4)"),), ("b0",), (), None, (line,), ("v0",), calls)
    return dataclasses.replace(made, dynamo=False, **changes)


def test_a_right_program_is_graphed() -> None:
    outcome = check.run(program("v0 = torch.relu(x0) + 1"), backends.backend("twin"))
    assert outcome.state == "graphed", outcome
    assert outcome.replays == 3
    assert outcome.torch_differs is None


def test_a_reproducer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "share_memory_eagerly", lambda in_pieces: None)
    text = fleet.reproducer(program("v0 = torch.relu(x0) + 1"), "eager", "what was wrong")
    assert "# what was wrong" in text
    space: dict[str, Any] = {}
    exec(compile(text.replace("print(", "outcome = ("), "reproducer", "exec"), space)
    assert space["outcome"].torch_differs is None


def test_what_torch_itself_does_is_told_apart() -> None:
    """A write through an expanded argument that only AOTAutograd refuses, in Dynamo's wrapping."""
    line = "x0.select(0, 0).index_fill_(0, torch.arange(4, device=DEVICE) // 2, 2)"
    refused = dataclasses.replace(
        program(line, bases=(Base("float32", "(1, 4)"),), inputs=("b0.expand(N, 4)",)),
        returns=("x0",),
        dynamo=True,
    )
    twin = backends.backend("twin")
    assert check.run(refused, twin).torch_differs == "BackendCompilerFailed"

    def raises(graph: Any, inputs: list[Any]) -> Function:
        raise RuntimeError("not what torch raises")

    with pytest.raises(Exception, match="not what torch raises"):
        check.run(refused, dataclasses.replace(twin, compiler=raises, ours=False))


class Rounding(backends.Backend):
    """Eager rounds by alignment, as libraries do (here by a whole 1), and what is under test adds
    `compiler`, as a text, to what eager computes on aligned memory."""

    def compile_reference(self, module: torch.nn.Module, program: Program) -> Function:
        return lambda x: (x + int(x.data_ptr() % ALIGNMENT != 0),)

    def compile(self, module: torch.nn.Module, program: Program) -> Function:
        return lambda x: (x + int(str(self.compiler)),)


@pytest.mark.parametrize("where", ["offset", "misaligned"])
def test_memory_that_is_not_aligned_may_be_computed_on_as_if_it_were(where: str) -> None:
    first, *others = program("").calls
    changed: Any = {where: 1}
    bent = program("", calls=(first, dataclasses.replace(first, **changed), *others))
    outcome = check.run(bent, Rounding("rounding", "cpu", "0", ours=False))
    assert outcome.torch_differs == "bits, by alignment"
    with pytest.raises(check.Mismatch):  # neither bits
        check.run(bent, Rounding("rounding", "cpu", "2", ours=False))
    straight = program("")
    assert check.run(straight, Rounding("rounding", "cpu", "0", ours=False)).torch_differs is None
    with pytest.raises(check.Mismatch):
        check.run(straight, Rounding("rounding", "cpu", "1", ours=False))


def test_the_same_error_about_another_object_is_the_same() -> None:
    """torch's texts may name an object by its id, as that of a symbolic size."""
    side = check.Side(program("v0 = x0 + 1"), "cpu")

    def raised(text: str) -> str | None:
        def fails(*_: Any) -> Any:
            raise RuntimeError(text)

        side.function = fails
        return check._call(side, side.program.calls[0], may_raise=True)

    first = raised("s6 + 1 (139716025926864)is not tracked for <Tracer at 0x7f1225689510>")
    assert first == raised("s6 + 1 (139690984493968)is not tracked for <Tracer at 0x7f0c581c6150>")
    assert first != raised("s6 + 2 (139716025926864)is not tracked for <Tracer at 0x7f1225689510>")
