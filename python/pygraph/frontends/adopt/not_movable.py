"""The error of `pygraph.adopt`."""

from __future__ import annotations


class NotMovable(RuntimeError):
    """`pygraph.adopt` cannot make a graph movable. `what` is wrong ("input 0"), what was `found`
    there, and what is `needed`; the message has all of them. The graph, and the tensors it was
    captured with, are as before."""

    def __init__(self, what: str, found: str, needed: str) -> None:
        super().__init__(what, found, needed)
        self.what, self.found, self.needed = what, found, needed

    def __str__(self) -> str:
        return f"{self.what}: found {self.found}; needed: {self.needed}"
