"""Records: JSON files that say what was measured, how, and on what."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from pygraph.demo.models import Unavailable
from pygraph.demo.output import write as write

log = logging.getLogger(__name__)

SAME = ("gpu", "driver", "torch", "cuda", "python", "transformers", "torchvision")
"""What must not have changed of the environment where a file is gone on with."""


class NotARecord(ValueError):
    """A file that holds something else: what was found, and what is needed."""


def read_json(path: Path, needed: str) -> Any:
    """The JSON of a file. Raises NotARecord, which says what is `needed`."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise NotARecord(f"{path}: {error.strerror or error}; {needed}") from error
    except ValueError as error:
        raise NotARecord(f"{path}: found no JSON ({error}); {needed}") from error


def restored(kind: Any, data: Mapping[str, Any]) -> Any:
    """A dataclass from what its `asdict` was stored as; names that are not known are left out."""
    known = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in known})


def by_mode(records: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """{workload: {mode: record}}"""
    found: dict[str, dict[str, Any]] = {}
    for each in records:
        found.setdefault(each.workload, {})[each.mode] = each
    return found


def shareable(text: str) -> str:
    """A path's last part is enough, and can be shared."""
    return re.sub(r"/[^\s'\"]*/", "", text)


def message(error: BaseException) -> str:
    """The first line, for a record; of what a backend raised, its own first line, too."""
    if isinstance(error, Unavailable):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    many = 2 if lines and lines[0].endswith(" raised:") else 1
    return shareable(": ".join([type(error).__name__, *lines[:many]]))


def fail(result: Any, error: Exception) -> None:
    """Notes what a mode raised."""
    log.debug("%s", "".join(traceback.format_exception(error)))
    result.correct = False
    result.error = result.error or message(error)
    if notes := getattr(error, "__notes__", None):
        result.extra["notes"] = list(notes)


@contextmanager
def costs_itself(result: Any, bench: Any) -> Iterator[None]:
    """What is raised is put down in the mode's result, and the mode is left out from then on."""
    try:
        yield
    except Exception as error:
        fail(result, error)
        bench.runners.pop(result.mode, None)


class Document:
    """A file of measurements: what is known so far, saved after each, and gone on with."""

    same: tuple[str, ...] = SAME

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = dict(settings)
        if path.exists():
            content = json.loads(path.read_text())
            self.settings |= content.get("settings", {})
            self.load(content)

    def load(self, content: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def content(self, targets: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        raise NotImplementedError

    def require_same(self, earlier: Mapping[str, Any], env: Mapping[str, Any]) -> None:
        """ValueError where the file's figures come from another machine or other versions."""
        apart = [name for name in self.same if earlier.get(name) != env.get(name)]
        if apart:
            was = ", ".join(f"{name} {earlier.get(name)}" for name in apart)
            raise ValueError(f"{self.path.name} was measured with {was}: take another file")

    def save(self, targets: Sequence[Mapping[str, Any]] = ()) -> None:
        """Whole or not at all: a run may be ended at any time."""
        beside = self.path.with_suffix(".part")
        write(beside, self.content(targets))
        beside.replace(self.path)


class OneMachine(Document):
    """A file whose figures are all of one machine and of the same versions."""

    def __init__(self, path: Path, command: str, settings: Mapping[str, Any]) -> None:
        self.command = command
        self.env: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.errors: list[dict[str, Any]] = []
        super().__init__(path, settings)

    def take_environment(self, found: Mapping[str, Any]) -> None:
        """ValueError where the file's figures come from another machine or other versions."""
        if self.env:
            self.require_same(self.env, found)
        else:
            self.env = dict(found)

    def head(self) -> dict[str, Any]:
        """How it was measured, and on what."""
        return {
            "env": self.env,
            "command": self.command,
            "settings": self.settings,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
        }
