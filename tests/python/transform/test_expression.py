"""Numbers that calls compute have the bits that generated code computes."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import torch
from torch._inductor.compile_fx import compile_fx_inner
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pygraph.transform import expression, reading

aten = torch.ops.aten


def constant(value: float) -> torch.Tensor:
    return aten.full.default([], value, dtype=torch.float64, device="cpu")


def power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    return aten.pow.Tensor_Tensor(base, exponent)


def function(s: torch.Tensor) -> Any:
    exponents = (2.0, 0.5, -1.0, 3.0, -0.5, 1.0, 0.0, 1 / 3, -2.0)
    return (
        *(power(s, constant(each)) for each in exponents),
        power(constant(1.0) + constant(-1.0) * power(s, constant(2.0)), constant(0.5)),
        power(constant(0.9), s),
        power(s, s),
        aten.true_divide.Tensor(constant(2.0), s),
        *(aten.pow.Tensor_Scalar(s, each) for each in (2, 2.0, 0.5, -1)),
        torch.sqrt(1 + s),
        torch.reciprocal(s),
        -s,
        s * s - s * 0.1,
        power(s, constant(2.0)) + s,
    )


def bits(value: float) -> bytes:
    return b"NaN" if math.isnan(value) else struct.pack("d", value)


def test_calls_compute_what_generated_code_computes() -> None:
    with FakeTensorMode():
        graph = make_fx(function)(torch.empty((), dtype=torch.float64))
    found = expression.of_numbers(graph.graph)
    (argument,) = reading.placeholders(graph.graph)
    formulas = [found[each].of({argument: 0}) for each in reading.results(graph.graph)]
    draw = random.Random(0)
    values = [0.0, -0.0, 1.0, 5e-324, 1e308, math.inf, -math.inf, math.nan]
    values += [draw.uniform(-2, 2) for _ in range(500)]
    values += [draw.lognormvariate(0, 20) for _ in range(500)]
    with torch.no_grad():
        compiled = compile_fx_inner(graph, [torch.empty((), dtype=torch.float64)])
        for value in values:
            expected = compiled([torch.tensor(value, dtype=torch.float64)])
            for formula, each in zip(formulas, expected, strict=True):
                assert bits(formula.evaluate({0: value})) == bits(each.item()), (formula, value)


def test_other_numbers_are_not_computed_by_calls() -> None:
    def others(s: torch.Tensor, f: torch.Tensor, row: torch.Tensor) -> Any:
        return torch.exp(s), f * 2, row * 2, torch.add(s, s, alpha=2), s * (2**53 + 1), s**3

    with FakeTensorMode():
        s, f = torch.empty((), dtype=torch.float64), torch.empty(())
        graph = make_fx(others)(s, f, torch.empty(1, dtype=torch.float64)).graph
    found = expression.of_numbers(graph)
    assert [each.op for each in found] == ["placeholder"]
