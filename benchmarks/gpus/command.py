"""`./run bench-gpus`: models on several GPUs in all modes, one process a rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.first_light.record import Record
from benchmarks.gpus.rank import MODES, OURS
from benchmarks.gpus.workloads import WORKLOADS, Workload
from benchmarks.harness import record
from benchmarks.harness.environment import command_line, environment
from benchmarks.harness.measure import Samples, geomean
from benchmarks.harness.record import read_json

LIMIT_S = 400


class Ranks:
    """The processes of one workload."""

    def __init__(
        self, workload: Workload, ranks: int, options: Sequence[str], folder: Path
    ) -> None:
        self.workload = workload
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._started = time.monotonic()
        self._processes = []
        ranks = 1 if workload.parallel == "stages" else ranks
        for rank in range(ranks):
            places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            env = os.environ | places | {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            command = [sys.executable, "-m", "benchmarks.gpus.rank", workload.name]
            command += ["--out", str(self.folder / f"{rank}.json"), *options]
            with (self.folder / f"{rank}.log").open("w") as log:
                self._processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    def results(self) -> list[Any]:
        """By rank, what each has stored once it has ended; what takes too long is ended."""
        while any(each.poll() is None for each in self._processes):
            late = time.monotonic() - self._started > LIMIT_S
            # Others wait for one that has died.
            dead = any(each.poll() not in (None, 0) for each in self._processes)
            if late or dead:
                for each in self._processes:
                    each.kill()
            time.sleep(0.1)
        files = [self.folder / f"{rank}.json" for rank in range(len(self._processes))]
        return [read_json(each, "a rank's results") if each.exists() else [] for each in files]

    def log(self) -> str:
        return (self.folder / "0.log").read_text(errors="replace")[-3000:]


def rows_of(workload: Workload, ranks: Sequence[Sequence[dict[str, Any]]]) -> list[Record]:
    """One row a mode: of each iteration the time of the slowest rank."""
    rows = []
    for modes in zip(*ranks, strict=False):
        row = Record(workload.name, workload.batch, modes[0]["mode"])
        row.correct = all(each["correct"] and each["error"] is None for each in modes)
        row.error = next((each["error"] for each in modes if each["error"]), None)
        errors = [each["relative_error"] for each in modes]
        row.relative_error = None if None in errors else max(errors)
        for name in ("compile_s", "peak_mib", "reserved_mib", "bytes_copied"):
            values = [each[name] for each in modes if each[name] is not None]
            setattr(row, name, max(values, default=None))
        slowest = {
            name: [max(values) for values in zip(*(each[name] for each in modes), strict=True)]
            for name in ("latency_us", "host_us", "pipelined_us")
        }
        if row.correct and slowest["latency_us"]:
            row.take(Samples(slowest["latency_us"], slowest["host_us"], slowest["pipelined_us"]))
        row.extra = {"ranks": len(ranks), "parallel": workload.parallel}
        if workload.stands_for:
            row.extra["stands_for"] = workload.stands_for
        if row.mode in OURS:
            calls, replays = (sum(each[name] for each in modes) for name in ("calls", "replays"))
            row.extra["replayed"] = replays / calls if calls else None
            row.extra["fallbacks"] = [each for mode in modes for each in mode["fallbacks"]]
        rows.append(row)
    return rows


def summary(rows: Sequence[Record]) -> dict[str, Any]:
    """Ratios of latencies; over pygraph how many times as fast that is, over the floor how far from
    it."""
    times = {(row.workload, row.mode): row.latency_us for row in rows if row.timed}
    tensor = {row.workload for row in rows if row.extra["parallel"] == "tensor"}

    def ratio(name: str, over: str, under: str) -> float | None:
        a, b = times.get((name, over)), times.get((name, under))
        return a / b if a and b else None

    found: dict[str, Any] = {"ratios": {}}
    for name in dict.fromkeys(row.workload for row in rows):
        found["ratios"][name] = {
            f"{over}/{under}": ratio(name, over, under)
            for over, under in (
                ("eager", "pygraph"),
                ("default", "pygraph"),
                ("reduce-overhead", "pygraph"),
                ("pygraph", "floor"),
                ("default", "capture"),
                ("reduce-overhead", "capture"),
                ("capture", "floor"),
            )
            if {over, under} <= {row.mode for row in rows if row.workload == name}
        }
    for label in ("reduce-overhead/pygraph", "pygraph/floor", "default/pygraph"):
        values = [found["ratios"][name].get(label) for name in sorted(tensor)]
        known = [value for value in values if value]
        found[f"tensor parallel {label}"] = {"geomean": geomean(known), "workloads": len(known)}
    return found


def table(rows: Sequence[Record]) -> str:
    lines = ["| workload | mode | correct | latency | host | pipelined | peak MiB | replayed |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        times = [row.latency_us, row.host_us, row.pipelined_us]
        shown = [f"{each:,.0f}" if each is not None else "" for each in times]
        peak = "" if row.peak_mib is None else f"{row.peak_mib:,.0f}"
        share = row.extra.get("replayed")
        replayed = "" if share is None else f"{100 * share:.1f}%"
        right = "yes" if row.correct else f"no: {row.error}"
        lines.append(
            f"| {row.workload} | {row.mode} | {right} | {' | '.join(shown)} | {peak} | {replayed} |"
        )
    return "\n".join(lines)


def main(
    out: Annotated[Path, typer.Option(help="The record.")] = Path("build/gpus/gpus.json"),
    ranks: Annotated[int | None, typer.Option(help="Default: one per GPU, two at least.")] = None,
    workloads: Annotated[str | None, typer.Option(help="With commas. Default: all.")] = None,
    modes: Annotated[str, typer.Option(help="With commas.")] = ",".join(MODES),
    seconds: Annotated[float, typer.Option(help="Of the clocks, per workload.")] = 4.0,
    side_by_side: Annotated[
        bool, typer.Option(help="First compile all workloads at once, to fill the caches.")
    ] = True,
    steps: Annotated[
        int, typer.Option(help="Training steps that are compared with default's, loss for loss.")
    ] = 0,
    tiny: Annotated[bool, typer.Option(help="Small models, for a moment.")] = False,
    device: Annotated[str, typer.Option(help="cpu: to try the command; means nothing.")] = "cuda",
) -> None:
    """Measure models on several GPUs in all modes."""
    count = ranks or max(torch.cuda.device_count(), 2)
    if device == "cuda" and torch.cuda.device_count() < count:
        raise typer.BadParameter(
            f"{torch.cuda.device_count()} GPUs found, {count} needed; --ranks 1 measures what the "
            "host costs where nothing is waited for, --device cpu --tiny tries the command"
        )
    names = [each.name for each in WORKLOADS] if workloads is None else workloads.split(",")
    chosen = [each for each in WORKLOADS if each.name in names]
    unknown = set(names) - {each.name for each in chosen}
    if unknown:
        known = ", ".join(each.name for each in WORKLOADS)
        raise typer.BadParameter(f"no workload {', '.join(sorted(unknown))}; there are {known}")
    options = ["--modes", modes, "--seconds", str(seconds), *(["--tiny"] if tiny else [])]
    rows: list[Record] = []
    long: dict[str, Any] = {}

    def store() -> None:
        data = {
            "env": environment() | {"gpus": torch.cuda.device_count()},
            "command": command_line(),
            "records": [asdict(row) for row in rows],
            "summary": summary(rows),
            "long": long,
        }
        record.write(out, data)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if side_by_side and device == "cuda":
            more = [*options, "--compile-only"]
            for running in [Ranks(each, count, more, folder) for each in chosen]:
                running.results()
        for workload in chosen:
            running = Ranks(workload, count, options, folder)
            found = rows_of(workload, running.results())
            if not found or any(row.error for row in found):
                print(running.log(), file=sys.stderr)
            print(table(found), flush=True)
            rows += found
            store()
        for workload in chosen:
            if workload.trains and steps:
                running = Ranks(workload, count, [*options, "--steps", str(steps)], folder)
                long[workload.name] = running.results()
                print(workload.name, long[workload.name] or running.log(), flush=True)
                store()
    raise typer.Exit(0 if rows and all(row.correct for row in rows if row.mode in OURS) else 1)
