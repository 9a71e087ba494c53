"""The recorder: any PyTorch code becomes a captured graph of the CPU twin.

While it records, a dispatch mode takes every operator. What computes becomes a kernel node whose
parameter block holds the addresses of its tensors and its numbers; copies and fills become the
driver's own nodes; views really run, because they touch no data. Nothing is computed: results are
tensors on phantom addresses, one buffer each, never used again. A replay rebuilds the tensors from
the addresses in the block, wherever they point by then, and runs the operator.

A replay draws its random numbers when it runs, like the operators that it runs: from torch's
default generator, or from one that was passed, whose address it finds in memory that the capture
had for it. What needs the values in a tensor raises NotRecordable, and so does writing to memory
that is neither an argument nor made by the capture.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from pygraph import _engine
from pygraph.operators import accesses, known
from pygraph.torch_private.dispatch import DisableFunction, UnseenByDynamo, taken_apart
from pygraph.torch_private.tensors import object_of
from pygraph.twin import faults, generator_state, layouts, operations, resized
from pygraph.twin.layouts import TensorLayout
from pygraph.twin.operations import Alias, OperatorCall, Unsupported
from pygraph.twin.operators import Operator, Treatment, operator_of
from pygraph.twin.predict import ValueDependent


class NotRecordable(RuntimeError):
    """`operator` (such as "aten.nonzero.default") cannot be in a graph; the message says why."""

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(f"{operator} {reason}")
        self.operator = operator
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A captured graph. `keep` holds memory that the capture found and did not make (constants,
    weights in closures); its addresses stand in the graph as they are, so it must live as long as
    a graph linked from this capture."""

    graph: _engine.CapturedGraph
    outputs: list[Any]
    buffers: list[tuple[int, int]]  #: (address, bytes) of all that was allocated, in order
    keep: list[Any]
    known: list[_engine.KnownNodes]  #: what each operator's nodes read and write


class RecorderMemory(Protocol):
    """Where what a capture allocates gets its addresses: phantom memory, or such that is there."""

    def allocate(self, bytes: int) -> int: ...
    def contains(self, address: int) -> bool: ...


def record(
    function: Callable[[list[Any]], Any],
    inputs: Sequence[Any],
    space: RecorderMemory,
    stream: _engine.Stream,
    generators: Sequence[tuple[torch.Generator, int]] = (),
    observed: bool = False,
) -> Recorded:
    """Captures `function(inputs)` on a stream of the twin. Tensors among the inputs stand on
    phantom or on real memory; nothing of theirs is read or written. `generators` among them, other
    than the default one, may be drawn from: where a replay finds their addresses. `observed`: what
    nodes read and write is noted. Raises NotRecordable, or what the function or the driver raises;
    the stream is not capturing any more then."""
    faults.begin_capture()
    _engine.begin_capture(stream.handle, twin=True)
    mode = _Recorder(inputs, space, stream.handle, generators, observed)
    try:
        with _reads_refused(), resized.followed(mode.allocate), mode:
            outputs = function(list(inputs))
    except BaseException:
        with contextlib.suppress(_engine.DriverError):
            _engine.end_capture(stream.handle, twin=True)
        raise
    graph = _engine.end_capture(stream.handle, twin=True)
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    return Recorded(graph, listed, mode.buffers, mode.keep, mode.known)


#: Ways to a tensor's values that pass no operator.
_READS = ("tolist", "numpy", "__array__", "__dlpack__")
_recording = threading.RLock()


@contextlib.contextmanager
def _reads_refused() -> Iterator[None]:
    """While on, this thread cannot read a tensor's values. (Not by a torch-function mode: code that
    asks has_torch_function would take another way than it takes uncaptured.)"""
    owner = threading.get_ident()

    def refusing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == owner:
                raise NotRecordable(f"Tensor.{name}", "reads values out of a tensor")
            return original(*args, **kwargs)

        return read

    with _recording:
        own = {name: vars(torch.Tensor)[name] for name in _READS if name in vars(torch.Tensor)}
        try:
            for name in _READS:
                setattr(torch.Tensor, name, refusing(name, getattr(torch.Tensor, name)))
            yield
        finally:
            for name in _READS:
                if name in own:
                    setattr(torch.Tensor, name, own[name])
                else:
                    delattr(torch.Tensor, name)


