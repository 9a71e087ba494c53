"""The operations of random programs that write in place: to a value, an input or a view of one."""

from __future__ import annotations

from .builder import Builder
from .operations import indices_below

_TARGETS = (
    "{0}",
    "{0}[1:]",
    "{0}.transpose(0, -1)",
    "{0}.select(0, 0)",
    "{0}.view(-1)",
    "{0}[::2]",
)


def _target(builder: Builder) -> str | None:
    """Something to write to: a value, an input or a parameter, or a view of one."""
    name = builder.pick()
    if name is None:
        return None
    target = builder.one_of(_TARGETS).format(name)
    return target if builder.works(target) else name


def write_scalar(builder: Builder) -> bool:
    target = _target(builder)
    if target is None:
        return False
    call = builder.one_of(
        ("add_(1)", "mul_(2)", "fill_(3)", "zero_()", "neg_()", "clamp_(0, 1)", "sub_(2)")
    )
    return builder.write(call.split("(")[0], target, call, [])


def write_values(builder: Builder) -> bool:
    target = _target(builder)
    if target is None:
        return False
    shape = builder.value(target).shape
    operand = builder.pick(lambda t: t.shape in (shape, shape[1:], shape[:0]))
    if operand is None:
        return False
    call = builder.one_of(("add_", "mul_", "copy_", "sub_", "copy_"))
    return builder.write(call, target, f"{call}({operand})", [operand])


def write_masked(builder: Builder) -> bool:
    target = _target(builder)
    if target is None:
        return False
    shape = builder.value(target).shape
    mask = builder.pick(lambda t: t.shape == shape)
    condition = f"{mask} > 0" if mask is not None else "True"
    return builder.write("masked_fill_", target, f"masked_fill_({condition}, 2)", [])


def write_indexed(builder: Builder) -> bool:
    target = _target(builder)
    if target is None or builder.value(target).dim() == 0:
        return False
    size = f"{target}.shape[0]"
    call = builder.one_of(
        (
            f"index_fill_(0, {indices_below(builder, size)}, 2)",
            f"index_put_((torch.arange({size}, device=DEVICE).flip(0),), {target}.clone())",
            f"index_add_(0, torch.arange({size}, device=DEVICE), {target}.clone())",
            f"index_copy_(0, torch.arange({size}, device=DEVICE), {target}.clone())",
        )
    )
    return builder.write(call.split("(")[0], target, call, [])


WRITES = (write_scalar, write_values, write_masked, write_indexed)
