"""Runs scenarios on two ranks or more, each a process: with NCCL where there are as many GPUs, else
on the twin with gloo."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
RANKS = int(os.environ.get("WORLD_SIZE", "2"))
#: Of the groups that scenarios make, in seconds.
TIME_OUT_S = float(os.environ.get("TIME_OUT_S", "20"))
ON_GPUS = torch.cuda.device_count() >= RANKS


@dataclasses.dataclass(frozen=True)
class Ended:
    """What became of one rank."""

    results: dict[str, Any]  #: by scenario; what raised has {"error": ...}
    status: int
    log: str


def launch(
    scenarios: Sequence[str],
    limit_s: float = 240.0,
    time_out_s: float = TIME_OUT_S,
    ranks: int = RANKS,
) -> list[Ended]:
    """Runs the scenarios (functions of scenarios.py) one after the other, on all ranks.
    What does not end in time is ended, with status -6."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        more = {"TIME_OUT_S": str(time_out_s)}
        more["WORLD_SIZE"] = str(ranks)
        running = [_start(rank, port, Path(folder), scenarios, more) for rank in range(ranks)]
        while any(process.poll() is None for process in running):
            if time.monotonic() - started > limit_s:
                for process in running:
                    process.send_signal(signal.SIGABRT)  # says where it stands
                    if time.monotonic() - started > limit_s + 5:
                        process.kill()
            time.sleep(0.05)
        return [_ended(Path(folder), rank, process.wait()) for rank, process in enumerate(running)]


def _start(
    rank: int, port: int, folder: Path, scenarios: Sequence[str], more: dict[str, str]
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "OUT": str(folder / f"{rank}.json"),
        **more,
    }
    with (folder / f"{rank}.log").open("w") as log:
        command = [sys.executable, "-m", "tests.ranks.worker", *scenarios]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def _ended(folder: Path, rank: int, status: int) -> Ended:
    out = folder / f"{rank}.json"
    results = json.loads(out.read_text()) if out.exists() else {}
    return Ended(results, status, (folder / f"{rank}.log").read_text()[-12000:])
