"""`options={"require": "full"}`: the error where work runs outside of CUDA graphs."""

from __future__ import annotations


class RequirementNotMet(RuntimeError):
    """`options={"require": "full"}` was given, and work of a compiled function runs outside of CUDA
    graphs for good. `reason` says why; `graph`, `operator`, `source` ("file.py:123") and `remedy`
    are None where they are not known. The message has all of them.

    It is raised by the call of the compiled function, or by the backward, in which that becomes
    known, and by later ones. Calls before it, and the call that tries to make the graph, have run
    to their end."""

    def __init__(
        self,
        reason: str,
        graph: str | None = None,
        operator: str | None = None,
        source: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """`graph`: its name in the report. `source`: the user's line, as "file.py:123"."""
        super().__init__(reason, graph, operator, source, remedy)
        self.reason, self.graph, self.operator = reason, graph, operator
        self.source, self.remedy = source, remedy

    def __str__(self) -> str:
        culprit = " at ".join(part for part in (self.operator, self.source) if part)
        told = ": ".join(part for part in (self.graph, self.reason, culprit) if part)
        needed = f"; needed: {self.remedy}" if self.remedy else ""
        return f"require='full' is not met: {told}{needed}"
