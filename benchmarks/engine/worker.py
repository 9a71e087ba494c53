"""One measurement of the engine's record in a process of its own; see harness/worker.py."""

from __future__ import annotations

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
from benchmarks.harness import modes
from benchmarks.harness.build import make_model
from benchmarks.harness.device import Device
from benchmarks.harness.environment import environment
from benchmarks.harness.worker import serve
from pygraph.demo.models import Workload


def compile_only(workload: Workload, mode: str, device: Device) -> dict[str, Any]:
    """Fill Inductor's caches on disk, so that nothing that is measured waits for a compiler."""
    with torch.no_grad():
        model = make_model(workload, device.torch)
        inputs = workload.make_inputs(0, device.torch)
        modes.begin(modes.MODES[mode], modes.Bench(model, [inputs], device))
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


def run(kind: str, model: str, mode: str, device: Device) -> Any:
    """Raises what a measurement raises."""
    torch.set_float32_matmul_precision("highest")
    return KINDS[kind](named(model), mode, device)


def main(
    kind: str,
    model: Annotated[str, typer.Argument()] = "unet",
    mode: Annotated[str, typer.Argument()] = "default",
    out: Annotated[Path, typer.Option()] = Path("result.json"),
    gate: bool = False,
    device: str = "cuda",
) -> None:
    serve(out, lambda: run(kind, model, mode, Device(device)), gate, named(model).build)


if __name__ == "__main__":
    typer.run(main)
