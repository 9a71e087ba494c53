"""What the recorder needs to know of an operator, read from its schema once."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any

import torch

from pygraph.torch_private.dispatch import has_kernel
from pygraph.torch_private.dispatch import schema as schema_of
from pygraph.twin.operations import Alias, Call, Unsupported, value_arguments

_aten = torch.ops.aten


class Treatment(enum.Enum):
    KERNEL = enum.auto()  #: becomes a kernel node
    REAL = enum.auto()  #: really runs: touches no data
    COMPOSITE = enum.auto()  #: is taken apart into others
    EMPTY = enum.auto()  #: memory, and no node
    ZEROS = enum.auto()  #: memory and a fill
    ZERO = enum.auto()  #: a fill
    COPY = enum.auto()  #: a copy into the first argument
    CLONE = enum.auto()  #: memory and a copy


_TREATMENTS = {
    Treatment.EMPTY: (
        "empty.memory_format",
        "empty_strided.default",
        "empty_permuted.default",
        "empty_like.default",
        "new_empty.default",
        "new_empty_strided.default",
    ),
    Treatment.ZEROS: ("zeros.default", "zeros_like.default", "new_zeros.default"),
    Treatment.ZERO: ("zero_.default",),
    Treatment.COPY: ("copy_.default",),
    # A lifted constant is memory that the capture did not make; what is lifted may be written.
    Treatment.CLONE: (
        "clone.default",
        "_to_copy.default",
        "lift_fresh.default",
        "lift_fresh_copy.default",
        "lift.default",
    ),
    # The first aliases its argument though its schema does not say so; the others return no tensor
    # and look at no data.
    Treatment.REAL: (
        "_unsafe_view.default",
        "_fused_sdp_choice.default",
        "is_same_size.default",
        "is_pinned.default",
        "_assert_tensor_metadata.default",
    ),
}
_NAMED = {f"aten.{name}": kind for kind, names in _TREATMENTS.items() for name in names}

#: Operators whose result keeps the storage offset of their first argument: they clone that with all
#: of its storage (ATen, clone_preserve_strides).
_KEEP_OFFSET = frozenset(
    f"aten.{name}"
    for name in (
        "as_strided_scatter.default",
        "diagonal_scatter.default",
        "select_scatter.default",
        "slice_scatter.default",
    )
)

#: Operators that write arguments which their schemas do not mark: these, if that one is true.
_UNDECLARED_WRITES = {
    "aten.native_batch_norm.default": (("running_mean", "running_var"), "training"),
    "aten._batch_norm_impl_index.default": (("running_mean", "running_var"), "training"),
    "aten.native_instance_norm.default": (("running_mean", "running_var"), "use_input_stats"),
}


@dataclasses.dataclass(frozen=True)
class Operator:
    treatment: Treatment
    refusal: str  #: why it can never be recorded; "" when it may be
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    free: tuple[bool, ...]
    free_names: dict[str, bool]
    writes: tuple[str, ...]  #: arguments that it writes
    aliases: tuple[str | None, ...]  #: per result, the written argument that is returned
    undeclared: tuple[tuple[str, ...], str] | None
    keeps_offset: bool  #: in its result, that of its first argument

    def call(self, args: Any, kwargs: Any, generators: Mapping[int, int]) -> Call:
        return Call(self.free, self.free_names, args, kwargs, generators)

    def argument(self, name: str, args: Any, kwargs: Any) -> Any:
        position = self.names.index(name)
        return args[position] if position < len(args) else kwargs.get(name, self.defaults[position])

    def from_tensor(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, with a place that is counted from the start of the first one's storage
        counted from that tensor: a replay's tensors are where their storages start."""
        if self.treatment is not Treatment.KERNEL or "storage_offset" not in self.names:
            return args, kwargs
        start = self.argument("storage_offset", args, kwargs)
        if start is None or not isinstance(args[0], torch.Tensor):
            return args, kwargs
        start -= args[0].storage_offset()
        if start < 0:
            raise Unsupported("addresses memory in front of its argument")
        position = self.names.index("storage_offset")
        if position < len(args):
            return (*args[:position], start, *args[position + 1 :]), kwargs
        return args, {**kwargs, "storage_offset": start}

    def written(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        names = list(self.writes)
        if self.undeclared is not None and self.argument(self.undeclared[1], args, kwargs):
            names += self.undeclared[0]
        found: list[torch.Tensor] = []
        for name in names:
            value = self.argument(name, args, kwargs)
            items = value if isinstance(value, (list, tuple)) else [value]
            found.extend(item for item in items if isinstance(item, torch.Tensor))
        return found

    def alias_numbers(self, call: Call, args: Any, kwargs: Any) -> tuple[Alias | None, ...]:
        def number(name: str | None) -> Alias | None:
            if name is None:
                return None
            value = self.argument(name, args, kwargs)
            return Alias(next(i for i, tensor in enumerate(call.tensors) if tensor is value))

        return tuple(number(name) for name in self.aliases)


@functools.cache
def operator_of(func: Any) -> Operator:
    schema = schema_of(func)
    writes = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]

    def returned(result: Any) -> str | None:
        if result.alias_info is None or not result.alias_info.is_write:
            return None
        for argument in writes:
            if argument.alias_info.before_set & result.alias_info.after_set:
                return str(argument.name)
        return None

    free = value_arguments(schema)
    names = tuple(argument.name for argument in schema.arguments)
    treatment = _treatment(func, schema, [returned(result) for result in schema.returns])
    return Operator(
        treatment=treatment,
        refusal=_refusal(func, schema, treatment),
        names=names,
        defaults=tuple(argument.default_value for argument in schema.arguments),
        free=free,
        free_names=dict(zip(names, free, strict=True)),
        writes=tuple(argument.name for argument in writes),
        aliases=tuple(returned(result) for result in schema.returns),
        undeclared=_UNDECLARED_WRITES.get(str(func)),
        keeps_offset=str(func) in _KEEP_OFFSET,
    )


def _treatment(func: Any, schema: Any, returned: list[str | None]) -> Treatment:
    if str(func) in _NAMED:
        return _NAMED[str(func)]
    # One that is composite and has a kernel besides runs the kernel, whose bits may be others.
    if has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU"):
        return Treatment.COMPOSITE
    if torch.Tag.inplace_view in func.tags:
        return Treatment.REAL
    aliasing = [result.alias_info is not None for result in schema.returns]
    if any(aliasing) and not schema.is_mutable:
        return Treatment.REAL
    tensors = [str(item.type) for item in (*schema.arguments, *schema.returns)]
    if not any("Tensor" in kind for kind in tensors):
        return Treatment.REAL
    return Treatment.KERNEL


def _refusal(func: Any, schema: Any, treatment: Treatment) -> str:
    if str(func) in ("aten.resize_.default", "aten.resize_as_.default"):
        return "changes the size of its memory"
    if treatment is not Treatment.KERNEL:
        return ""
    if torch.Tag.data_dependent_output in func.tags:
        return "reads values out of a tensor"
    if torch.Tag.maybe_aliasing_or_mutating in func.tags:
        return "may alias or write its arguments without saying so"
    if any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in schema.returns
    ):
        return "writes one argument and returns a view of another"
    return ""
