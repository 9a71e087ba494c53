"""Many random programs, in chunks, each chunk in a process of its own.

A chunk is a seed and a number of programs, so any of them can be run again alone. A process that
dies loses one chunk: the program it was at is on disk and becomes the failure.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import subjects
from .tally import Counts, Tally

SCRIPT = pathlib.Path(__file__).with_name("long_run.py")


@dataclasses.dataclass(frozen=True)
class Profile:
    """How many programs, how many a chunk, and how many percent through Dynamo."""

    programs: int
    chunk: int
    dynamo_share: int = 10
    first_seed: int = 1

    def chunks(self) -> Iterator[tuple[int, int]]:
        """(seed, programs) of each chunk."""
        for index, start in enumerate(range(0, self.programs, self.chunk)):
            yield self.first_seed + index, min(self.chunk, self.programs - start)


PROFILES = {
    "ci": Profile(500, 250),
    "gpu": Profile(5_000, 125, first_seed=10_001),
    "train": Profile(200, 100, first_seed=20_001),
    "steps": Profile(120, 60, first_seed=30_001),
    "lanes": Profile(200, 100, first_seed=40_001),
    "long": Profile(100_000, 250, first_seed=100_001),
}


def reproducer(program: Any, backend: str, error: str, arena_in_pieces: bool = False) -> str:
    """Text that shows a program and runs it: paste it into a file in the repository's root."""
    listing = "\n".join(f"# {line}" for line in program.source().splitlines())
    kind = type(program)
    fields = "".join(
        f"    {field.name}={getattr(program, field.name)!r},\n"
        for field in dataclasses.fields(kind)
    )
    reason = "\n".join(f"# {line}" for line in error.splitlines()[:8])
    return (
        f"{reason}\n#\n{listing}\n"
        'import sys\nsys.path.insert(0, "tests")\n'
        "from trust import backends, subjects\n"
        f"from {kind.__module__} import *\n\n"
        f"backends.share_memory_eagerly({arena_in_pieces})\n"
        f"program = {kind.__name__}(\n{fields})\n"
        f'print(subjects.subject("{backend}").run(program))\n'
    )


def run_chunk(
    backend_name: str, seed: int, programs: int, dynamo_share: int, current: pathlib.Path
) -> Counts:
    """One chunk in this process. Stops at a failure, which is shrunk first."""
    import hypothesis

    from . import backends

    torch.set_num_threads(1)
    subject = subjects.subject(backend_name)
    in_pieces = seed % 2 == 1
    backends.share_memory_eagerly(in_pieces)
    tally = subject.tally()
    worst: list[tuple[Any, str]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=programs,
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(subject.programs(dynamo_share))
    def every(program: Any) -> None:
        died = reproducer(program, backend_name, "the process died here", in_pieces)
        current.write_text(died)
        try:
            outcome = subject.run(program)
        except Exception as error:
            worst.append((program, f"{type(error).__name__}: {error}"))
            raise
        if not worst:  # what comes after a failure is shrinking
            tally.add(program, outcome)

    try:
        every()
    except Exception as error:
        if not worst:
            raise
        program, text = worst[-1]  # hypothesis ends with the smallest one
        tally.failures.append(
            {
                "seed": seed,
                "error": text if text else repr(error),
                "command": _command(backend_name, seed, programs, dynamo_share),
                "source": program.source(),
                "reproducer": reproducer(program, backend_name, text, in_pieces),
            }
        )
    return tally


def _command(backend: str, seed: int, programs: int, dynamo_share: int) -> str:
    """Draws a chunk again, and stops at the same program."""
    return (
        f"./run trust --device {backend} --chunk {seed} --programs {programs} "
        f"--dynamo-share {dynamo_share} --out chunk.json"
    )


def _in_a_process(
    backend: str,
    seed: int,
    programs: int,
    dynamo_share: int,
    timeout_s: float,
    environment: dict[str, str] | None,
) -> Counts:
    kind = subjects.subject(backend).tally
    with tempfile.TemporaryDirectory() as folder:
        current = pathlib.Path(folder, "current.py")
        out = pathlib.Path(folder, "out.json")
        command = [sys.executable, "-X", "faulthandler", str(SCRIPT), "--device", backend]
        command += ["--chunk", str(seed), "--programs", str(programs)]
        command += ["--dynamo-share", str(dynamo_share)]
        command += ["--out", str(out), "--current", str(current)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_s, env=environment
            )
            ending, errors = f"exit status {done.returncode}", done.stderr
        except subprocess.TimeoutExpired as expired:
            ending, errors = f"not done after {timeout_s:.0f} s", str(expired.stderr or "")
        if out.exists():
            return kind.from_dict(json.loads(out.read_text()))
        source = current.read_text() if current.exists() else ""
        failure = {
            "seed": seed,
            "error": f"the process of chunk {seed} ended early: {ending}\n{errors[-4000:]}",
            "command": _command(backend, seed, programs, dynamo_share),
            "source": source,
            "reproducer": source,
        }
        return kind(failures=[failure])


def run(
    backend: str,
    profile: Profile,
    workers: int,
    done: dict[str, Any] | None = None,
    after_chunk: Callable[[dict[str, Any]], None] = lambda _: None,
    chunk_timeout_s: float = 3600,
) -> Counts:
    """All chunks of a profile but those in `done`, which maps seeds to what they came to and is
    added to; `after_chunk` sees it after each. Where there are several GPUs, chunks take turns on
    them."""
    gpus = _gpus()
    done = {} if done is None else done
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        started = time.monotonic()
        futures = {
            pool.submit(
                _in_a_process,
                backend,
                seed,
                count,
                profile.dynamo_share,
                chunk_timeout_s,
                {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[seed % len(gpus)]} if gpus else None,
            ): seed
            for seed, count in profile.chunks()
            if str(seed) not in done
        }
        for future in concurrent.futures.as_completed(futures):
            tally = future.result()
            done[str(futures[future])] = {
                "finished_after_s": round(time.monotonic() - started, 1),
                **tally.to_dict(),
            }
            after_chunk(done)
    return total(backend, done)


def total(backend: str, chunks: Mapping[str, Any]) -> Counts:
    """What all chunks came to, of a record of them."""
    found = subjects.subject(backend).tally()
    for chunk in chunks.values():
        found.merge(type(found).from_dict(chunk))
    return found


def missing(backend: str, found: Counts) -> str | None:
    """What a whole run has to show and this one does not."""
    if not subjects.subject(backend).lanes or not isinstance(found, Tally):
        return None
    if found.in_a_row:
        return f"graphs that were to run in lanes and do not: {found.in_a_row.total()}"
    if not found.wide_graphs:
        return f"no graph of {found.programs} programs has more than one lane"
    return None


def _gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs that this process may use."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
    return given.split(",")[:count]


def versions() -> dict[str, Any]:
    """What the figures were made with."""
    import hypothesis

    import pygraph

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "pygraph": pygraph.__version__,
        "torch": torch.__version__,
        "hypothesis": hypothesis.__version__,
        "python": platform.python_version(),
        "device": device,
    }
