"""One measurement in a process of its own.

    python -m benchmarks.engine.worker KIND [MODEL [MODE]] --out FILE [--gate]

With --gate it imports everything, waits for a line on its standard input, and only then touches the
GPU: the next measurement can start up while the one before is still running. The file gets
{"result": ...} or {"error": "..."}; a process that dies leaves none.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engine.large import named
from benchmarks.engine.linktime import measure_link
from benchmarks.engine.memory import measure_memory
from benchmarks.engine.tight import measure_tight
from benchmarks.harness import modes, record
from benchmarks.harness.device import Device
from benchmarks.harness.environment import environment
from pygraph.demo.models import Workload


def compile_only(workload: Workload, mode: str, device: Device) -> dict[str, Any]:
    """Fill Inductor's caches on disk, so that nothing that is measured waits for a compiler."""
    with torch.no_grad():
        model = workload.make_model(device.torch)
        inputs = workload.make_inputs(0, device.torch)
        runner = modes.MODES[mode](modes.Bench(model, [inputs], device))
        runner.step(*inputs)
        device.synchronize()
    return {"workload": workload.name, "mode": mode}


KINDS: dict[str, Callable[[Workload, str, Device], Any]] = {
    "environment": lambda *_: environment(),
    "compile": compile_only,
    "memory": lambda *given: asdict(measure_memory(*given)),
    "tight": lambda *given: _with_verdict(measure_tight(*given)),
    "link": lambda workload, _, device: measure_link(workload, device),
}


def _with_verdict(tight: Any) -> dict[str, Any]:
    return {**asdict(tight), "captured_for_free": tight.captured_for_free}


def preload(workload: Workload) -> None:
    """Import what the model needs, by building it without memory."""
    import torch._inductor.compile_fx

    with contextlib.suppress(Exception), torch.device("meta"):
        workload.build()


def run(kind: str, model: str, mode: str, device: Device) -> dict[str, Any]:
    """The file's content; never raises for what a measurement does."""
    torch.set_float32_matmul_precision("highest")
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    try:
        return {"result": KINDS[kind](named(model), mode, device)}
    except Exception as error:
        traceback.print_exc()
        lines = str(error).splitlines()
        return {"error": ": ".join([type(error).__name__, *lines[:1]])}


def main(
    kind: str,
    model: Annotated[str, typer.Argument()] = "unet",
    mode: Annotated[str, typer.Argument()] = "default",
    out: Annotated[Path, typer.Option()] = Path("result.json"),
    gate: bool = False,
    device: str = "cuda",
) -> None:
    if gate:
        preload(named(model))
        if not sys.stdin.readline():
            raise typer.Exit(3)  # whoever started this is gone
    record.write(out, run(kind, model, mode, Device(device)))


if __name__ == "__main__":
    typer.run(main)
