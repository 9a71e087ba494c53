"""Where objects of a kind keep what a callable may compute from.

A program's own objects, and most of the standard library's, keep it in attributes, which can be
walked. Others keep it in C: a queue, a generator of random numbers, an open file. Nothing tells
whether that is what it was, so a callable that reads one runs as it is. CPython itself can say
which these are: an object whose memory is larger than its attributes need cannot be pickled by
them (object.__reduce_ex__), and hides something.

Torch's, NumPy's and Triton's objects are told by their identity, but for those in which programs
keep state. (Inductor's code sets one of Triton's context variables in front of each kernel.)
"""

from __future__ import annotations

import enum
import functools
import struct
import sys
import threading
import types
from typing import Any

import torch

from pygraph.torch_private.distributed import REDUCER
from pygraph.torch_private.dynamo import ORIGINAL


class Keeps(enum.Enum):
    """Where the state of an object is, of which another call may find another one."""

    NOTHING = enum.auto()  #: it has none, or none that a computation reads: the object is it
    ATTRIBUTES = enum.auto()
    HIDDEN = enum.auto()


_OWN_LIBRARIES = ("torch", "numpy", "triton", "pygraph")
#: Where objects of libraries have state of a program: kinds, and packages.
_KEEPERS = (torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, threading.local)
_KEEPING = (
    "torch.optim.", "torch.distributions.", "torch.distributed.fsdp.", "numpy.random.", "numpy.ma.",
)  # fmt: skip
#: What a program sets attributes of as it does of its own objects.
_NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace")
#: Modules of the standard library whose objects are values, or do their work beside a computation.
_STATELESS = frozenset(
    [
        "abc",
        "ast",
        "contextlib",
        "datetime",
        "enum",
        "fractions",
        "functools",
        "importlib",
        "inspect",
        "ipaddress",
        "logging",
        "numbers",
        "operator",
        "pathlib",
        "re",
        "types",
        "typing",
        "uuid",
        "warnings",
        "zoneinfo",
    ]
)
_STATELESS_KINDS = frozenset(
    {
        types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
        types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
        types.MemberDescriptorType, types.CodeType, types.GenericAlias, types.UnionType,
        types.TracebackType, type(NotImplemented), property, staticmethod, classmethod, super,
        type(threading.Lock()), type(threading.RLock()),
    }
)  # fmt: skip
_STATELESS_NAMES = ("builtins.PyCapsule", "decimal.Decimal")
#: Where a wrapper has what it wraps.
WRAPPED = (ORIGINAL, "__wrapped__")
#: Of what a function's defaults may be and stay the same.
_NEVER_WRITTEN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_POINTER = struct.calcsize("P")


def is_library(module: Any) -> bool:
    """Whether the variables of a module of this name are no program's state."""
    top = _package(module)
    return (top in sys.stdlib_module_names and top != "__main__") or top in _OWN_LIBRARIES


def _package(module: Any) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


@functools.lru_cache(maxsize=4096)
def kept_by(kind: type) -> Keeps:
    """Where objects of a kind have their state; of a kind that Tree knows no better of."""
    top = _package(kind.__module__)
    if keeps_attributes_of_programs(kind):
        return Keeps.ATTRIBUTES
    if _name(kind) == REDUCER:
        return Keeps.HIDDEN
    if top in _OWN_LIBRARIES and not f"{kind.__module__}.".startswith(_KEEPING):
        return Keeps.NOTHING
    library = is_library(kind.__module__)
    if (
        (library and top in _STATELESS)
        or kind in _STATELESS_KINDS
        or _name(kind) in _STATELESS_NAMES
        or issubclass(kind, BaseException)
    ):
        return Keeps.NOTHING
    if _hides(kind):
        constant = _is_function(kind, library) or _is_enumeration(kind)
        return Keeps.NOTHING if constant else Keeps.HIDDEN
    # Of an object without attributes there is the object; a program's may be any of its kind.
    bare = not kind.__dictoffset__ and not slots(kind)
    return Keeps.NOTHING if library and bare else Keeps.ATTRIBUTES


def keeps_attributes_of_programs(kind: type) -> bool:
    """Whether a program reads the attributes of a library's objects as it does those of its own."""
    return issubclass(kind, _KEEPERS) or _name(kind) in _NAMESPACES


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _hides(kind: type) -> bool:
    """Whether objects of a kind have more than attributes; what torch adds to a program's own kind
    does not count."""
    if any(_package(each.__module__) == "torch" for each in kind.__mro__):
        return False
    attributes = int(kind.__dictoffset__ > 0) + int(kind.__weakrefoffset__ > 0) + len(slots(kind))
    return bool(kind.__itemsize__) or (
        kind.__basicsize__ > object.__basicsize__ + _POINTER * attributes
    )


def _is_function(kind: type, library: bool) -> bool:
    """Whether what is hidden is code: a compiled kernel, a function of another language."""
    called = any("__call__" in vars(each) for each in kind.__mro__)
    return called and (library or not kind.__dictoffset__)


def _is_enumeration(kind: type) -> bool:
    return hasattr(kind, "__members__")  # as pybind11 and nanobind make them


def slots(kind: type) -> list[str]:
    """The attributes that have a place of their own in objects of a kind."""
    found: list[str] = []
    for each in kind.__mro__:
        listed = vars(each).get("__slots__", ())
        found += (
            _mangled(name, each) for name in ([listed] if isinstance(listed, str) else listed)
        )
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _mangled(name: str, kind: type) -> str:
    """What a name in the body of a class is outside of it (the Python Tutorial, 9.6)."""
    private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if private else name


def is_of_numpy(value: Any) -> bool:
    """Whether this is an array of NumPy's, or a scalar, and nothing more than that."""
    numpy = sys.modules.get("numpy")
    known = numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))
    return known and type(value).__module__ == "numpy"


def functions_of(value: Any) -> list[types.FunctionType]:
    """The functions behind an attribute of a class, and those that they wrap."""
    found: list[Any] = [value]
    if isinstance(value, (staticmethod, classmethod)):
        found = [value.__func__]
    elif isinstance(value, property):
        found = [value.fget, value.fset, value.fdel]
    elif isinstance(value, functools.cached_property):
        found = [value.func]
    for each in found:  # which grows
        inner = [vars(each)[name] for name in WRAPPED if name in getattr(each, "__dict__", ())]
        found += [one for one in inner if not any(one is known for known in found)]
    return [each for each in found if isinstance(each, types.FunctionType)]


def is_open(function: types.FunctionType) -> bool:
    """Whether a function reads more than its code that may change while it stays the same: the
    variables of a function around it, or defaults that can be written. `__class__` is super()'s.
    """
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    around = any(name != "__class__" for name in function.__code__.co_freevars)
    return around or any(not isinstance(each, _NEVER_WRITTEN) for each in defaults)
