"""What PyGraph did, as data and as text: reports, and explanations of a program.

`runtime` and `frontends` fill these classes while a program runs, everything else only prints them.
Nothing of the rest of the package is imported here, so that a report can be read wherever it was
saved.
"""

from pygraph.reporting.explanation import Blocker, Explanation, OutsideKernel
from pygraph.reporting.model import (
    FALLBACK,
    GRAPHED,
    PARTLY,
    REPLACED,
    STATES,
    WARMING,
    Applied,
    GraphReport,
    Report,
    Selected,
)

__all__ = [
    "FALLBACK",
    "GRAPHED",
    "PARTLY",
    "REPLACED",
    "STATES",
    "WARMING",
    "Applied",
    "Blocker",
    "Explanation",
    "GraphReport",
    "OutsideKernel",
    "Report",
    "Selected",
]
