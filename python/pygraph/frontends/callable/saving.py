"""What autograd saves while a callable runs.

A forward returns what autograd saves for its backward, so each tensor that is saved gets a number.
In a real run the saved tensor stays behind its number, and the backward of what the callable
returned is an eager one. In a capture only the number stays: autograd's graph then holds no memory,
and its nodes run on whatever tensors a table has at the time (kept.py).

Such a graph must end in leaves of its own. Those of the caller have nodes that accumulate their
gradients, which know the stream that they were made for, run the caller's hooks, and would be kept
alive. So while it is captured, functions of torch's get an alias in place of each tensor outside of
the capture that requires grad. Aliases have the tensors' addresses, so operators get what stands
for these (lifting.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from pygraph.capturing import tensors
from pygraph.capturing.device import CaptureFailed
from pygraph.torch_private.autograd import surround_arguments_of_functions
from pygraph.torch_private.dispatch import DisableDispatch, tree_map
from pygraph.torch_private.tensors import version

#: Attributes of a tensor that are tensors made from it; what else is read or set is its own.
_DERIVED = frozenset(getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH"))
_ACCESSORS = ("__get__", "__set__", "__delete__")


class Table(threading.local):
    """The tensors that the nodes of one captured graph of autograd's run on, on this thread."""

    tensors: list[torch.Tensor] | None = None


@dataclasses.dataclass(frozen=True)
class _Numbered:
    """Stands for a saved tensor of a capture."""

    table: Table
    number: int

    def unpack(self) -> torch.Tensor:
        """Raises CaptureFailed while there are none: the callable itself runs a backward."""
        if self.table.tensors is None:
            raise CaptureFailed("it differentiates what its caller is to differentiate once more")
        return self.table.tensors[self.number]


@dataclasses.dataclass(frozen=True)
class _Held:
    """Stands for a saved tensor of a real run."""

    tensor: torch.Tensor
    version: int

    def unpack(self) -> torch.Tensor:
        """Raises RuntimeError for a tensor that was written since, as autograd does where no hooks
        are."""
        now = version(self.tensor)
        if now != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{self.tensor.type()} {list(self.tensor.shape)}] is at "
                f"version {now}; expected version {self.version} instead."
            )
        return self.tensor


@dataclasses.dataclass(frozen=True)
class Saved:
    """One tensor that was saved, without autograd's graph behind it."""

    tensor: torch.Tensor
    version: int  #: when it was

    @property
    def written_since(self) -> bool:
        return bool(version(self.tensor) != self.version)


@dataclasses.dataclass
class Savings:
    """What one run has left."""

    saved: list[Saved] = dataclasses.field(default_factory=list)
    table: Table | None = None  #: of a capture
    #: Of a capture: where backwards from the tensors that it returned begin, by id().
    edges: dict[int, GradientEdge] = dataclasses.field(default_factory=dict)

    def clear(self) -> None:
        """Autograd's nodes may know this, for their hooks do: they must not keep memory by it, nor
        themselves."""
        self.saved.clear()
        self.edges.clear()


class Saving:
    """Calls a function, and collects what autograd saves meanwhile. One call at a time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        #: What a call can find outside of the capture that it is made in; None: it is in none.
        self.outside: list[Any] | None = None
        self._aliases: Aliases | None = None
        self._left = Savings()

    @property
    def aliases(self) -> dict[int, int]:
        """The numbers of the leaves that the last capture's aliases stand for, by id()."""
        return {} if self._aliases is None else self._aliases.numbers

    @contextlib.contextmanager
    def left(self) -> Iterator[Savings]:
        """What the last call has left; gone at the end."""
        try:
            yield self._left
        finally:
            self.forget()

    def forget(self) -> None:
        """Lets go of what the last call has left."""
        self._left.clear()
        self._aliases, self.outside = None, None

    def __call__(self, *positional: Any, **named: Any) -> Any:
        self._left = left = Savings()
        if self.outside is None:
            with _saved_into(left):
                return self._function(*positional, **named)
        left.table, self._aliases = Table(), Aliases(self.outside)
        try:
            with _saved_into(left), self._aliases:
                value = self._function(*positional, **named)
        except BaseException:
            self.forget()  # phantom memory
            raise
        return _cut_off(value, left.edges)


def _saved_into(left: Savings) -> Any:
    """Has autograd save numbers."""

    def pack(tensor: torch.Tensor) -> _Numbered | _Held:
        found = Saved(tensor.detach(), version(tensor))
        left.saved.append(found)
        if left.table is None:
            return _Held(found.tensor, found.version)
        return _Numbered(left.table, len(left.saved) - 1)

    return saved_tensors_hooks(pack, lambda packed: packed.unpack())


def _cut_off(value: Any, edges: dict[int, GradientEdge]) -> Any:
    """What a capture returned, detached; `edges` gets where backwards from it begin."""
    known: dict[int, torch.Tensor] = {}

    def cut(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or each.grad_fn is None:
            return each
        if id(each) not in known:
            known[id(each)] = each.detach()
            edges[id(known[id(each)])] = get_gradient_edge(each)
        return known[id(each)]

    return tree_map(cut, value)


class _Now(threading.local):
    """Of this thread."""

    aliases: Aliases | None = None


_now = _Now()


class Aliases(TorchFunctionMode):
    """While on, functions of torch's that this thread calls get aliases in place of tensors that
    require grad."""

    def __init__(self, leaves: Iterable[Any]) -> None:
        super().__init__()
        self._of: dict[int, torch.Tensor] = {}
        self._originals: dict[int, torch.Tensor] = {}
        self.numbers: dict[int, int] = {}
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.numel():
                alias = _alias(leaf)
                self._of[id(leaf)] = alias
                self._originals[id(alias)] = leaf
                self.numbers[id(alias)] = number

    def __enter__(self) -> Any:
        surround_arguments_of_functions(_with_aliases)  # which torch's function modes do not see
        _now.aliases = self
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        _now.aliases = None
        super().__exit__(*raised)

    def into(self, values: Any) -> Any:
        """With aliases in place of the tensors that have one."""
        return tree_map(lambda each: self._of.get(id(each), each), values)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _ACCESSORS and func not in _DERIVED:
            return func(*args, **(kwargs or {}))
        result = func(*self.into(args), **self.into(kwargs or {}))
        return tree_map(lambda each: self._originals.get(id(each), each), result)


def _with_aliases(original: Callable[[Any], Any], args: Any) -> Any:
    """The arguments of a torch.autograd.Function."""
    aliases = _now.aliases
    return original(args if aliases is None else aliases.into(args))


def _alias(leaf: torch.Tensor) -> torch.Tensor:
    """A tensor on the same memory, which it does not keep alive."""
    with DisableDispatch():
        alias = tensors.at_address(leaf, leaf.data_ptr(), tensors.extent_bytes(leaf))
    return alias.requires_grad_()
