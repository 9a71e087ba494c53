"""How this room looks up a private name of torch, and what stands in for one that is not there.

A release of torch may move or drop such a name. Every other room has them from this one, where each
stands once, as the argument of a function below: "module:name". A test tries them all on the
installed torch, so a release that lacks one is noticed there first, by name.
"""

from __future__ import annotations

import operator
import pkgutil
from collections.abc import Callable
from typing import Any

import torch

from pygraph.torch_private import versions


class Missing(RuntimeError):
    """This torch lacks a private name that PyGraph needs."""

    def __init__(self, name: str) -> None:
        name = name.replace(":", ".")
        super().__init__(
            f"torch {torch.__version__} found, which lacks {name}; "
            f"PyGraph needs torch {versions.RANGE}"
        )


class Absent:
    """Stands in for a name that torch lacks: nothing is an instance of it, and whoever calls it,
    or something derived from it, is told."""


def private(name: str) -> Any:
    """What torch has under `name`, imported if need be. Raises Missing where it has nothing."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise Missing(name) from error


def bound(name: str) -> Any:
    """The same for what is bound once, while modules are imported: that must work with any torch,
    as programs run without graphs where PyGraph cannot be used."""
    try:
        return private(name)
    except Missing:
        return _stand_in(name)


def attribute(name: str, *samples: Any) -> Callable[[Any], Any]:
    """A function that reads the attribute `name`, which all samples have: objects, or classes."""
    for sample in samples:
        if not hasattr(sample, name):
            return _stand_in(f"{getattr(sample, '__name__', type(sample).__name__)}.{name}")
    return operator.attrgetter(name)


def place(name: str) -> tuple[Any, str]:
    """Where `name` stands, to be replaced there: its owner, and what it is called there."""
    private(name)
    owner, _, last = name.replace(":", ":.").rpartition(".")
    return private(owner.replace(":.", ":")), last


def _stand_in(name: str) -> Any:
    def tell(*_: Any, **__: Any) -> Any:
        raise Missing(name)

    return type("Absent", (Absent,), {"__new__": tell})
