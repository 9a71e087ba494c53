"""The long run: python tests/trust/long_run.py --programs 100000 --out FILE

Writes the figures as JSON after every chunk of programs. A run that was cut off goes on where it
was when it is started again with the same FILE. Ends with status 1 if a program failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time
from typing import Any

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from trust import fleet


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, help="default: what the profile says")
    parser.add_argument("--profile", choices=sorted(fleet.PROFILES), default="long")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file of the figures")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--device",
        default="twin",
        choices=[
            kind + what
            for kind in ("twin", "cuda", "cuda-inductor", "aot_eager", "eager")
            for what in ("", "-train", "-lanes", "-lanes-train", "-steps")
            if what != "-steps" or kind in ("twin", "cuda", "eager")
            if "-lanes" not in what or kind not in ("aot_eager", "eager")
        ],
        help="-lanes: programs of branches, side by side; "
        "-train: with a backward behind every call; "
        "-steps: whole steps, for pygraph.capture; "
        "eager and aot_eager are torch's own, to test the test",
    )
    parser.add_argument("--first-seed", type=int, help="of the first chunk; default: the profile's")
    parser.add_argument("--dynamo-share", type=int, help="percent of programs through Dynamo")
    parser.add_argument("--chunk", type=int, help="run this one seed in this process")
    parser.add_argument("--current", type=pathlib.Path, help="where the running program is kept")
    return parser.parse_args()


def _profile(options: argparse.Namespace) -> fleet.Profile:
    changes = {
        "programs": options.programs,
        "first_seed": options.first_seed,
        "dynamo_share": options.dynamo_share,
    }
    given: dict[str, Any] = {name: v for name, v in changes.items() if v is not None}
    return dataclasses.replace(fleet.PROFILES[options.profile], **given)


def main() -> int:
    options = _parse()
    profile = _profile(options)
    if options.chunk is not None:
        current = options.current or options.out.with_suffix(".current.py")
        tally = fleet.run_chunk(
            options.device, options.chunk, profile.programs, profile.dynamo_share, current
        )
        options.out.write_text(json.dumps(tally.to_dict()))
        print(tally.summary())
        return 1 if tally.failures else 0

    record: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "device": options.device,
        "profile": dataclasses.asdict(profile),
        "versions": fleet.versions(),
        "seconds": 0.0,
        "chunks": {},
    }
    if options.out.exists():
        earlier = json.loads(options.out.read_text())
        for name in ("device", "profile", "versions"):
            if earlier[name] != record[name]:
                sys.exit(f"{options.out} is of another run: {name} is {earlier[name]}")
        record = earlier
    before, started = record["seconds"], time.monotonic()

    def save(chunks: dict[str, Any]) -> None:
        total = fleet.total(options.device, chunks)
        record["seconds"] = round(before + time.monotonic() - started, 1)
        record["total"] = {**total.to_dict(), **total.shares()}
        options.out.write_text(json.dumps(record, indent=1))
        print(f"{record['seconds']:.0f} s: {total.programs} programs", file=sys.stderr)

    total = fleet.run(options.device, profile, options.workers, record["chunks"], save)
    print(total.summary())
    missing = fleet.missing(options.device, total)
    if missing is not None:
        print(f"FAILED: {missing}")
    return 1 if total.failures or missing is not None else 0


if __name__ == "__main__":
    sys.exit(main())
