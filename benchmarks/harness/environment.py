"""What a figure depends on besides the program: recorded beside every measurement.

No host name and no path: a result is to be shared, and says what was measured, not where it lies.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from pygraph.demo import output

COMMANDS = {
    "demo": "demo",
    "bench": "bench",
    "training": "bench-training",
    "engine": "bench-engine-record",
    "patterns": "bench-patterns",
    "callables": "bench-callables",
    "selection": "bench-selection",
    "gpus": "bench-gpus",
    "parallel": "bench-parallel",
}
"""Of this package, as `./run` has them."""
LIBRARIES = ("triton", "transformers", "torchvision", "timm")


def command_line() -> str:
    """As a reader of the record would start it; paths are reduced to their last part."""
    line = output.command_line()
    for name, command in COMMANDS.items():
        line = re.sub(rf"^python -m benchmarks {name}\b", f"./run {command}", line)
    return line


def environment() -> dict[str, Any]:
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cpu": _processor(),
        "gpu": None,
        "driver": None,
    }
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["driver"] = _driver()
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None
