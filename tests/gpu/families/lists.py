"""Operators on lists of tensors: foreach and fused optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from families.registry import Make, simple

COUNT = 40


def _list(make: Make, count: int = COUNT) -> list[Any]:
    return [make.randn(3 + i % 7, 5 + i) for i in range(count)]


def _positive(make: Make, count: int = COUNT) -> list[Any]:
    return [tensor.abs() + 0.1 for tensor in _list(make, count)]


def _halves(tensors: tuple[Any, ...], parts: int) -> list[list[Any]]:
    count = len(tensors) // parts
    return [list(tensors[i * count : (i + 1) * count]) for i in range(parts)]


simple(
    "foreach add",
    "a table of addresses and sizes by value, in blocks",
    lambda *t: torch._foreach_add(*_halves(t, 2), alpha=0.5),
    lambda make: _list(make) + _list(make),
)
simple(
    "foreach mul in place",
    "writes its arguments",
    lambda *t: _in_place(lambda: torch._foreach_mul_(list(t), 1.5), t),
    _list,
)
simple(
    "foreach addcdiv",
    "three lists",
    lambda *t: torch._foreach_addcdiv(*_halves(t, 3), 0.3),
    lambda make: _list(make) + _list(make) + _positive(make),
)
simple(
    "foreach norm",
    "two steps, with addresses in a table",
    lambda *t: [*torch._foreach_norm(list(t)), torch.stack(torch._foreach_norm(list(t), 1)).sum()],
    _list,
)
simple(
    "foreach sqrt, lerp, maximum",
    "other functors of the same launcher",
    lambda *t: [
        *torch._foreach_sqrt(_halves(t, 2)[1]),
        *torch._foreach_lerp(*_halves(t, 2), 0.25),
        *torch._foreach_maximum(*_halves(t, 2)),
    ],
    lambda make: _list(make, 12) + _positive(make, 12),
)


def _in_place(step: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
    """Runs a step that writes its arguments, and returns something of its own."""
    step()
    return arguments[0].sum()


def _adam(function: Callable[..., Any]) -> Callable[..., Any]:
    def step(*tensors: Any) -> Any:
        *groups, steps = _halves(tensors, 5)
        weights, gradients, first, second = groups
        return _in_place(
            lambda: function(
                *(weights, gradients, first, second, [], steps),
                lr=1e-3,
                beta1=0.9,
                beta2=0.99,
                weight_decay=0.01,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            ),
            tensors,
        )

    return step


def _adam_state(make: Make) -> list[Any]:
    count = 6
    steps = [make.rand(1).reshape(()) * 10 + 1 for _ in range(count)]
    lists = [_list(make, count), _list(make, count), _list(make, count), _positive(make, count)]
    return [*(tensor for each in lists for tensor in each), *steps]


simple("fused AdamW step", "writes weights and state", _adam(torch._fused_adamw_), _adam_state)
simple("fused Adam step", "writes weights and state", _adam(torch._fused_adam_), _adam_state)
simple(
    "fused SGD step",
    "writes weights and momentum",
    lambda *t: _in_place(
        lambda: torch._fused_sgd_(
            *_halves(t, 3),
            weight_decay=0.01,
            momentum=0.9,
            lr=0.1,
            dampening=0.0,
            nesterov=True,
            maximize=False,
            is_first_step=False,
        ),
        t,
    ),
    lambda make: _list(make, 6) + _list(make, 6) + _list(make, 6),
)
simple(
    "clip by total norm",
    "the clipping of gradients, without a look at the norm",
    lambda *t: _clip(list(t)),
    _list,
)


def _clip(gradients: list[Any]) -> Any:
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    scale = torch.clamp(1.0 / (total + 1e-6), max=1.0)
    return torch._foreach_mul(gradients, scale)
