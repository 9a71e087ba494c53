"""Where a demonstration goes: a console, and JSON files that can be shared."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

WIDTH = 160


def terminal() -> Console:
    """A console, wide enough for the tables where its output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def command_line() -> str:
    """How this process was started, its paths reduced to their last part."""
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.stem == "__main__" else program.name
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return " ".join([name, *words])


def write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # JSON has no infinity: an error that could not be given a size is stored as null.
    path.write_text(json.dumps(_finite(content), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
