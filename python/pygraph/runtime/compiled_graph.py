"""The life of one compiled graph: warm it, link it, prove it, replay it, or run it as it is.

`CompiledGraph.dispatcher` is what Inductor calls in place of the compiled callable. It is C++ and
serves every call that a proven program accepts, and those that the bypass takes (bypass.py);
others arrive in `_miss`. The first call of a signature runs the callable, which loads modules and
creates library handles; the second runs it again, captures, links and proves, and gives the
caller the real run's result, whatever became of the capture.

Threads: calls are guarded by the GIL, and a thread that links is alone (call_lock.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import pipeline, proof, reference, unsafe
from pygraph.capturing.attempts import Attempt, attempts, ladder
from pygraph.capturing.consent import ALONE, Dissent, Objection
from pygraph.capturing.cuda import device_of
from pygraph.capturing.device import CaptureFailed, Device, capture_lock
from pygraph.capturing.holdings import Holdings
from pygraph.capturing.host_numbers import HostNumbers
from pygraph.capturing.lanes import NO_LANES, LaneOptions
from pygraph.capturing.outcome import Failure, LinkedProgram, Outcome
from pygraph.capturing.request import Request
from pygraph.decide import agreement, cost_model
from pygraph.decide.agreement import Collectives
from pygraph.decide.selection import Select
from pygraph.decide.signatures import Signature, SignatureRules, Signatures
from pygraph.reporting import FALLBACK, GRAPHED, PARTLY, REPLACED, WARMING, GraphReport
from pygraph.runtime.alignment import Alignment
from pygraph.runtime.bypass import Bypass
from pygraph.runtime.call_lock import CallLock
from pygraph.runtime.crossing import NOTHING, Crossing
from pygraph.runtime.fallback import Fallback
from pygraph.runtime.paranoid import Paranoid
from pygraph.runtime.partition import Partition
from pygraph.runtime.selecting import Selecting
from pygraph.runtime.training_pair import PairMember, Role, TrainingPair
from pygraph.runtime.warn import no_graphs

log = logging.getLogger(__name__)

#: What a program counts, as the report calls it too.
_COUNTERS = ("replays", "bytes_copied", "copies", "updates", "bytes_staged", "bytes_fetched")

SourceFinder = Callable[[str | None], str | None]
Deployed = Callable[[Sequence[Any], Sequence[Any]], None]
Refusal = Callable[[GraphReport], Exception]
#: Told the operator that a capture named, before anything was linked. What it returns, if anything,
#: compiles the callable once more; it is called in front of the graph's next call.
OnCulprit = Callable[[str], Callable[[], None] | None]


class CompiledGraph:
    """One compiled graph."""

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        *,
        name: str,
        holdings: Holdings | None = None,
        constants: Sequence[int] = (),
        mutated: Sequence[int] = (),
        device: Device | int = 0,
        find_source: SourceFinder = lambda operator: None,
        sizes: SignatureRules | None = None,
        paranoid: int = 0,
        aligned: bool = False,
        sure: Collection[int] = (),
        role: Role = Role.INFERENCE,
        pair: TrainingPair | None = None,
        partition: Partition | None = None,
        copied: bool = False,
        crossing: Crossing = NOTHING,
        refusal: Refusal | None = None,
        on_culprit: OnCulprit | None = None,
        watched: Collection[int] = (),
        seen: bool = False,
        collectives: Collectives = agreement.NONE,
        others: Collection[int] = (),
        together: Callable[[], Collection[int]] | None = None,
        numbers: HostNumbers | None = None,
        select: Select = "always",
        lanes: LaneOptions = NO_LANES,
    ) -> None:
        """`function` takes one list of arguments; `holdings` are what it holds. The arguments
        `constants` stay in place, `mutated` are known to be written. `paranoid`: repeat the proof
        every so many calls; 0: never. `aligned`: the function needs tensors aligned to 16 bytes, as
        those of `sure` always are. `pair`: what a forward and a backward share. `partition`: of the
        compiled graph; None: all of it. `copied`: changing arguments are copied, not patched.
        `crossing`: arguments and results that callers have on the host, and the function has not.
        `refusal`: the error that is raised where a call runs without a graph for good; None: it
        runs. `watched`: constants that the function may write. `seen`: its first call is behind
        it, in which no operator was found that must not be captured, these `collectives`, and work
        on these `others`, GPUs by torch's index.
        `together`: results that die at about the same time, asked after a call; None: a backward's
        gradients. `numbers`: Python numbers among the arguments, of which each call may have
        others. `select`: how it is decided whether proven programs serve; where graphs are required
        or proven again, they do. `lanes`: that nodes may be spread over."""
        self._lanes = lanes
        self._numbers = numbers or HostNumbers()
        self.constants = frozenset(constants) - crossing.staged
        self.mutated = frozenset(mutated)
        self._may_be_written = frozenset(watched)
        self._together = together
        self.written: frozenset[int] = frozenset()  #: arguments that it was seen to write
        self.device = device_of(device) if isinstance(device, int) else device
        self._tell_deployed: Deployed | None = None
        self._on_culprit = on_culprit
        self._compile_again: Callable[[], None] | None = None
        self._launch_counts: _engine.LaunchCounts | None = None
        #: Of what stands in front of the wrappers; None: nothing does.
        self.way_in: Any = None
        self.fallback = Fallback(
            function,
            self.mutated,
            aligned,
            self.device,
            self.constants | frozenset(sure) | crossing.staged,
            crossing,
        )
        self.report = GraphReport(
            name=name, state=WARMING, device="twin" if self.device.twin else "cuda"
        )
        self._member = PairMember(role, pair, self.constants, self.device, partition)
        self._policies = ladder(self.device.private_scratch, copied)
        self._holdings = holdings or Holdings()
        self._find_source = find_source
        self._signatures = Signatures(
            sizes or SignatureRules(), self.device, self._member.programs_at_once
        )
        self._alignment = Alignment(self._signatures)
        self._member.count_programs(self._signatures.count)
        self._retired: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        self._threads = CallLock()
        self._held = 0
        self._watched = seen  #: the callable's first call has been seen
        self.collectives = agreement.NONE
        self._session: agreement.Session | None = None  #: while its ranks agree
        self._off = False  #: no program will ever be made again
        self._abandoned: str | None = None  #: why, in a forked child
        self._paranoid = paranoid
        self._refusal = refusal
        self.dispatcher = _engine.Dispatcher(self._miss, self._failed)
        self._bypass = Bypass(
            self.dispatcher,
            self.fallback,
            self._signatures,
            self.report,
            closed=refusal is not None,
        )
        bound = refusal is not None or paranoid
        self._selecting = Selecting(
            "always" if bound else select, self.device, self.dispatcher, self.report
        )
        if self._selecting.select == "never":
            self._off = True
            self.report.state, self.report.reason = FALLBACK, "the option 'select' is \"never\""
        self._note_collectives(collectives)
        self._note_others(others)

    @property
    def takes_more_than_one(self) -> bool:
        """Rank, or GPU."""
        return bool(self.collectives or self.device.peers)

    @property
    def direct_calls_allowed(self) -> bool:
        """Whether calls may bypass as_callable(), which repeats proofs where that is asked for."""
        return not self._paranoid

    @property
    def role(self) -> Role:
        return self._member.role

    def as_callable(self) -> Callable[[list[Any]], Any]:
        """What Inductor calls. Keeps this object alive."""
        proving = self.prove_again, self._paranoid
        return Paranoid(self.dispatcher, *proving) if self._paranoid else self.dispatcher

    def watch_deployments(self, told: Deployed | None) -> None:
        """Has `told` called with the arguments and results of each call that deploys a graph; None:
        no one any more."""
        self._tell_deployed = told

    def note_entry_point(
        self, before_wrappers: bool, counts: _engine.LaunchCounts, way_in: Any
    ) -> None:
        """The wrappers around this graph have an entry point in front of them now. Whether they run
        behind the launch: else calls lead past them. `counts`: what the entry point counts.
        `way_in`: who has connected it."""
        self.way_in = way_in
        self.report.past_wrappers = not before_wrappers
        self.report.before_wrappers = before_wrappers
        self._launch_counts = counts

    @property
    def selecting(self) -> Selecting:
        return self._selecting

    def hold(self, held: bool) -> None:
        """While held, no program serves a call and none is linked: the callable runs."""
        self._held += 1 if held else -1
        self.dispatcher.hold(self._held > 0)

    @property
    def held(self) -> bool:
        return self._held > 0

    def refresh_report(self) -> GraphReport:
        """The report with the counters of this moment."""
        programs = [signature.program for signature in self._signatures.with_program]
        self.report.calls = self.dispatcher.calls
        if self._launch_counts is not None:
            self.report.dropped = self._launch_counts.dropped
            self.report.bytes_looked_at = self._launch_counts.bytes_looked_at
        self.report.undecided = self._selecting.undecided
        self.report.programs, self.report.limit = len(programs), self._signatures.limit
        self.report.waiting = self._bypass.waiting()
        for name, retired in self._retired.items():
            setattr(self.report, name, retired + sum(getattr(each, name) for each in programs))
        return self.report

    def __del__(self) -> None:
        """The report may be read later (registry.kept); release() has brought it up to date."""
        with contextlib.suppress(Exception):
            if not self._off:
                self.refresh_report()

    def release(self) -> None:
        """Drops every graph and its memory; calls run uncaptured from now on."""
        self.refresh_report()
        self._drop_programs()
        self._off = True

    def give_up(self, reason: str) -> None:
        """release() for a reason, which is told."""
        self._off = True
        self._give_up(reason)

    def end(self, reason: str) -> None:
        """release() where its end is in order, and nobody need be told."""
        self.release()
        self.report.state, self.report.reason = FALLBACK, reason

    def replace(self, reason: str) -> None:
        """release() where the callable was compiled once more: others serve its calls."""
        self.release()
        self._on_culprit = self._compile_again = self._tell_deployed = None
        reasons = filter(None, (self.report.reason, reason))
        self.report.state, self.report.reason = REPLACED, "; ".join(reasons)

    def abandon(self, reason: str) -> None:
        """release() in a forked child, where threads that held locks are gone."""
        self._threads = CallLock()
        self.release()
        self._abandoned = reason
        self.report.state, self.report.reason = FALLBACK, reason

    # ------------------------------------------------------------------ the slow path

    def _miss(self, arguments: list[Any]) -> Any:
        self._require_graphs()
        result = self._answer(arguments)
        self._require_graphs()
        return result

    def _require_graphs(self) -> None:
        """Raises if there will be none any more, where they are required."""
        given_up = self._off and self.report.state == FALLBACK
        if self._refusal is not None and given_up and not self._held:
            raise self._refusal(self.report)

    def _require_program(self, signature: Signature) -> None:
        """Raises if this signature is settled without one, where graphs are required."""
        given_up = signature.settled and signature.program is None
        if self._refusal is not None and given_up and self._compile_again is None:
            reason = signature.against or "its sizes are not in capture_sizes"
            raise self._refusal(dataclasses.replace(self.report, reason=reason))

    def _answer(self, arguments: list[Any]) -> Any:
        if self._compile_again is not None and not self._held and not self.device.busy():
            compile_again, self._compile_again = self._compile_again, None
            compile_again()  # which takes effect from the compiled function's next call on
            if self.report.state == WARMING:  # it came to nothing
                self.report.state = FALLBACK
        self.fallback.read_on_host(self._member.taken_on_host(arguments))
        if self._off or self._held:
            if self._abandoned is not None:
                no_graphs(self._abandoned)
            if not self._held:
                self._bypass.for_good(arguments)
            return self.fallback(arguments)
        with self._threads.calling():
            return self._serve(arguments)

    def _serve(self, arguments: list[Any]) -> Any:
        signature = self._signature(arguments)
        if self.collectives:
            return self._serve_with_others(signature, arguments)
        if signature.program is not None and self._member.has_moved(signature.program, arguments):
            self._replace(signature)
            signature.postpone()
        if self._alignment.relink(signature, arguments, self._has_room):
            return self._link(signature, arguments)
        if signature.settled or self.device.busy():
            if signature.settled and signature.program is None:
                self._require_program(signature)
                self._bypass.for_good(arguments)
            return self.fallback(arguments)
        self._bypass.sync(signature, arguments)
        if signature.calls <= signature.warm_up_calls or not self._watched:
            return self._warm_up(signature, arguments)
        if self._member.waits_for_forward(arguments):
            return self.fallback(arguments)
        if self._selecting.hopeless:
            signature.settle()
            self._bypass.for_good(arguments)
            return self.fallback(arguments)
        if self._bypass.must_wait(signature, arguments) or not self._fits(signature, arguments):
            return self.fallback(arguments)
        return self._link(signature, arguments)

    def _serve_with_others(self, signature: Signature, arguments: list[Any]) -> Any:
        """The same where there are collectives: which call is linked follows from calls alone, that
        all ranks make, and from no clock, memory or address of this rank's."""
        self._bypass.sync(signature, arguments)
        waits = (
            signature.settled
            or signature.calls <= signature.warm_up_calls
            or self._member.waits_for_forward(arguments)
            or self._selecting.hopeless
            or self.device.busy()
            or not self._bypass.has_place(signature)
        )
        if waits:
            if signature.settled and signature.program is None:
                self._require_program(signature)
            return self.fallback(arguments)
        return self._link(signature, arguments)

    def _note_collectives(self, collectives: Collectives) -> None:
        if collectives:
            self.collectives = collectives
            self.report.collectives = str(collectives)
            agreement.note(collectives)

    def _note_others(self, others: Collection[int]) -> None:
        """Other GPUs that the callable works on."""
        if not others:
            return
        names = ", ".join(f"cuda:{index}" for index in sorted(others))
        try:
            if self.collectives:
                raise CaptureFailed(f"it works on {names}, too, and has collectives")
            self.device = self.device.joined_by(others)
        except CaptureFailed as error:
            self.give_up(str(error))
        else:
            self.report.peers = names

    def _signature(self, arguments: list[Any]) -> Signature:
        elsewhere = self.fallback.on_host | self.fallback.crossing.staged
        elsewhere |= frozenset(self._numbers.arguments)
        return self._signatures.of(arguments, elsewhere)

    def _link(self, signature: Signature, arguments: list[Any]) -> Any:
        with self._alone():
            if not signature.claim():  # another thread did, since this one looked
                return self.fallback(arguments)
            # The arguments are needed after the call, whose contract is to clear the list.
            kept, before = list(arguments), signature.program
            arguments.clear()
            try:
                return self._deploy(signature, kept)
            finally:
                self._alignment.after_link(signature, before)
                if self._compile_again is None and not self.collectives:
                    self._bypass.after_link(signature, kept)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else calls the graph meanwhile, by whichever way."""
        with self._threads.alone():
            self.dispatcher.hold(True)  # calls that a program would serve wait in _miss
            try:
                while self.dispatcher.busy:
                    time.sleep(0)
                yield
            finally:
                self.dispatcher.hold(self._held > 0)

    def _failed(self, arguments: list[Any] | None, message: str) -> Any:
        """A proven graph failed at run time (the driver refused). `arguments`: None where the
        caller makes the call again."""
        self.give_up(f"a replay failed: {message}")
        result = None if arguments is None else self.fallback(arguments)
        self._require_graphs()
        return result

    def _warm_up(self, signature: Signature, arguments: list[Any]) -> Any:
        self._bypass.while_nothing_happens(signature, arguments)
        if self._watched:  # another signature: the same operators
            if self.report.state == WARMING:
                self.report.reason = self._signatures.against or self.report.reason
            return self.fallback(arguments)
        self._watched = True
        self._member.note(arguments)
        given = {each.device.index for each in filter(self.device.apart, arguments)}
        with unsafe.Watch(self.device) as watch:
            result = self.fallback(arguments)
        self._note_collectives(agreement.found(watch.collectives))
        if watch.reason is not None:
            self._note_culprit(watch.found)
            self.give_up(watch.reason)
            self._tell_culprit(watch.found)
        else:
            self._note_others(watch.others | given)
        return result

    def _tell_culprit(self, operator: str | None) -> None:
        if operator is not None and self._on_culprit is not None:
            self._compile_again = self._on_culprit(operator)
        if self._compile_again is not None:
            self.report.state = WARMING

    def _changing(self, arguments: Sequence[Any]) -> list[int]:
        constants = self._member.constants(arguments)
        return [i for i in range(len(arguments)) if i not in constants]

    def _fits(self, signature: Signature, arguments: list[Any]) -> bool:
        """Whether there is memory for a proof; where not, the signature waits."""
        shortage = self._shortage(arguments)
        if shortage is not None:
            self._put_off(signature, shortage)
        return shortage is None

    def _put_off(self, signature: Signature, shortage: str) -> None:
        signature.postpone()
        signature.against = shortage
        self.report.reason = f"{shortage}; tried again later"

    def _has_room(self, arguments: Sequence[Any]) -> bool:
        return not self.device.busy() and self._shortage(arguments) is None

    def _shortage(self, arguments: Sequence[Any]) -> str | None:
        changing = self._changing(arguments)
        written = self.mutated | self._may_be_written
        return reference.shortage(arguments, changing, written, self.device)

    def _deploy(self, signature: Signature, arguments: list[Any]) -> Any:
        """Runs the callable once for the caller, and then tries to get a proven program."""
        self._member.note(arguments)
        started = time.perf_counter()
        shortage = self._shortage(arguments) if self.collectives else None
        if shortage is not None:
            return self._decline(signature, arguments, shortage)
        run = self._run_for_real(arguments)
        saved = self._member.saves_on_host(run, self.fallback.crossing.fetched)
        if saved.later:
            signature.postpone()
            self._member.wait_for_backward(signature.hurry)
            self.report.reason = "its backward has not been compiled yet; tried again later"
            return run.outputs
        self._member.linked_or_not()
        if saved.against is not None:
            self.give_up(saved.against)
            return run.outputs
        arguments = self.fallback.on_device(arguments)
        run = dataclasses.replace(run, arguments=arguments, on_host=saved.results)
        with capture_lock:
            outcome = self._find_program(run)
            if outcome.linked is not None:
                self._adopt(signature, outcome, outcome.linked, arguments, run.mutated)
        if outcome.linked is not None:
            self._signatures.note_saving(run.seconds - _seconds_per_run(outcome), run.seconds)
            self._select(signature, outcome.linked, run, outcome)
            self._selecting.note_lanes(self._signatures.sizes(arguments), outcome.linked.spread)
            self._signatures.note_link(time.perf_counter() - started - run.seconds)
            if self._tell_deployed is not None:
                self._tell_deployed(arguments, run.outputs)
            return run.outputs
        if outcome.failure is not None and outcome.failure.memory_short:
            signature.postpone()
        # Not settled: memory was short, and another signature may find some.
        self._signatures.note_link(time.perf_counter() - started, failed=signature.settled)
        signature.against = outcome.reasons
        self._give_up(outcome.reasons, whole=not self._signatures.with_program)
        if outcome.failure is not None and not outcome.failure.memory_short:
            self._tell_culprit(outcome.failure.operator)
        self._require_program(signature)
        return run.outputs

    def _decline(self, signature: Signature, arguments: list[Any], shortage: str) -> Any:
        """Serves a call that other ranks link, and this one has no memory to."""
        outputs = self.fallback(list(arguments))
        self._put_off(signature, shortage)
        with contextlib.suppress(Dissent):
            session = agreement.open_session(self.collectives)
            if session is not None:
                session.object(Objection(shortage, memory_short=True))
        return outputs

    def _select(
        self,
        signature: Signature,
        linked: LinkedProgram,
        run: reference.Reference,
        outcome: Outcome,
    ) -> None:
        figures = linked.figures
        callable_s, graph_s = run.seconds, _seconds_per_run(outcome)
        # Work of several GPUs is over at no time that one of them could tell.
        among_ranks = agreement.among_ranks()
        by_rule = among_ranks or bool(self.device.peers)
        if among_ranks:  # what waits for other ranks in this process is in its times
            session = self._session
            slowest = None if session is None else session.slowest([callable_s, graph_s])
            callable_s, graph_s = (0.0, 0.0) if slowest is None else slowest
        changing = sum(torch.is_tensor(run.arguments[i]) for i in self._changing(run.arguments))
        results = sum(map(torch.is_tensor, run.outputs))
        contents = cost_model.Contents(
            nodes=figures["nodes"],
            patched=changing + results,
            arguments=sum(map(torch.is_tensor, run.arguments)),
            results=results,
        )
        self._selecting.add(
            linked.program,
            self._signatures.sizes(run.arguments),
            run.arguments,
            contents,
            callable_s=callable_s,
            graph_s=graph_s,
            by_rule=by_rule,
        )

    def _find_program(self, run: reference.Reference) -> Outcome:
        placed = list(run.arguments)
        self.fallback.crossing.bring(placed, self.device)
        request = Request(
            arguments=placed,
            staged=self.fallback.crossing.staged,
            computed=self.fallback.crossing.computed,
            fetched=self.fallback.crossing.fetched,
            function=self.fallback.function,
            holdings=self._holdings,
            reference=run,
            elsewhere=self.fallback.on_host,
            gradients=self._results_together(len(run.outputs)),
            given=self._member.given(run.arguments),
            held=self._member.held(run.arguments),
            # Memory that runs out between parts would leave other ranks in a collective.
            cut=self._member.role is not Role.INFERENCE and not self.takes_more_than_one,
            alignments=dict(self._alignment.least),
            numbers=self._numbers,
            collectives=bool(self.collectives),
            lanes=NO_LANES if self.takes_more_than_one else self._lanes,
        )
        todo = attempts(
            self._policies,
            always_in_pieces=self.device.arena_in_pieces,
            least_aligned=bool(request.alignments),
        )
        outcome = self._find(request, todo)
        for step, took in outcome.timings_ms.items():
            self._add_time(step, took)
        if outcome.verdict is not None:
            self._note_verdict(outcome.verdict)
        if outcome.alignment_doubted:
            self._alignment.forget()
        if outcome.failure is not None and not outcome.failure.memory_short:
            self._note_failure(outcome.failure)
        return outcome

    def _find(self, request: Request, todo: Sequence[Attempt]) -> Outcome:
        self._session = None
        try:
            if self.collectives:
                self._session = agreement.open_session(self.collectives)
        except Dissent as dissent:
            return pipeline.refused(todo[0], dissent.objection)
        consent = self._session or ALONE
        with self.device.current():
            return pipeline.find(dataclasses.replace(request, consent=consent), todo)

    def _results_together(self, count: int) -> frozenset[int]:
        own = self._member.gradients(count)
        return own if self._together is None else frozenset(self._together())

    def _note_verdict(self, verdict: proof.Verdict) -> None:
        self.report.proof, self.report.proof_passed = str(verdict), verdict.passed

    def _add_time(self, step: str, took_ms: float) -> None:
        self.report.timings_ms[step] = self.report.timings_ms.get(step, 0.0) + took_ms

    def _run_for_real(self, arguments: Sequence[Any]) -> reference.Reference:
        changing = self._changing(arguments)
        known, perhaps = self.mutated, self._may_be_written
        return reference.take(self.fallback, arguments, changing, known, self.device, perhaps)

    def prove_again(self, arguments: list[Any]) -> Any:
        """Serves a call by the callable, and proves the program that would have served it once
        more. A program that fails is given up. Without memory for a proof there is none."""
        kept = list(arguments)
        arguments.clear()
        signature = self._signature(kept)
        program = signature.program
        if self.collectives:  # runs that other ranks would have to make, too
            return self.dispatcher(kept)
        if program is None or self._held or not program.accepts(kept) or not self._has_room(kept):
            return self.dispatcher(kept)
        counted = {name: getattr(program, name) for name in _COUNTERS}
        with self._threads.calling(), self._alone(), capture_lock:
            run = self._run_for_real(kept)
            try:
                with self.device.current():
                    verdict = proof.prove(program, run)
            except (torch.OutOfMemoryError, MemoryError):
                return run.outputs
            except Exception as error:
                verdict = proof.failed(str(error))
            self._add_time("proof_runs", verdict.runs_ms)
            for name, before in counted.items():  # the proof's runs are not the program's
                self._retired[name] -= getattr(program, name) - before
            self.report.proofs += 1
            self._note_verdict(verdict)
            if not verdict.passed:
                self.give_up(f"a repeated proof failed: {verdict}")
        self._require_graphs()
        return run.outputs

    # ------------------------------------------------------------------ bookkeeping

    def _adopt(
        self,
        signature: Signature,
        outcome: Outcome,
        linked: LinkedProgram,
        arguments: Sequence[Any],
        written: frozenset[int],
    ) -> None:
        if signature.program is not None:
            self._replace(signature)
        while self._signatures.full:
            self._evict_oldest()
        self._on_culprit = None  # what it keeps to compile with is not needed any more
        program, figures = linked.program, linked.figures
        self._signatures.adopt(signature, program, linked.keep, figures["nodes"])
        report = self.report
        report.state = GRAPHED if linked.attempt.policy.copy_free else PARTLY
        report.reason = outcome.reasons or None
        report.take_figures(figures)
        report.offsets_kept = outcome.offsets_kept or None
        report.proofs += 1
        constants = self._member.constants(arguments)
        report.constants = sum(torch.is_tensor(arguments[i]) for i in constants)
        report.inputs = sum(map(torch.is_tensor, arguments)) - report.constants
        self.written |= written
        program.reset_statistics()  # the proof's runs are not the program's
        self._signatures.share_arena()
        self._member.adopt(program, arguments, any_offsets=not linked.attempt.keep_offsets)
        self.dispatcher.add(program)
        log.info("%s: %d nodes linked, %s", report.name, report.nodes, report.proof)

    def _retire(self, signature: Signature) -> None:
        """Takes a program out of service; what it has counted stays counted."""
        program = signature.program
        self.dispatcher.remove(program)
        for name in self._retired:
            self._retired[name] += getattr(program, name)

    def _evict_oldest(self) -> None:
        owner = self._signatures.owner(self.dispatcher.oldest) or self._signatures.with_program[0]
        self._retire(owner)
        self._signatures.evict(owner)
        self.report.evictions += 1

    def _replace(self, signature: Signature) -> None:
        """What the program needs in place has moved (a constant), or there is a better one."""
        self._retire(signature)
        self._signatures.drop(signature)
        self.report.relinks += 1

    def _give_up(self, reason: str, whole: bool = True) -> None:
        """Notes why there is no graph; `whole`: for no signature any more."""
        self.report.reason = reason
        if whole:
            self._drop_programs()
            self.report.state = FALLBACK
        what = "runs without a" if whole else "has no further"
        log.warning("%s %s CUDA graph: %s", self.report.name, what, reason)

    def _drop_programs(self) -> None:
        for signature in self._signatures.with_program:
            self._retire(signature)
            self._signatures.drop(signature)
        self._member.release()
        self._selecting.forget()
        self.dispatcher.clear()

    def _note_failure(self, failure: Failure) -> None:
        if failure.unexpected is not None:
            log.error(
                "%s: unexpected failure while linking",
                self.report.name,
                exc_info=failure.unexpected,
            )
        self._note_culprit(failure.operator, failure.source)

    def _note_culprit(self, operator: str | None, source: str | None = None) -> None:
        self.report.operator = operator
        self.report.source = self._find_source(operator) or source


def _seconds_per_run(outcome: Outcome) -> float:
    """Of the program proven, until the device is idle; the fastest, for the first one instantiates
    the graph. What a proof poisons is in it."""
    assert outcome.verdict is not None
    return 1e-3 * outcome.verdict.fastest_ms
