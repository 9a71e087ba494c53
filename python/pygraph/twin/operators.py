"""What the recorder needs to know of an operator, read from its schema once."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any

import torch

from pygraph.operators import collectives
from pygraph.operators.known import given, known, parameters
from pygraph.operators.table import STORAGE_OFFSET, Property
from pygraph.torch_private.dispatch import has_kernel
from pygraph.torch_private.dispatch import schema as schema_of
from pygraph.twin.operations import Alias, OperatorCall, Unsupported, value_arguments


class Treatment(enum.Enum):
    KERNEL = enum.auto()  #: becomes a kernel node
    REAL = enum.auto()  #: really runs: touches no data
    COMPOSITE = enum.auto()  #: is taken apart into others
    EMPTY = enum.auto()  #: memory, and no node
    ZEROS = enum.auto()  #: memory and a fill
    ZERO = enum.auto()  #: a fill
    COPY = enum.auto()  #: a copy into the first argument
    CLONE = enum.auto()  #: memory and a copy


#: What becomes of operators that are known to do no more than this.
_TREATMENTS = {
    Property.ALLOCATES: Treatment.EMPTY,
    Property.MAKES_ZEROS: Treatment.ZEROS,
    Property.WRITES_ZEROS: Treatment.ZERO,
    Property.COPIES_INTO: Treatment.COPY,
    Property.COPIES: Treatment.CLONE,
    # A lifted constant is memory that the capture did not make; what is lifted may be written.
    Property.LIFTS: Treatment.CLONE,
    Property.ALIASES_UNDECLARED: Treatment.REAL,
    Property.READS_NO_DATA: Treatment.REAL,
}


@dataclasses.dataclass(frozen=True)
class Operator:
    func: Any
    treatment: Treatment
    refusal: str  #: why it can never be recorded; "" when it may be
    free: tuple[bool, ...]
    free_names: dict[str, bool]
    aliases: tuple[str | None, ...]  #: per result, the written argument that is returned
    counts_from_storage: bool
    keeps_offset: bool

    def call(self, args: Any, kwargs: Any, generators: Mapping[int, int]) -> OperatorCall:
        return OperatorCall(self.free, self.free_names, args, kwargs, generators)

    def from_tensor(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, with a place that is counted from the start of the first one's storage
        counted from that tensor: a replay's tensors are where their storages start."""
        if self.treatment is not Treatment.KERNEL or not self.counts_from_storage:
            return args, kwargs
        start = given(self.func, STORAGE_OFFSET, args, kwargs)
        if start is None or not isinstance(args[0], torch.Tensor):
            return args, kwargs
        start -= args[0].storage_offset()
        if start < 0:
            raise Unsupported("addresses memory in front of its argument")
        position, _ = parameters(self.func)[STORAGE_OFFSET]
        if position < len(args):
            return (*args[:position], start, *args[position + 1 :]), kwargs
        return args, {**kwargs, STORAGE_OFFSET: start}

    def alias_numbers(self, call: OperatorCall, args: Any, kwargs: Any) -> tuple[Alias | None, ...]:
        def number(name: str | None) -> Alias | None:
            if name is None:
                return None
            value = given(self.func, name, args, kwargs)
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
    treatment = _treatment(func, schema, [returned(result) for result in schema.returns])
    return Operator(
        func=func,
        treatment=treatment,
        refusal=_refusal(func, schema, treatment),
        free=free,
        free_names=dict(zip(parameters(func), free, strict=True)),
        aliases=tuple(returned(result) for result in schema.returns),
        counts_from_storage=known(func, Property.COUNTS_FROM_STORAGE, ("aten", "prims")),
        keeps_offset=known(func, Property.KEEPS_OFFSET),
    )


def _treatment(func: Any, schema: Any, returned: list[str | None]) -> Treatment:
    for that, treatment in _TREATMENTS.items():
        if known(func, that):
            return treatment
    if collectives.waits(func):  # as each collective of the twin's does itself
        return Treatment.REAL
    # One that is composite and has a kernel besides runs the kernel, whose bits may be others.
    if has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU"):
        return Treatment.COMPOSITE
    if known(func, Property.CALLS_OTHERS, ("fsdp",)):
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
    if known(func, Property.RESIZES):
        return "changes the size of its memory"
    if treatment is not Treatment.KERNEL:
        return ""
    if collectives.is_collective(func) and func.namespace != "_c10d_functional":
        return "is a collective that the twin does not run; it runs those of _c10d_functional"
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
