"""Results that the host waits for. The clean program wants them on the host, too: it has the same
call behind the compiled model instead of in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.patterns.pattern import BY_HAND, WIDTH, Loaded, Pattern, Tensors, square

Forward = Callable[..., Any]


class OnDevice(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x))


class OneByHand(OnDevice):
    by_hand = True

    def called(self, forward: Forward, *inputs: Any) -> Any:
        return forward(*inputs).cpu()


class OneFetched(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x)).cpu()


class ThreeFetched(Loaded):
    def forward(self, x: Any) -> Tensors:
        y = self.tail(self.head(x))
        return y.cpu(), y.mean(0).cpu(), y.amax(1).cpu()


class ThreeByHand(Loaded):
    by_hand = True

    def called(self, forward: Forward, *inputs: Any) -> Any:
        return tuple(each.cpu() for each in forward(*inputs))

    def forward(self, x: Any) -> Tensors:
        y = self.tail(self.head(x))
        return y, y.mean(0), y.amax(1)


class FetchedLater(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x)).to("cpu", non_blocking=True)


class LaterByHand(OnDevice):
    by_hand = True

    def called(self, forward: Forward, *inputs: Any) -> Any:
        return forward(*inputs).to("cpu", non_blocking=True)


class Listed(Loaded):
    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x)).mean(0).tolist()


class ListedByHand(Loaded):
    by_hand = True

    def called(self, forward: Forward, *inputs: Any) -> Any:
        return forward(*inputs).tolist()

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


class ItemByHand(Loaded):
    by_hand = True

    def called(self, forward: Forward, *inputs: Any) -> Any:
        return forward(*inputs).item()

    def forward(self, x: Any) -> Any:
        return self.tail(self.head(x))[0, :16].sum()


class BothSides(Loaded):
    """Computes on the CPU before its input is moved, and after its result is."""

    def forward(self, x: Any, row: Any) -> Any:
        y = self.tail(self.head(x) + (row * 2 + 1).to(x.device)).mean(0)
        return y.cpu() * 0.5 + 1


class BothByHand(Loaded):
    by_hand = True

    def called(self, forward: Forward, *inputs: Any) -> Any:
        x, row = inputs
        return forward(x, (row * 2 + 1).to(x.device)).cpu() * 0.5 + 1

    def forward(self, x: Any, row: Any) -> Any:
        return self.tail(self.head(x) + row).mean(0)


def with_row(generator: torch.Generator) -> Tensors:
    return (*square(generator), torch.randn(WIDTH, generator=generator))


PATTERNS = (
    Pattern("cpu_one", f".cpu() of the result{BY_HAND} .cpu()", OneFetched, OneByHand),
    Pattern("cpu_three", f".cpu() of three results{BY_HAND} .cpu()", ThreeFetched, ThreeByHand),
    Pattern(
        "cpu_later",
        f'.to("cpu", non_blocking=True) of the result{BY_HAND} .to()',
        FetchedLater,
        LaterByHand,
    ),
    Pattern(
        "cpu_both",
        "a small input on the CPU, a result there, and arithmetic of the CPU at both ends"
        f"{BY_HAND} arithmetic and copies",
        BothSides,
        BothByHand,
        with_row,
        (1,),
    ),
    Pattern("tolist", f".tolist() at the end{BY_HAND} .tolist()", Listed, ListedByHand),
    Pattern("item_middle", ".item() in the middle", ItemInside, ItemInsideClean),
    Pattern("item_end", f".item() at the end{BY_HAND} .item()", ItemBehind, ItemByHand),
)
