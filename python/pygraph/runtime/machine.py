"""What this machine's driver calls cost: measured once, and kept in a file.

The file belongs to one GPU, driver, CPU, torch and version of PyGraph, all of which are in its name
and in it. One that cannot be read, or is another machine's, is measured anew; where it cannot be
written, each process measures, which takes less than a second. The report has an event that says
so. Processes that measure at the same time each write a whole file and put it in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing.device import Device
from pygraph.decide.cost_model import REFERENCE, Costs
from pygraph.runtime.notes import note


def costs(device: Device) -> Costs:
    """Of this machine. Where they cannot be measured, as on the twin, the reference's."""
    with device.current():
        return REFERENCE if device.twin else of_gpu(device.index)


@functools.cache
def of_gpu(index: int) -> Costs:
    """The same, for torch's device of this number."""
    identity = _identity(index)
    file = _folder() / f"costs-{_digest(identity)}.json"
    found = _read(file, identity)
    if found is None:
        try:
            found = Costs(**_engine.measure_machine())
        except _engine.DriverError as error:
            note(f"driver calls could not be measured, an H100's costs are assumed: {error}")
            return REFERENCE
        _write(file, identity, found)
    return found


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pygraph"


def _identity(index: int) -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name(index),
        "driver": str(_engine.capabilities().version),
        "cpu": _cpu(),
        "torch": torch.__version__,
        "pygraph": _engine.version,
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _digest(identity: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _read(file: Path, identity: Mapping[str, str]) -> Costs | None:
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        note(f"{file} is measured anew: {error}")
        return None
    try:
        found = _costs(json.loads(text), identity)
    except (ValueError, TypeError, KeyError) as error:
        note(f"{file} is measured anew: it is not what was written ({error})")
        return None
    return found


def _costs(document: Any, identity: Mapping[str, str]) -> Costs:
    """Raises ValueError, TypeError or KeyError for anything but what _write() writes."""
    if document["machine"] != identity:
        raise ValueError("another machine's")
    found = Costs(**document["costs"])
    for name, value in dataclasses.asdict(found).items():
        if type(value) is not float or not 0 < value < 1e9:
            raise ValueError(f"{name} is {value!r}")
    return found


def _write(file: Path, identity: Mapping[str, str], found: Costs) -> None:
    document = {"machine": dict(identity), "costs": dataclasses.asdict(found)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem)
        try:
            with os.fdopen(handle, "w") as opened:
                json.dump(document, opened, indent=1)
            os.replace(name, file)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        note(f"{file} cannot be written, each process measures its machine: {error}")