class _Recorder(UnseenByDynamo):
    def __init__(
        self,
        inputs: Sequence[Any],
        space: RecorderMemory,
        stream: int,
        generators: Sequence[tuple[torch.Generator, int]],
        observed: bool,
    ) -> None:
        super().__init__()
        # An operator may be given another object for the same generator.
        self._generators = {object_of(generator): place for generator, place in generators}
        self.buffers: list[tuple[int, int]] = []
        self.keep: list[Any] = []
        self.known: list[_engine.KnownNodes] = []
        self._observed = observed
        self._space = space
        self._stream = stream
        self._inputs = frozenset(
            object_of(value.untyped_storage())
            for value in inputs
            if isinstance(value, torch.Tensor)
        )

    def see(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if generator_state.is_higher_order(func):
            return self._higher_order(func, args, kwargs)
        operator = operator_of(func)
        if operator.refusal:
            raise NotRecordable(str(func), operator.refusal)
        if operator.treatment is Treatment.REAL:
            return func(*args, **kwargs)
        if operator.treatment is Treatment.COMPOSITE:
            with self:
                return taken_apart(func, args, kwargs)
        before = self._count()
        try:
            with DisableFunction():
                result = self._record(func, operator, args, kwargs)
            self._note(before, func, args, kwargs, result)
            return result
        except (ValueDependent, Unsupported) as error:
            raise NotRecordable(str(func), str(error)) from None

    def _count(self) -> int:
        return int(_engine.captured_nodes(self._stream, twin=True)) if self._observed else 0

    def _note(self, before: int, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if (after := self._count()) > before:
            self.known.append(accesses.known_nodes((before, after), func, args, kwargs, result))

    def _higher_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        def with_operator(inner: Any, args: Any, kwargs: Any) -> Any:
            return self.see(inner, args, kwargs)

        before, inside = self._count(), len(self.known)
        result = generator_state.record(func, args, kwargs, with_operator)
        if result is NotImplemented:
            raise NotRecordable(func.name(), "is a higher-order operator")
        del self.known[inside:]  # its nodes are one operator's, which draws
        self._note(before, func, args, kwargs, result)
        return result

    def _record(self, func: Any, operator: Operator, args: Any, kwargs: Any) -> Any:
        args, kwargs = operator.from_tensor(args, kwargs)
        call = operator.call(args, kwargs, self._generators)
        for tensor in call.tensors:
            if tensor.numel() and not self._space.contains(resized.address_of(tensor)):
                self.keep.append(tensor)
        written = known.written(func, args, kwargs)
        for tensor in written:
            self._require_ours(func, tensor)
        treatment = operator.treatment
        if treatment is Treatment.COPY and self._copied(args[0], args[1]):
            return args[0]
        if treatment is Treatment.ZERO and args[0].is_contiguous():
            self._fill(args[0])
            return args[0]
        places = [i for i, t in enumerate(call.tensors) if any(t is other for other in written)]
        results, key = operations.results_of(
            func, call, operator.alias_numbers(call, args, kwargs), places
        )
        with layouts.below():
            return self._node(func, operator, args, call, results, key)

    def _node(
        self, func: Any, operator: Operator, args: Any, call: OperatorCall, results: Any, key: Any
    ) -> Any:
        """Makes the results and the node that computes them."""
        fresh: list[torch.Tensor] = []
        front = args[0].storage_offset() if operator.keeps_offset else 0
        made = [self._result(result, call, fresh, front) for result in results]
        treatment = operator.treatment
        if treatment is Treatment.ZEROS:
            self._fill(made[0])
        elif treatment is not Treatment.EMPTY and not (
            treatment is Treatment.CLONE and self._copied(made[0], args[0])
        ):
            self._launch(func, call, results, key, fresh)
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    def _require_ours(self, func: Any, tensor: torch.Tensor) -> None:
        ours = (
            tensor.numel() == 0
            or self._space.contains(resized.address_of(tensor))
            or object_of(tensor.untyped_storage()) in self._inputs
        )
        if not ours:
            raise NotRecordable(
                str(func), "writes memory that is neither an argument nor made by the capture"
            )

    def allocate(self, nbytes: int) -> int:
        """Where a buffer of the graph's begins."""
        address = self._space.allocate(nbytes)
        self.buffers.append((address, nbytes))
        return address

    def _result(
        self, result: Any, call: OperatorCall, fresh: list[torch.Tensor], front: int
    ) -> Any:
        """`front`: elements of the result's storage before its first one."""
        if isinstance(result, TensorLayout):
            nbytes = result.nbytes()
            if nbytes == 0:
                return layouts.empty(result)
            before = front * result.dtype.itemsize
            address = self.allocate(before + nbytes)
            fresh.append(layouts.at_address(address + before, result, nbytes, front))
            return fresh[-1]
        if isinstance(result, list):
            return [self._result(item, call, fresh, front) for item in result]
        return call.tensors[result] if isinstance(result, Alias) else result

    def _launch(
        self, func: Any, call: OperatorCall, results: Any, key: Any, fresh: list[torch.Tensor]
    ) -> None:
        words = [*call.words, *(tensor.data_ptr() for tensor in fresh)]
        kinds = "".join(call.kinds) + "p" * len(fresh)
        align = 1
        if faults.active():
            kinds, align = faults.disturb(kinds, words), faults.alignment()
        operation = operations.intern(func, call, results, key, kinds, align)
        _engine.twin_launch_operation(self._stream, operation.number, words)

    def _fill(self, tensor: torch.Tensor) -> None:
        nbytes = layouts.layout_of(tensor).nbytes()
        if nbytes:
            _engine.twin_fill(self._stream, resized.address_of(tensor), 0, nbytes)

    def _copied(self, to: torch.Tensor, source: torch.Tensor) -> bool:
        """Records a copy as the driver's own node, when bytes are all there is to copy."""
        layout = layouts.layout_of(to)
        same = layouts.layout_of(source) == layout and to.is_contiguous()
        if same and (nbytes := layout.nbytes()):
            places = resized.address_of(to), resized.address_of(source)
            _engine.twin_copy(self._stream, *places, nbytes)
        return same
