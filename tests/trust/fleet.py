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
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .programs import Program
from .tally import Tally

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
    "long": Profile(100_000, 250, first_seed=100_001),
}


def reproducer(program: Program, backend: str, error: str) -> str:
    """Text that shows a program and runs it: paste it into a file in the repository's root."""
    listing = "\n".join(f"# {line}" for line in program.source().splitlines())
    fields = "".join(
        f"    {field.name}={getattr(program, field.name)!r},\n"
        for field in dataclasses.fields(program)
    )
    reason = "\n".join(f"# {line}" for line in error.splitlines()[:8])
    return (
        f"{reason}\n#\n{listing}\n"
        'import sys\nsys.path.insert(0, "tests")\n'
        "from trust import backends, check\n"
        "from trust.programs import Base, Call, Parameter, Program\n\n"
        f"program = Program(\n{fields})\n"
        f'print(check.run(program, backends.backend("{backend}")))\n'
    )


def run_chunk(
    backend_name: str, seed: int, programs: int, dynamo_share: int, current: pathlib.Path
) -> Tally:
    """One chunk in this process. Stops at a failure, which is shrunk first."""
    import hypothesis

    from . import backends, check, strategies

    torch.set_num_threads(1)
    backend = backends.backend(backend_name)
    backends.share_memory_eagerly(arena_in_pieces=seed % 2 == 1)
    tally = Tally()
    worst: list[tuple[Program, str]] = []

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
    @hypothesis.given(strategies.programs(dynamo_share=dynamo_share))
    def every(program: Program) -> None:
        current.write_text(reproducer(program, backend_name, "the process died here"))
        try:
            outcome = check.run(program, backend)
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
                "source": program.source(),
                "reproducer": reproducer(program, backend_name, text),
            }
        )
    return tally


def _in_a_process(
    backend: str,
    seed: int,
    programs: int,
    dynamo_share: int,
    timeout_s: float,
    environment: dict[str, str] | None,
) -> Tally:
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
            return Tally.from_dict(json.loads(out.read_text()))
        source = current.read_text() if current.exists() else ""
        failure = {
            "seed": seed,
            "error": f"the process of chunk {seed} ended early: {ending}\n{errors[-4000:]}",
            "source": source,
            "reproducer": source,
        }
        return Tally(failures=[failure])


def run(
    backend: str,
    profile: Profile,
    workers: int,
    done: dict[str, Any] | None = None,
    after_chunk: Callable[[dict[str, Any]], None] = lambda _: None,
    chunk_timeout_s: float = 3600,
) -> Tally:
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
    total = Tally()
    for chunk in done.values():
        total.merge(Tally.from_dict(chunk))
    return total


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
