"""Random graphs of host and device, before the passes and after them: the same results, and the
same values in every argument that they write."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import assert_bits
from transform_support import DEVICE, Case, OnDevice

SIZE = 5
ARGUMENTS = 6  #: two on the device, two on the host, and two numbers on the host
#: Of numbers, which calls compute or fronts.
ARITHMETIC: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a * 2 - 1,
    lambda a, b: a - b,
    lambda a, b: a * b + 0.5,
    lambda a, b: torch.sqrt(a * a) / (b * b + 1),
    lambda a, b: -a + 1 / (b**2 + 2),
    lambda a, b: torch.exp(a / 100),
]


def program(seed: int) -> Callable[..., Any]:
    """Operators one after the other, each on values of one side, copies between the two, and at the
    end what writes arguments."""

    def run(*arguments: Any) -> Any:
        draw = random.Random(seed)
        device, host = list(arguments[:2]), list(arguments[2:4])
        numbers = list(arguments[4:])
        for _ in range(draw.randrange(3, 14)):
            kind = draw.randrange(9)
            pool = draw.choice((device, host))
            if kind == 0:
                device.append(draw.choice(host).to(DEVICE))
            elif kind == 1:
                host.append(draw.choice(device).to("cpu", non_blocking=draw.random() < 0.2))
            elif kind == 2:
                device.append(draw.choice(device) * draw.choice(numbers))
            elif kind == 3:
                numbers.append(draw.choice(ARITHMETIC)(draw.choice(numbers), draw.choice(numbers)))
            elif kind == 4:
                pool.append(torch.ops.aten.t.default(draw.choice(pool)))
            elif kind == 5:
                constant = torch.full((SIZE, SIZE), float(draw.randrange(4)))
                host.append(constant if draw.random() < 0.5 else constant.tril())
            elif kind == 6:
                pool.append(torch.maximum(draw.choice(pool), draw.choice(pool)))
            elif kind == 7:
                pool.append(
                    torch.ops.aten.slice_scatter.default(draw.choice(pool), draw.choice(pool))
                )
            else:
                pool.append(draw.choice(pool) - draw.choice(pool))
        results = draw.sample([*device, *host, *numbers], draw.randrange(1, 6))
        if draw.random() < 0.4:
            place = draw.randrange(4)
            torch.ops.aten.copy_.default(
                arguments[place], draw.choice((device, host)[place > 1]) * 3
            )
        return tuple(results)

    return run


def drawn(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    made = [torch.randint(-9, 9, (SIZE, SIZE)).float() for _ in range(ARGUMENTS - 2)]
    return [*made, *(torch.randint(-9, 9, ()).double() for _ in range(2))]


@pytest.mark.parametrize(
    "seeds", [range(start, start + 50) for start in range(0, 100, 50)], ids=str
)
def test_a_graph_in_parts_computes_what_it_did(seeds: range) -> None:
    transformed = computed = 0
    for seed in seeds:
        examples = drawn(seed)
        case = Case(program(seed), *map(OnDevice, examples[:2]), *examples[2:])
        if case.split is None:
            continue
        transformed += 1
        computed += bool(case.split.computed)
        for again in range(2):
            one, other = drawn(1000 + seed + again), drawn(1000 + seed + again)
            expected = case._plain(*one)
            found = case.callable()(list(other))
            assert_bits([*found, *other], [*expected, *one])
    assert transformed > 16 and computed > 1
