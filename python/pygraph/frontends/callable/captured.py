"""`pygraph.capture`: the life of a captured callable.

The first call runs as it is, and the code that it runs is noted. From then on each call is compared
with those before it (differences.py): calls that are made of the same share a CompiledGraph. The
first of these runs as it is, too, and is watched; the second is linked and proven; later ones are
replayed. All of that is in C++ then (src/callable/captured.h): the slow path below gets the calls
that nothing serves yet.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import pkgutil
import threading
import types
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

import torch

from pygraph import _engine
from pygraph._engine import OutputKind
from pygraph.capturing.device import Device
from pygraph.capturing.holdings import Holdings
from pygraph.capturing.host_numbers import HostNumbers
from pygraph.decide import agreement
from pygraph.decide.signatures import EAGER, SignatureRules
from pygraph.frontends.callable.backward import Backward, Gradients, Pending, Reach
from pygraph.frontends.callable.comparing import Comparing
from pygraph.frontends.callable.differences import differing_numbers, first_difference, same
from pygraph.frontends.callable.lifting import (
    Lifted,
    against_staging,
    arguments_of,
    tensors_at,
    touched,
    visible,
)
from pygraph.frontends.callable.returned import Returned, objects_in
from pygraph.frontends.callable.step import (
    Call,
    FinishedRun,
    Step,
    run,
    steps_on_host,
    tensors_in,
    without_spent_graphs,
)
from pygraph.frontends.callable.structure import NotDescribed, Tree
from pygraph.frontends.callable.training import (
    TrainingStep,
    against_saving,
    counted_up,
    note_second_derivatives,
    versions_of,
)
from pygraph.frontends.callable.watching import Scope, Watched, variables_in, watching
from pygraph.reporting import FALLBACK
from pygraph.runtime import calling_thread, devices, notes, registry
from pygraph.runtime.compiled_graph import CompiledGraph
from pygraph.runtime.crossing import Crossing
from pygraph.runtime.warn import warn_once
from pygraph.torch_private import dynamo, modes
from pygraph.torch_private.autograd import count_up_versions
from pygraph.torch_private.tensors import object_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: Programs of one callable.
PROGRAMS = 64
#: Calls in a row that were made of something else each time, before fewer of them are looked at.
_PATIENCE = 16
#: Links of an entry that are tried again with more tensors lifted.
_MOST_TRIES = 2
#: Calls that a program has not taken, until it is given up.
_MOST_REFUSED = 8
#: Calls in a row that changed what they read, until no further one is looked at.
_MOST_CHANGES = 4
#: The same of one structure, which then runs as it is.
_MOST_CHANGES_ALIKE = 2
#: What `debug` may be.
DEBUG = ("off", "compare")
#: Calls that are not looked at then, at most.
_LONGEST_REST = 1024


class Entry:
    """The calls that are made of the same."""

    def __init__(self, tree: Tree, same_modes: _engine.ModeGuard, varying: frozenset[int]) -> None:
        self.tree = tree
        self.varying = varying  #: places of numbers, of which each call may have others
        self.same_modes = same_modes
        self.watched = False  #: a call of it has been
        self.changes = 0  #: calls of it that changed what they read
        self.reason: str | None = None  #: why it gets no program
        self.collectives = agreement.NONE
        self.others: frozenset[int] = frozenset()  #: GPUs that it works on, too
        self.chosen: set[int] = set()  #: leaves that are arguments of its graph
        #: leaves that calls get other tensors for: gradients, and what they rebind
        self.moving: set[int] = set()
        self.more: set[int] = set()  #: leaves that kernels read past torch's operators
        self.graph: CompiledGraph | None = None
        self.step: Step | None = None
        self.installed = False  #: in C++
        self.as_it_is = False  #: there, too, without a graph
        self.tries = 0  #: links that came to nothing, for tensors that nobody had seen
        self.refused = 0  #: calls in a row that its program did not take since it was installed
        self.replays = 0  #: calls that its program had taken by the last of these
        self.waits = False  #: its results wait for a backward
        self.counted: set[int] = set()  #: leaves whose versions the callable counts up
        self.written: set[int] = set()  #: leaves that operators write
        self.pending: Pending | None = None  #: what its replays return, if they wait


class Captured(_engine.EngineCalled, Generic[Arguments, Result]):
    """A callable that is replayed as a CUDA graph where it was proven to be one. Called like the
    callable; from several threads at a time, too."""

    def __init__(
        self,
        function: Callable[Arguments, Result],
        platform: devices.Platform,
        programs: int,
        debug: str,
    ) -> None:
        #: With debug="compare" it serves no calls: all come to _miss.
        self._calls = _engine.CapturedFunction(self._miss, count_up_versions, dynamo.set_asked)
        super().__init__(self._calls)
        functools.update_wrapper(self, function)
        self.function = function
        self._platform = platform
        self._programs = programs
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._watched = Watched()
        self._scope = Scope()
        self._entries: list[Entry] = []  #: the one used last comes last
        self._device: Device | None = None
        self._values: set[str] = set()  #: places of numbers that get a program for each
        self._rest = self._news = self._changes = 0
        self._off = False
        self._debug = debug
        self._comparing = Comparing(function) if debug == "compare" else None
        self._numbers = itertools.count(1)
        self._number = 0  #: of the call that is looked at, among those that came to _miss
        self._lock = threading.Lock()

    if TYPE_CHECKING:  # the base class has it, in C++

        def __call__(self, *positional: Arguments.args, **named: Arguments.kwargs) -> Result: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: called with the instance in front."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """By its name where it has one, as a function. Else a copy has graphs of its own."""
        if self._stands_under_its_name():
            return self._name
        options = {
            "device": self._platform.name,
            "max_programs": self._programs,
            "debug": self._debug,
        }
        return functools.partial(capture, **options), (self.function,)

    def _stands_under_its_name(self) -> bool:
        try:
            return pkgutil.resolve_name(f"{self.__module__}:{self._name}") is self
        except (AttributeError, ImportError, ValueError):
            return False

    def __enter__(self) -> Captured[Arguments, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Drops its graphs and their memory; calls run as they are from now on."""
        self._off = True
        self._drop(self._entries)

    # ------------------------------------------------------------------ the slow path

    def _miss(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        number = next(self._numbers)
        # One call at a time is watched or linked; what others call meanwhile runs as it is.
        if self._runs_as_it_is() or not self._lock.acquire(blocking=False):
            return self.function(*positional, **named)
        self._number = number
        try:
            return self._look_at(list(positional), named)
        finally:
            self._lock.release()

    def _look_at(self, positional: list[Any], named: dict[str, Any]) -> Any:
        device = self._find_device(positional, named)
        if device is None or device.busy():
            return self.function(*positional, **named)
        if not self._watched.codes:
            return self._watch(*positional, device=device, **named)
        try:
            tree = self._describe(self._scope, positional, named)
        except NotDescribed as error:
            return self._decline(str(error), positional, named)
        entry = self._entry(tree)
        if entry.reason is not None:
            if not entry.as_it_is:  # it was refused behind a call
                self._let_run(entry, tree)
            return self.function(*positional, **named)
        call = Call(positional, named, tree)
        serve = self._call if entry.watched else self._first_call
        return serve(entry, call, device)

    def _runs_as_it_is(self) -> bool:
        if self._rest:
            self._rest -= 1
            return True
        # A capture, of a callable that calls this one, is a mode like others.
        return self._off or modes.foreign_modes() or torch.compiler.is_compiling()

    def _find_device(self, positional: list[Any], named: dict[str, Any]) -> Device | None:
        if self._device is None:
            problem = self._platform.problem()
            if problem is not None:
                self._give_up(f"{problem}. {self._platform.advice()}")
                return None
            index = self._platform.index(tensors_in((positional, named)))
            if index is None:  # it may have tensors of its own
                index = self._platform.current()
            self._device = self._platform.device(index)
        return self._device

    def _watch(self, *positional: Any, device: Device, **named: Any) -> Any:
        """Runs a call as it is, and notes what it does."""
        with watching(self._watched, device):
            result = self.function(*positional, **named)
        self._scope = self._watched.scope()
        return without_spent_graphs(result, ())

    def _describe(self, scope: Scope, positional: list[Any], named: dict[str, Any]) -> Tree:
        """What a call is made of at this moment. Raises NotDescribed."""
        tree = Tree(scope.named, scope.every, scope.codes)
        tree.add_positional(positional)
        tree.add_root("argument", named)
        tree.add_root(self._name, self.function)
        for variables, names in scope.variables:
            tree.add_variables(variables, names)
        for hooks in scope.hooks:
            tree.add_root("a hook on everything", hooks)
        if scope.every:
            for function in tree.functions[:]:
                known = variables_in(function.__code__)
                if known:
                    tree.add_variables(function.__globals__, known)
        tree.add_what_was_met()
        return tree

    def _entry(self, tree: Tree) -> Entry:
        for entry in reversed(self._entries):
            if entry.same_modes() and same(entry.tree, tree):
                self._entries.remove(entry)
                self._entries.append(entry)
                self._news = 0
                tree.vary(entry.varying)
                return entry
        self._note_new(tree)
        entry = Entry(tree, modes.same_modes(), self._varying(tree))
        tree.vary(entry.varying)
        self._entries.append(entry)
        while len(self._entries) > self._programs:
            self._drop(self._entries[:1])
        return entry

    def _varying(self, tree: Tree) -> frozenset[int]:
        """The numbers of a new call that differ from call to call, as far as has been seen."""
        for entry in reversed(self._entries):
            if entry.same_modes() and (differ := differing_numbers(entry.tree, tree)) is not None:
                seen = entry.varying | differ
                return frozenset(
                    n for n in seen if tree.may_vary(n) and tree.path(n) not in self._values
                )
        return frozenset()

    def _note_new(self, tree: Tree) -> None:
        if self._entries:
            alike = [entry.tree for entry in self._entries if entry.same_modes()]
            differences = [first_difference(each, tree) for each in alike]
            why = max(differences)[1] if differences else "torch's modes are others"
            notes.note(f"capture of {self._name}: a call is made of something new: {why}")
        self._rest_after_news()

    def _rest_after_news(self) -> None:
        """Where nothing comes back, fewer and fewer calls are looked at."""
        self._news += 1
        if self._news > _PATIENCE:
            self._rest = min(2 ** (self._news - _PATIENCE), _LONGEST_REST)

    def _first_call(self, entry: Entry, call: Call, device: Device) -> Any:
        """Runs a call as it is, and looks at what it does."""
        watched = functools.partial(self._watch, device=device)
        scope, tree = self._scope, call.tree
        describe = functools.partial(self._describe, scope)
        versions = versions_of(tree.leaves)
        made = run(watched, call.positional, call.named, describe, tree)
        if self._scope != scope:  # its code names more than the tree has: not this one, then
            self._entries.remove(entry)
            return made.value
        entry.watched = made.change is None  # else: perhaps the next one changes nothing
        if entry.watched:
            self._changes = 0
        numbers = [leaf for leaf, place in enumerate(tree.leaf_places) if place in entry.varying]
        entry.chosen = {*tree.given, *touched(tree.leaves, self._watched.touched), *numbers}
        gradients = {place for place, owner in tree.owners.items() if owner.key == "grad"}
        moving = gradients | made.rebound.keys()
        entry.moving = {leaf for place in moving for leaf in tree.leaves_in(place)}
        problem = (
            self._watched.reason
            or self._watched.against_unmet(tree.functions)
            or made.problem()
            or steps_on_host(tree.optimizers, device)
            or against_staging(tree, self._watched.used_on_host, device)
        )
        entry.counted = counted_up(tree.leaves, versions)
        entry.written = self._watched.written_among(tree.leaves)
        entry.collectives = agreement.found(self._watched.collectives)
        given = filter(device.apart, (tree.leaves[leaf] for leaf in tree.given))
        entry.others = frozenset(self._watched.others | {each.device.index for each in given})
        if problem is None and made.waits():
            entry.waits = True
            self._note_second_derivatives(entry, made)
            problem = against_saving(self._watched)
            if problem is None and entry.varying:  # which autograd would keep
                self._keep_values(entry, tree, entry.varying)
                return made.value
        if made.change is not None:
            self._changes += 1
            entry.changes += 1
            why = f"each call changes what it reads: {made.change}"
            if self._changes >= _MOST_CHANGES:
                self._give_up(why)
            elif entry.changes >= _MOST_CHANGES_ALIKE:
                self._refuse(entry, tree, why)
        elif problem is not None:
            self._refuse(entry, tree, problem, self._watched.operator)
        tree.forget()
        return made.value

    def _call(self, entry: Entry, call: Call, device: Device) -> Any:
        """Has the graph serve a call: links it, the first time."""
        tree = call.tree
        if self._takes_none(entry):
            self._refuse(entry, tree, "what must stay in place for its graph moves in each call")
            return self.function(*call.positional, **call.named)
        lifted = arguments_of(tree.leaves, tree.given, entry.chosen)
        if entry.graph is None:
            self._make_graph(entry, tree, lifted, device)
        graph, step = entry.graph, entry.step
        assert graph is not None and step is not None
        arguments = step.begin(call, lifted)
        compared = self._comparing if entry.installed and not graph.collectives else None
        try:
            if compared is None:
                results = cast(Sequence[Any], graph.dispatcher(arguments))
            else:
                describe = functools.partial(self._describe, self._scope)
                value = compared.serve(
                    self._number, graph, step, call, arguments, describe=describe, device=device
                )
            if step.first is not None:
                tree.put(step.first.rebound)
                value = step.first.value
                if entry.waits:
                    self._note_second_derivatives(entry, step.first)
            elif compared is None:
                count_up_versions(tuple(tree.leaves[n] for n in _written(entry, lifted)))
                value = _replayed(entry, results, tree)
            passed_by = compared is not None and step.first is None  # the engine, which had it
        finally:
            step.end()
        entry.replays = graph.dispatcher.replays - passed_by
        self._after(entry, tree, lifted)
        return value

    @staticmethod
    def _takes_none(entry: Entry) -> bool:
        """Whether the program of an entry has not taken a call for long, though they look alike.
        Those that come while another thread's is served do not count. That one may have ended by
        now, so one now and then counts all the same."""
        if not entry.installed or entry.graph is None or entry.graph.dispatcher.busy:
            return False
        served = entry.graph.dispatcher.replays > entry.replays
        entry.refused = 1 if served else entry.refused + 1
        return entry.refused > _MOST_REFUSED

    def _make_graph(
        self, entry: Entry, tree: Tree, lifted: Sequence[Lifted], device: Device
    ) -> None:
        describe = functools.partial(self._describe, self._scope)
        if entry.waits:
            entry.step = TrainingStep(self.function, describe, device)
        else:
            entry.step = Step(self.function, describe, device, entry.varying)
        numbers = [n for n, each in enumerate(lifted) if each.is_number]
        staged = [n for n, each in enumerate(lifted) if each.is_staged(device)]
        stays = [
            number
            for number, each in enumerate(lifted)
            if not each.given and torch.is_tensor(each.value) and each.leaf not in entry.moving
        ]
        entry.graph = CompiledGraph(
            entry.step,
            name=registry.next_name(f"capture of {self._name}"),
            holdings=Holdings(
                allocators=self._watched.allocators,
                visible=functools.partial(visible, device),
                against=functools.partial(self._against, entry, device),
            ),
            constants=stays,
            mutated=[n for n, each in enumerate(lifted) if entry.written & {*each.leaves}],
            watched=range(len(lifted)),
            seen=True,
            collectives=entry.collectives,
            others=entry.others,
            device=device,
            sizes=SignatureRules(capture_at=1, at_once=len(self._entries) <= EAGER),
            together=entry.step.gradients,
            crossing=Crossing(frozenset(staged)),
            numbers=HostNumbers(numbers, entry.step.computed),
        )
        entry.graph.report.host_numbers = [
            tree.path(tree.leaf_places[lifted[n].leaf]) for n in numbers
        ]
        entry.graph.report.not_repeated = sorted(self._watched.not_repeated)
        registry.add(entry.graph)

    def _after(self, entry: Entry, tree: Tree, lifted: Sequence[Lifted]) -> None:
        """Hands the entry to C++ if it has a program now."""
        graph, step = entry.graph, entry.step
        assert graph is not None and step is not None
        if graph.report.state == FALLBACK:
            self._refuse(entry, tree, graph.report.reason or "", lifted=lifted)
        elif entry.reason is not None or entry.installed:  # its backward was refused, perhaps
            pass
        elif graph.dispatcher.size and step.form is not None:
            entry.installed = True
            if self._comparing is None:
                self._install(entry, tree, lifted)
            self._replace_by(entry)
        tree.forget()

    def _install(self, entry: Entry, tree: Tree, lifted: Sequence[Lifted]) -> None:
        graph, step = entry.graph, entry.step
        assert graph is not None and step is not None
        numbers = {place: n for n, place in enumerate(step.slots)}
        rebound = _rebound(step, tree, entry.chosen)
        unread = [step.slots[slot] for slot, _, gone, _ in rebound if gone]
        if isinstance(step, TrainingStep):
            self._make_pending(entry, step, lifted)
        parts = _form(entry).parts
        returned = {place: n for n, place in enumerate(objects_in(parts))}
        self._calls.add(
            nodes=tree.nodes(numbers, unread, returned, entry.chosen),
            roots=tuple(tree.roots[2:]),
            modes=entry.same_modes,
            arguments=[(each.leaf, each.inside, None) for each in lifted],
            rebound=rebound,
            written=_written(entry, lifted),
            output=[
                (kind, returned[index] if kind is OutputKind.OBJECT else index, children, value)
                for kind, index, children, value in parts
            ],
            dispatcher=graph.dispatcher,
            owner=entry,
        )

    # ------------------------------------------------------------------ backwards

    def _make_pending(self, entry: Entry, step: TrainingStep, lifted: Sequence[Lifted]) -> None:
        assert self._device is not None and step.form is not None
        assert step.kept is not None and step.plan is not None
        backward = Backward(
            self._name,
            step.kept,
            step.plan,
            {leaf for each in lifted if not each.given for leaf in each.leaves},
            self._device,
            watch=functools.partial(self._watch_backward, entry),
            refuse=functools.partial(self._refuse_backward, entry),
        )
        entry.pending = Pending(step.form, step.plan, backward)
        calling_thread.settle(self._device.alone())

    def _watch_backward(
        self, entry: Entry, backward: Callable[[], Gradients]
    ) -> tuple[Gradients, Reach | None]:
        # What others link or watch meanwhile goes first.
        if not self._lock.acquire(blocking=False):
            return backward(), None
        try:
            return self._look_at_backward(entry, backward)
        finally:
            self._lock.release()

    def _look_at_backward(
        self, entry: Entry, backward: Callable[[], Gradients]
    ) -> tuple[Gradients, Reach]:
        """Runs a backward of a call of `entry` as it is, and looks at what it does."""
        device, watched, scope = self._device, Watched(), self._scope
        assert device is not None
        describe = functools.partial(self._describe, scope)
        try:
            before = describe([], {})
        except NotDescribed as error:
            self._refuse_backward(entry, str(error))
            return backward(), Reach()

        def watch() -> Gradients:
            with watching(watched, device):
                return backward()

        made = run(watch, [], {}, describe, before)
        reason = watched.reason or against_saving(watched)
        if made.change is not None:
            reason = f"its backward changes what a replay does not: {made.change}"
        elif made.rebound:
            reason = f"its backward puts another tensor in {before.path(min(made.rebound))}"
        self._watched.codes |= watched.codes_of_program()
        self._scope = self._watched.scope()
        if reason is not None:
            self._refuse_backward(entry, reason)
        elif self._scope != scope and entry in self._entries:
            self._replace([entry], "its backward's code reads more than was known")
        seen = Reach(agreement.found(watched.collectives), frozenset(watched.others))
        return cast(Gradients, made.value), seen

    def _note_second_derivatives(self, entry: Entry, made: FinishedRun) -> None:
        """Has later calls run as they are where the gradients of this one are differentiated."""
        note_second_derivatives(made.value, functools.partial(self._refuse_backward, entry))

    def _refuse_backward(self, entry: Entry, reason: str) -> None:
        if entry.reason is None:
            self._stop(entry, reason)

    # ------------------------------------------------------------------ giving up

    def _against(self, entry: Entry, device: Device, words: Sequence[int]) -> str | None:
        """Why addresses that kernels took past torch's operators must not stay in the graph."""
        assert entry.step is not None
        leaves, missing = entry.step.leaves, ""
        for each, _ in tensors_at(words, device):
            found = set(touched(leaves, {object_of(each.untyped_storage())}))
            entry.more |= found
            if not found or found - entry.chosen:
                missing = (
                    "a kernel that no operator of torch's launches reads a tensor of sizes "
                    f"{list(each.shape)} that "
                    + ("was not seen before" if found else "is in nothing that the callable reads")
                )
        return missing or None

    def _refuse(
        self,
        entry: Entry,
        tree: Tree,
        reason: str,
        operator: str | None = None,
        lifted: Sequence[Lifted] = (),
    ) -> None:
        graph = entry.graph
        again = entry.more - entry.chosen and entry.tries < _MOST_TRIES
        if graph is not None and again:  # with these lifted
            entry.chosen |= entry.more
            entry.tries += 1
            entry.graph = entry.step = None
            registry.replace(graph, "there is one that is given what its kernels read besides")
            return
        if entry.varying and graph is not None and not self._refused_with_values(entry):
            assert entry.step is not None
            decided = [tree.leaf_places[lifted[n].leaf] for n in entry.step.decided]
            self._keep_values(entry, tree, decided or entry.varying)
            return
        self._stop(entry, reason, operator)
        self._let_run(entry, tree)

    def _stop(self, entry: Entry, reason: str, operator: str | None = None) -> None:
        """No graph serves calls of `entry` from now on."""
        entry.reason = reason
        self._calls.remove(entry)
        if entry.graph is None:
            self._tell(reason, operator)
        elif entry.graph.report.state != FALLBACK:
            entry.graph.give_up(reason)
        _release(entry)

    def _let_run(self, entry: Entry, tree: Tree) -> None:
        """Has the engine call the callable where calls are made of the same."""
        entry.as_it_is = True
        if self._comparing is not None:
            return
        self._calls.add_as_it_is(
            nodes=tree.nodes({}),
            roots=tuple(tree.roots[2:]),
            modes=entry.same_modes,
            function=self.function,
            owner=entry,
        )

    def _refused_with_values(self, entry: Entry) -> bool:
        """Whether calls with certain numbers have got no program either."""
        others = [each for each in self._entries if each is not entry and each.reason is not None]
        return any(each.same_modes() and same(entry.tree, each.tree) for each in others)

    def _keep_values(self, entry: Entry, tree: Tree, places: Collection[int]) -> None:
        """Gives up that numbers of an entry vary."""
        self._values |= {tree.path(place) for place in places}
        self._replace([entry], "there is a program for each of these numbers")

    def _decline(self, reason: str, positional: list[Any], named: dict[str, Any]) -> Any:
        """Runs a call that cannot be described."""
        self._rest_after_news()
        notes.note(f"capture of {self._name}: a call runs as it is: {reason}")
        return self.function(*positional, **named)

    def _give_up(self, reason: str) -> None:
        self._off = True
        self._tell(reason)

    def _tell(self, reason: str, operator: str | None = None) -> None:
        """Of calls that get no graph, and have no report of one."""
        name = registry.next_name(f"capture of {self._name}")
        registry.add_fallback(name, reason, self._platform.name, operator)
        warn_once(f"{self._name} runs without a CUDA graph: {reason}")

    def _replace_by(self, entry: Entry) -> None:
        """Drops the entries of certain numbers that calls may have others of by now."""
        others = [each for each in self._entries if each is not entry and each.same_modes()]
        covered = [each for each in others if same(entry.tree, each.tree)]
        self._replace(covered, "there is one for calls with other numbers, too")

    def _replace(self, entries: Sequence[Entry], reason: str) -> None:
        for entry in entries:
            if entry.graph is not None:
                registry.replace(entry.graph, reason)
        self._drop(entries)

    def _drop(self, entries: Sequence[Entry]) -> None:
        for entry in list(entries):
            self._entries.remove(entry)
            self._calls.remove(entry)
            _release(entry)


def _release(entry: Entry) -> None:
    if entry.graph is not None:
        entry.graph.release()
    if entry.pending is not None:
        entry.pending.release()


def _rebound(step: Step, tree: Tree, chosen: Collection[int]) -> list[tuple[int, int, bool, Any]]:
    """(slot, result, whether what is there is given up, what makes a DTensor of the result, or
    None) of what a call rebinds. A gradient that the graph does not read is given up in front of
    the launch, which may have its memory then, as a callable that begins with zero_grad() has."""
    assert step.form is not None
    returned = {part[1] for part in step.form.parts if part[0] is OutputKind.LEAF}
    needed = {*chosen, *returned, *step.form.bound_leaves}
    found, met = [], tree.met_elsewhere()
    for slot, (place, result) in enumerate(zip(step.slots, step.form.bound, strict=True)):
        inside = tree.leaves_in(place)
        below = bisect.bisect_right(met, place), bisect.bisect_left(met, tree.places[place].end)
        alone = len(inside) == 1 and below[0] == below[1]
        gone = alone and inside[0] not in needed and tree.owners[place].key == "grad"
        found.append((slot, result, gone, step.form.made.get(slot)))
    return found


def _written(entry: Entry, lifted: Sequence[Lifted]) -> list[int]:
    """The leaves whose versions a call of an entry counts up: those that the callable itself counts
    up, and unless a backward is to come, all that were found to be written."""
    assert entry.graph is not None
    arguments = (lifted[number] for number in sorted(entry.graph.written))
    leaves = {leaf for each in arguments for leaf in each.leaves}
    return sorted(entry.counted if entry.waits else entry.counted | leaves)


def _form(entry: Entry) -> Returned | Pending:
    """How what a call returns is made of a graph's results."""
    assert entry.step is not None and entry.step.form is not None
    return entry.pending or entry.step.form


def _replayed(entry: Entry, results: Sequence[Any], tree: Tree) -> Any:
    """What a call returns that a program has served on the slow path."""
    step = entry.step
    assert step is not None and step.form is not None
    values = step.form.bound_values(results, tree.leaves)
    tree.put(dict(zip(step.slots, values, strict=True)))
    return _form(entry).build(results, tree.leaves, tree.walked)


@overload
def capture(
    function: Callable[Arguments, Result],
    *,
    device: str = ...,
    max_programs: int = ...,
    debug: str = ...,
) -> Captured[Arguments, Result]: ...
@overload
def capture(
    function: None = None, *, device: str = ..., max_programs: int = ..., debug: str = ...
) -> Callable[[Callable[Arguments, Result]], Captured[Arguments, Result]]: ...
def capture(
    function: Callable[..., Any] | None = None,
    *,
    device: str = "cuda",
    max_programs: int = PROGRAMS,
    debug: str = "off",
) -> Any:
    """Makes `function` a callable that is replayed as one CUDA graph: a model, a training step, a
    decode step, with torch.compile inside or without.

        step = pygraph.capture(step)

        @pygraph.capture
        def step(batch): ...

        with pygraph.capture(step) as fast:  # graphs and their memory are dropped at the end
            ...

    Its first calls run as they are; then it is captured, proven, and replayed. Arguments are any
    tree of containers, tensors, numbers and texts, new tensors in each call: nothing is copied, and
    results may be kept. What the callable reads besides (parameters, buffers, attributes, optimizer
    state, variables around it) is found by itself and compared in each call; what it writes or
    rebinds (parameters, gradients, attributes that get new tensors) is written and rebound by a
    replay, too. Calls that are made of something new (other shapes, other numbers, another mode)
    get a program of their own, up to `max_programs`, of which the one used longest ago goes first.

    Results may wait for a backward, which gets graphs of its own, as those of
    pygraph.make_graphed_callables do.

    What a replay cannot stand for runs as it is, and pygraph.report() says why: what waits for a
    value of the device, changes Python's state, or draws random numbers on the host.

    With debug="compare" each call that a graph would serve is served twice, from the same state: by
    a replay, which is rewound, and by the callable as it is, whose results and state the caller
    gets. What differs by more than the callable differs from itself is named, with the call, in a
    warning and in pygraph.report(). Backwards that the program calls later are not compared.

    `device` is "cuda", or "twin" to try it on the CPU. Raises TypeError for what is no callable,
    ValueError for a wrong option. May be called by several threads at a time; one call is watched
    or linked at a time, and others run as they are meanwhile.
    """
    if function is None:
        return functools.partial(capture, device=device, max_programs=max_programs, debug=debug)
    if not callable(function):
        raise TypeError(f"pygraph.capture takes a callable, found a {type(function).__name__}")
    if device not in devices.PLATFORMS:
        known = ", ".join(map(repr, devices.PLATFORMS))
        raise ValueError(f"device is {device!r}; it must be one of {known}")
    if max_programs < 1:
        raise ValueError(f"max_programs is {max_programs}; it must be 1 or more")
    if debug not in DEBUG:
        raise ValueError(f"debug is {debug!r}; it must be one of {', '.join(map(repr, DEBUG))}")
    return Captured(function, devices.PLATFORMS[device], max_programs, debug)
