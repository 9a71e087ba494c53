"""What two runs of one program must have in common, and how a difference is told."""

from __future__ import annotations

import re
from typing import Any

import torch

#: An object's id or a pointer.
_ADDRESS = re.compile(r"0x[0-9a-f]+|[0-9]{9,}")


class Mismatch(AssertionError):
    """The two sides differ; `what` names the kind of difference."""

    def __init__(self, what: str, where: str, details: str = "") -> None:
        super().__init__(f"{what} of {where}{': ' if details else ''}{details}")
        self.what = what


def error_text(error: BaseException) -> str:
    """What was raised, without what differs from run to run."""
    # Dynamo wraps what a backend raises, and names the backend. Some texts have addresses.
    cause = getattr(error, "inner_exception", error)
    text = _ADDRESS.sub("#", "".join(str(cause).splitlines()[:1]))
    return f"{type(error).__name__}, {type(cause).__name__}: {text}"


def same_value(a: Any, b: Any, where: str) -> None:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        if type(a) is not type(b) or a != b:
            raise Mismatch("value", where, f"{a!r}, {b!r}")
        return
    pairs = [
        ("dtype", a.dtype, b.dtype),
        ("device", a.device, b.device),
        ("shape", a.shape, b.shape),
        ("strides", a.stride(), b.stride()),
        ("storage offset", a.storage_offset(), b.storage_offset()),
    ]
    for what, left, right in pairs:
        if left != right:
            raise Mismatch(what, where, f"{left}, {right}")
    if not same_bits(a, b):
        raise Mismatch("bits", where, text_of(a, b))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if a.numel() == 0:
        return True
    a, b = a.detach(), b.detach()
    if a.is_conj() or a.is_neg():
        a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    kind = _INTEGERS[a.element_size()]
    if torch.equal(a.view(kind), b.view(kind)):
        return True
    return a.is_cuda and a.is_floating_point() and _rounded(a, b)


def _rounded(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors differ by no more than the order of a sum explains."""
    tolerance = 1e-4 if a.element_size() > 2 else 3e-2
    left, right = a.double(), b.double()
    scale = left[left.isfinite()].abs().max() if left.isfinite().any() else 0.0
    absolute = float(tolerance * scale)
    return torch.allclose(left, right, rtol=tolerance, atol=absolute, equal_nan=True)


def text_of(a: torch.Tensor, b: torch.Tensor) -> str:
    return f"\n  expected {a.flatten()[:12].tolist()}\n  found    {b.flatten()[:12].tolist()}"
