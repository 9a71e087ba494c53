"""Hypothesis strategies of whole programs: inputs and how they share memory, steps, calls."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from .builder import Builder, Draw
from .operations import OPERATIONS
from .programs import Base, Call, Parameter, Program, make_inputs
from .writes import WRITES

DTYPES = (
    "float32",
    "int64",
    "float64",
    "bfloat16",
    "float16",
    "int32",
    "uint8",
    "bool",
    "complex64",
)
_STEPS = (*OPERATIONS, *WRITES)
_SIZES = (3, 4, 2, 5, 8, 7, 16, 1, 0)
_DIMENSIONS = ("N", "4", "3", "2", "1", "5", "8", "0")
_VIEWS_AS_ARGUMENT = ("{}", "{}", "{}.view({}.shape)", "{}[1:]", "{}[:-1]", "{}.transpose(0, -1)")


def _tuple(dimensions: list[str]) -> str:
    return f"({', '.join(dimensions)}{',' if len(dimensions) == 1 else ''})"


def _own(draw: Draw, number: int) -> tuple[Base, str]:
    """An argument on memory of its own, in one of the layouts that callers bring."""
    dtype = draw(st.sampled_from(DTYPES[:1] * 3 + DTYPES))
    rank = draw(st.sampled_from((2, 2, 1, 3, 0)))
    dimensions = ["N", *(draw(st.sampled_from(_DIMENSIONS)) for _ in range(rank - 1))][:rank]
    name = f"b{number}"
    layout = draw(
        st.sampled_from(("plain", "plain", "plain", "slice", "transposed", "strided", "expanded"))
    )
    if layout == "slice" and rank:
        return Base(dtype, _tuple(["N + 2", *dimensions[1:]])), f"{name}[1:N + 1]"
    if layout == "transposed" and rank > 1:
        swapped = [dimensions[-1], *dimensions[1:-1], dimensions[0]]
        return Base(dtype, _tuple(swapped)), f"{name}.transpose(0, -1)"
    if layout == "strided" and rank:
        return Base(dtype, _tuple([*dimensions[:-1], f"2 * {dimensions[-1]}"])), f"{name}[..., ::2]"
    if layout == "expanded" and rank:
        small = Base(dtype, _tuple(["1", *dimensions[1:]]))
        return small, f"{name}.expand({', '.join(dimensions)})"
    return Base(dtype, _tuple(dimensions)), name


def _sharing(draw: Draw, earlier: list[str], bases: list[Base]) -> str:
    """An argument on memory of an earlier one: the same tensor, another view, another slice."""
    index = draw(st.integers(0, len(earlier) - 1))
    kind = draw(st.integers(0, len(_VIEWS_AS_ARGUMENT)))
    if kind == len(_VIEWS_AS_ARGUMENT):
        start = earlier[index].split(".")[0].split("[")[0]
        return f"{start}[0:N]" if start.startswith("b") else f"x{index}"
    return _VIEWS_AS_ARGUMENT[kind].format(f"x{index}", f"x{index}")


def _possible(program: Program, calls: list[Call]) -> bool:
    try:
        for call in calls:
            make_inputs(program, call, "cpu")
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    return True


@st.composite
def _calls(draw: Any) -> tuple[Call, ...]:
    """Two or three leading sizes with at least five calls each; some bring misaligned memory, or
    the very tensors of an earlier call, or share memory where others do not."""
    sizes = draw(st.lists(st.sampled_from(_SIZES), min_size=2, max_size=3, unique=True))
    both = draw(st.booleans())
    calls: list[Call] = []
    for size in sizes:
        first = len(calls)
        for position in range(draw(st.integers(5, 6))):
            again = None
            if position > 1 and draw(st.integers(0, 3)) == 3:
                again = draw(st.integers(first, len(calls) - 1))
            offset = draw(st.sampled_from((0, 0, 0, 1, 2, 3)))
            shared = not (both and position % 2)
            calls.append(Call(size, len(calls) + 1, shared, offset, again=again))
    if draw(st.booleans()):  # back to the first size, which has been linked by now
        calls += [Call(sizes[0], len(calls) + 1 + i) for i in range(2)]
    return tuple(calls)


def _alike(program: Program) -> tuple[Call, ...]:
    """The calls of a program for which it matters what is shared and at what offset: all of one
    size are served by one compiled graph. Through Dynamo all share and none has an offset, since
    torch does not guard all of what its handling of written, overlapping inputs relies on."""
    first: dict[int, Call] = {}
    sizes = list(dict.fromkeys(call.size for call in program.calls))
    some_do_not_share = not all(call.shared for call in program.calls)
    alike = []
    for call in program.calls:
        model = first.setdefault(call.size, call)
        changes: dict[str, Any] = {"shared": True, "offset": 0}
        if not program.dynamo:
            shared = not (some_do_not_share and sizes.index(call.size) % 2)
            changes = {"shared": shared, "offset": model.offset, "misaligned": call.offset}
        alike.append(dataclasses.replace(call, **changes))
    return tuple(alike)


def environments(calls: tuple[Call, ...]) -> list[Call]:
    """The calls that differ in size or in what shares memory, one of each."""
    return list({(call.size, call.shared): call for call in calls}.values())


@st.composite
def programs(draw: Any, dynamo_share: int = 10, maximum_steps: int = 16) -> Program:
    """A random program; about `dynamo_share` percent go through Dynamo."""
    builder = begin(draw, dynamo_share)
    for _ in range(draw(st.integers(2, maximum_steps))):
        draw(st.sampled_from(_STEPS))(builder)
    return end(draw, builder)


def begin(draw: Draw, dynamo_share: int) -> Builder:
    """A program without steps: its inputs, parameters and calls."""
    bases: list[Base] = []
    inputs: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        if inputs and draw(st.integers(0, 2)) == 2:
            inputs.append(_sharing(draw, inputs, bases))
        else:
            base, expression = _own(draw, len(bases))
            bases.append(base)
            inputs.append(expression)
    parameters = tuple(
        Parameter(
            f"p{index}",
            draw(st.sampled_from(DTYPES[:1] * 3 + DTYPES)),
            tuple(draw(st.lists(st.sampled_from((4, 3, 2, 5, 1)), min_size=1, max_size=2))),
            draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 2)))
    )
    dynamo = draw(st.integers(0, 99)) >= 100 - dynamo_share
    program = Program(
        bases=tuple(bases),
        inputs=tuple(inputs),
        parameters=parameters,
        integer=draw(st.sampled_from((None, None, 2, 3))),
        lines=(),
        returns=(),
        calls=draw(_calls()),
        dynamo=dynamo,
        dynamic=draw(st.sampled_from((None, True, False))) if dynamo else None,
    )
    distinct = environments(program.calls)
    if not _possible(program, distinct):  # views that this shape does not have
        plain = tuple(f"b{i % len(bases)}" if "x" in e else e for i, e in enumerate(program.inputs))
        program = dataclasses.replace(program, inputs=plain)
        if not _possible(program, distinct):
            program = dataclasses.replace(program, inputs=tuple(f"b{i}" for i in range(len(bases))))
    return Builder(draw, program, distinct)


def end(draw: Draw, builder: Builder) -> Program:
    """The program of a builder, which returns something now."""
    program = dataclasses.replace(builder.program, operations=tuple(builder.operations))
    if program.writes or set(program.inputs) & set(program.arguments):
        program = dataclasses.replace(program, calls=_alike(program))
    return dataclasses.replace(
        program,
        lines=tuple(builder.lines),
        returns=_returns(draw, builder),
    )


_RETURNED = (
    "{}",
    "{}",
    "{}",
    "{}",
    "{}[1:]",
    "{}.transpose(0, -1)",
    "{}.view(-1)",
    "{}.view({}.shape)",
    "{}.select(0, 0)",
    "{}.unsqueeze(0).expand((2,) + {}.shape)",
)


def _returns(draw: Draw, builder: Builder) -> tuple[str, ...]:
    """One to four results: values, inputs, views of either, one of them twice, numbers, None."""
    made = [name for name in builder.names if name.startswith("v")]
    first = made[-1] if made else "x0"
    found = [first]
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.integers(0, 9))
        name = builder.pick()
        if kind == 8:
            found.append(draw(st.sampled_from(("None", "7", f"{first}.dim()"))))
        elif kind == 9:
            found.append(draw(st.sampled_from(found)))
        else:
            expression = draw(st.sampled_from(_RETURNED)).format(name, name)
            found.append(expression if builder.works(expression) else str(name))
    return tuple(found)
