"""Tensors and what stands behind them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from pygraph.torch_private.dispatch import PLAIN
from pygraph.torch_private.names import attribute, bound

TensorBase = bound("torch._C:TensorBase")
storage_at = bound("torch._C:_construct_storage_from_data_pointer")
copy_each = bound("torch:_foreach_copy_")
negated = bound("torch:_neg_view")
conjugated = bound("torch:_conj")
dispatch_keys = bound("torch._C:_dispatch_keys")

#: What a DTensor has its layout under (torch/distributed/tensor/_api.py).
_LAYOUT = "_spec"

storage_uses = bound("torch._C:_storage_Use_Count")

version = attribute("_version", TensorBase)
set_versions = bound("torch._C._autograd:_unsafe_set_version_counter")

#: The address of the C++ object behind a tensor, a storage or a generator: who has the same is it.
object_of = attribute("_cdata", TensorBase, torch.UntypedStorage, torch.Generator)


def holders(tensor: torch.Tensor) -> int:
    """How many tensors there are in its memory, those of autograd's included."""
    return int(storage_uses(object_of(tensor.untyped_storage()))) - 1  # Python's object is one


def parts_of(value: Any) -> list[str]:
    """Under which names a tensor that is made of others has these; [] of any other value."""
    if not isinstance(value, torch.Tensor) or type(value).__torch_dispatch__ is PLAIN:
        return []
    flatten = getattr(value, "__tensor_flatten__", None)
    return list(flatten()[0]) if flatten is not None else []


def description_of(value: Any) -> tuple[str, Any] | None:
    """Of a DTensor, under which name it has what says how its parts make it, a dataclass, and that;
    None of any other value."""
    if not parts_of(value):
        return None
    description = getattr(value, _LAYOUT, None)
    return (_LAYOUT, description) if dataclasses.is_dataclass(description) else None


def fields_of(description: Any) -> tuple[dict[str, Any], bool]:
    """Of what says how a DTensor is made, and whether they stand in its __dict__."""
    fields = {
        each.name: getattr(description, each.name) for each in dataclasses.fields(description)
    }
    return fields, fields.keys() <= getattr(description, "__dict__", {}).keys()


@dataclasses.dataclass(frozen=True)
class DTensorLayout:
    """How a DTensor is made of its part."""

    kind: Any
    description: Any

    def made_of(self, part: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.kind(part, self.description, requires_grad=False)
        return found


def part_and_layout(value: torch.Tensor) -> tuple[torch.Tensor, DTensorLayout] | None:
    """The tensor that a DTensor is made of, and how; None of others that are made of tensors."""
    described = description_of(value)
    parts = [getattr(value, name) for name in parts_of(value)]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if described is None or len(tensors) != 1:
        return None
    return tensors[0], DTensorLayout(type(value), described[1])
