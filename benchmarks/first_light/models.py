"""Which of the demo's models are measured, and which of them count."""

from __future__ import annotations

from pygraph.demo.models import STAND_INS, WORKLOADS

MEASURED = tuple(name for name in WORKLOADS if name not in STAND_INS.values())
"""What a measurement takes unless told otherwise; the stand-ins are for plans only."""

NOT_REAL = ("mlp-1", "mlp-8", "mlp-32")
"""Do not count in the geometric means: they only show how cost grows with the kernels."""
