"""What kernels that Inductor has made read and write, by the names of their arguments."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing.holdings import Tell
from pygraph.operators import accesses
from pygraph.torch_private.inductor import kernel_class, parameters_of

#: What a kernel reads and does not write, and what it writes within the tensor that it is given
#: (torch/_inductor/codegen/common.py, KernelArgs). Within the memory of that tensor, if it is said
#: to be mutated: what is written is a view then, of which a kernel is given the base. It may be
#: wider than that (torch/_inductor/lowering.py, inplace_constant_pad_nd).
_READ = re.compile(r"in_ptr\d+")
_WRITTEN = re.compile(r"(in_)?out_ptr\d+")


@contextlib.contextmanager
def observed(tell: Tell) -> Iterator[None]:
    """While on, generated code's launches on this thread are made by `tell`."""
    kernel = kernel_class()
    if kernel is None:
        yield
        return
    original, owner = kernel.run, threading.get_ident()

    def run(this: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != owner:
            return original(this, *args, **kwargs)
        return tell(lambda: original(this, *args, **kwargs), lambda: touches_of(this, args))

    kernel.run = run
    try:
        yield
    finally:
        kernel.run = original


def touches_of(kernel: Any, args: Sequence[Any]) -> list[_engine.Touch]:
    """Of a launch; none of a kernel of the program's own, and no more than is said by names: the
    memory of others is read and written as far as it goes."""
    known = parameters_of(kernel)
    if known is None:
        return []
    names, mutated = known
    found = []
    for name, value in zip(names, args, strict=False):
        if not isinstance(value, torch.Tensor) or not value.numel():
            continue
        if _WRITTEN.fullmatch(name):
            found.append(accesses.writing(value, name in mutated))
        elif _READ.fullmatch(name) and name not in mutated:
            found.append(accesses.reading(value))
    return found
