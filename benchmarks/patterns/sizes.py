"""Results whose size depends on values. The masks are of inputs, so that rounding does not move
them; each model ends in means, so that the clean one can have the same results."""

from __future__ import annotations

from typing import Any

from benchmarks.patterns.pattern import Loaded, Pattern


class Nonzero(Loaded):
    def forward(self, x: Any) -> Any:
        rows = (x[:, 0] > 0).nonzero().squeeze(1)
        return self.tail(self.head(x)[rows].mean(0, keepdim=True) + x)


class NonzeroClean(Loaded):
    def forward(self, x: Any) -> Any:
        mask = (x[:, :1] > 0).float()
        return self.tail((self.head(x) * mask).sum(0, keepdim=True) / mask.sum() + x)


class Selected(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(x * self.head(x).masked_select(x > 0.5).square().mean())


class SelectedClean(Loaded):
    def forward(self, x: Any) -> Any:
        mask = (x > 0.5).float()
        return self.tail(x * ((self.head(x) * mask).square().sum() / mask.sum()))


class Indexed(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)[x[:, 0] > 0]
        return self.tail(y).mean(0)


class IndexedClean(Loaded):
    def forward(self, x: Any) -> Any:
        mask = (x[:, :1] > 0).float()
        return (self.tail(self.head(x)) * mask).sum(0) / mask.sum()


PATTERNS = (
    Pattern("nonzero", "rows found by nonzero()", Nonzero, NonzeroClean),
    Pattern("masked_select", "masked_select()", Selected, SelectedClean),
    Pattern("boolean_index", "x[mask], and a load of that many rows", Indexed, IndexedClean),
)
