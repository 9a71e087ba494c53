"""A graph in parts, called as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pygraph.runtime.crossing import Crossing
from pygraph.transform.split import Origin, Split

Callee = Callable[[list[Any]], Any]


class InParts:
    """Takes one list of arguments, which it clears. Each part does, too. Thread-safe if they are.
    `crosses`: the body brings its staged arguments from the host by itself, and returns there what
    is fetched."""

    def __init__(
        self,
        split: Split,
        body: Callee,
        front: Callee | None,
        behind: Callee | None,
        device: torch.device,
        crosses: bool,
    ) -> None:
        self.body, self._front, self._behind = body, front, behind
        self._front_inputs = split.front.inputs if split.front else ()
        self._behind_inputs = split.behind.inputs if split.behind else ()
        self._arguments, self._results = split.arguments, split.results
        self._elsewhere = tuple(split.elsewhere.items())
        self._unused = split.unused
        later = [*self._behind_inputs, *split.elsewhere.values()]
        self._kept = sorted({each.number for each in later if each.place == "argument"})
        self._device = device
        self._crossing = (
            Crossing() if crosses else Crossing(split.staged, split.fetched, split.computed)
        )
        #: Where that is to be had which stands behind the graph's arguments.
        self._more = [split.given[index] for index in range(split.arguments, len(split.examples))]

    def become(self, other: InParts) -> None:
        """From now on calls run what `other` runs, a graph of the same arguments and results."""
        self.__dict__.update(other.__dict__)

    def __call__(self, arguments: list[Any]) -> Any:
        known: dict[str, Any] = {"argument": {index: arguments[index] for index in self._kept}}
        if self._front is not None:
            known["front"] = self._front([arguments[each.number] for each in self._front_inputs])
        for each in self._more:
            values = arguments if each.place == "argument" else known[each.place]
            arguments.append(values[each.number])
        for index in self._unused:
            arguments[index] = None
        self._crossing.bring_to(arguments, self._device)
        results = self._crossing.fetch(self.body(arguments))
        known["body"] = results
        if self._behind is not None:
            known["behind"] = self._behind(_picked(self._behind_inputs, known))
        for index, source in self._elsewhere:
            results[index] = known[source.place][source.number]
        del results[self._results :]
        return results


def _picked(sources: Iterable[Origin], known: dict[str, Sequence[Any]]) -> list[Any]:
    return [known[each.place][each.number] for each in sources]
