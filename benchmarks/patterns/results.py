"""Results that the host waits for."""

from __future__ import annotations

from typing import Any

from benchmarks.patterns.pattern import Loaded, Pattern, Tensors


class OnDevice(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x))


class OneFetched(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x)).cpu()


class ThreeFetched(Loaded):
    def forward(self, x: Any) -> Tensors:
        y = self.tail(self.head(x))
        return y.cpu(), y.mean(0).cpu(), y.amax(1).cpu()


class ThreeOnDevice(Loaded):
    def forward(self, x: Any) -> Tensors:
        y = self.tail(self.head(x))
        return y, y.mean(0), y.amax(1)


class FetchedLater(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x)).to("cpu", non_blocking=True)


class Listed(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x)).mean(0).tolist()


class Mean(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x)).mean(0)


class ItemInside(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        return self.tail(y / y.abs().max().item())


class ItemInsideClean(Loaded):
    def forward(self, x: Any) -> Any:
        y = self.head(x)
        return self.tail(y / y.abs().max())


class ItemBehind(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x))[0, :16].sum().item()


class ItemBehindClean(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x))[0, :16].sum()


PATTERNS = (
    Pattern("cpu_one", ".cpu() of the result", OneFetched, OnDevice),
    Pattern("cpu_three", ".cpu() of three results", ThreeFetched, ThreeOnDevice),
    Pattern("cpu_later", '.to("cpu", non_blocking=True)', FetchedLater, OnDevice),
    Pattern("tolist", ".tolist() at the end", Listed, Mean),
    Pattern("item_middle", ".item() in the middle", ItemInside, ItemInsideClean),
    Pattern("item_end", ".item() at the end", ItemBehind, ItemBehindClean),
)
