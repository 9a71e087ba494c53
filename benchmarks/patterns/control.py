"""What the host decides, checks and tells while the forward runs."""

from __future__ import annotations

import logging
from typing import Any

import torch

from benchmarks.patterns.pattern import WIDTH, Loaded, Pattern, Tensors, square

log = logging.getLogger("pattern")
log.setLevel(logging.WARNING)

HALVINGS = 4


class Branch(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        if x.sum() > 0:
            return self.tail(y)
        return self.tail(0.5 - y)


class BranchClean(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        return self.tail(torch.where(x.sum() > 0, y, 0.5 - y))


class Cond(Loaded):
    def forward(self, x: Any) -> Any:
        def up(y: Any) -> Any:
            return y + 0.25

        def down(y: Any) -> Any:
            return 0.5 - y

        return self.tail(torch.cond(x.sum() > 0, up, down, (self.head(x),)))


class CondClean(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        return self.tail(torch.where(x.sum() > 0, y + 0.25, 0.5 - y))


class While(Loaded):
    """Halves until nothing is above 1."""

    def forward(self, x: Any) -> Any:
        while x.abs().max() > 1:
            x = x * 0.5
        return self.tail(self.head(x))


class WhileClean(Loaded):
    """As often as it can be needed."""

    def forward(self, x: Any) -> Any:
        for _ in range(HALVINGS):
            x = torch.where(x.abs().max() > 1, x * 0.5, x)
        return self.tail(self.head(x))


class Plain(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x))


class Printed(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        print("half of it")
        return self.tail(y)


class Logged(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        log.info("half of it, shape %s", y.shape)
        return self.tail(y)


class AssertedAsync(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        torch._assert_async(y.isfinite().all())
        return self.tail(y)


class Asserted(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        assert y.isfinite().all()
        return self.tail(y)


class Checked(Loaded):
    def forward(self, x: Any) -> Any:
        many = (x > 0).sum().item()
        torch._check(many > 0)
        return self.tail(self.head(x) * (WIDTH * WIDTH / many))


class CheckedClean(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x) * (WIDTH * WIDTH / (x > 0).sum()))


def of_either_sign(generator: torch.Generator) -> Tensors:
    """Far from 0 in the mean."""
    (x,) = square(generator)
    sign = 2 * torch.randint(2, (), generator=generator) - 1
    return (x + 0.2 * sign,)


def of_any_size(generator: torch.Generator) -> Tensors:
    """The largest is 0.75 times a power of two, so that halving meets 1 exactly nowhere."""
    (x,) = square(generator)
    power = torch.randint(HALVINGS + 1, (), generator=generator)
    return (x / x.abs().max() * 0.75 * 2.0**power,)


PATTERNS = (
    Pattern("branch", "if x.sum() > 0", Branch, BranchClean, of_either_sign),
    Pattern("cond", "torch.cond", Cond, CondClean, of_either_sign),
    Pattern("while", "a loop until values are small enough", While, WhileClean, of_any_size),
    Pattern("print", "print() in the middle", Printed, Plain),
    Pattern("logging", "a logger's info() in the middle, which is off", Logged, Plain),
    Pattern("assert_async", "torch._assert_async on values", AssertedAsync, Plain),
    Pattern("assert_python", "an assert on values", Asserted, Plain),
    Pattern("check_item", ".item(), and torch._check of it", Checked, CheckedClean),
)
