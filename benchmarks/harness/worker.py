"""A measurement in a process of its own, which jobs.py starts.

    python -m benchmarks.SUITE.worker KIND [MODEL [MODE]] --out FILE [--gate] ...

With --gate it imports everything, waits for a line on its standard input, and only then touches the
GPU: the next measurement can start up while the one before is still running. The file gets
{"result": ...} or {"error": "..."}; a process that dies leaves none.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from benchmarks.harness import record


def outcome(work: Callable[[], Any]) -> dict[str, Any]:
    """The file's content; never raises for what a measurement does."""
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    try:
        return {"result": work()}
    except Exception as error:
        traceback.print_exc()
        return {"error": record.message(error)}


def serve(out: Path, work: Callable[[], Any], gate: bool, build: Callable[[], Any]) -> None:
    """Behind the gate: `work`. In front of it: what a model imports, by building it without memory,
    and Inductor."""
    logging.basicConfig()
    logging.getLogger("benchmarks").setLevel(logging.DEBUG)  # why a mode failed
    if gate:
        import torch._inductor.compile_fx

        with contextlib.suppress(Exception), torch.device("meta"):
            build()
        if not sys.stdin.readline():
            raise typer.Exit(3)  # whoever started this is gone
    record.write(out, outcome(work))
