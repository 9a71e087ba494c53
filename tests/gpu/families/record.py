"""What became of each family, stored after each one: a crash must not take the record with it."""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import environment
from benchmarks.harness.record import write


class Record:
    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = []
        self.broken: str | None = None  #: the family after which the device did not answer
        self._environment = environment.environment() if path is not None else {}

    def add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            self.broken = f"{entry['family']}: {str(error).splitlines()[0]}"
            entry["error"] = self.broken
        if self.path is not None:
            write(self.path, self.content())

    def content(self) -> dict[str, Any]:
        states = collections.Counter(entry["state"] for entry in self.entries)
        exact = sum(
            entry["state"] == "graphed" and bool(entry.get("bit_equal")) for entry in self.entries
        )
        wrong = [entry["family"] for entry in self.entries if entry.get("problems")]
        return {
            "env": self._environment,
            "command": command(),
            "summary": {
                "families": len(self.entries),
                "states": dict(states),
                "graphed_and_bit_equal": exact,
                "wrong": wrong,
            },
            "families": self.entries,
        }


def command() -> str:
    """How the tests were started, without the machine's paths."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return " ".join(["python -m pytest", *words])
