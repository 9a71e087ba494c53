"""The passes in their order, and what becomes of a graph.

`transform()` is asked of every graph that is about to be compiled, and of every graph that is
planned: a plan tells what it would do, because it does it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

import pygraph
from pygraph.reporting.text import first_line
from pygraph.torch_private.graphs import copied
from pygraph.transform import bring, count, fetch, fold, keep, predicate, reading
from pygraph.transform.draft import Draft, kind
from pygraph.transform.split import Split, split

log = logging.getLogger(__name__)

#: By name. Branches first: what they compute is the graph's then. Constants before values that
#: are brought: what follows from nothing that varies need not be brought in each call.
PASSES: Mapping[str, Callable[[Draft], None]] = {
    each.NAME: each.apply for each in (predicate, fold, count, bring, fetch)
}
#: `keep` goes through Dynamo's graph, before there are graphs of ATen's operators.
ALL: frozenset[str] = frozenset({keep.NAME, *PASSES})

_FAILED = "a graph is compiled as it is, for a pass has failed"

#: What in a graph makes it worth a draft.
_OBSTACLES = ("cpu operator", "host to device", "device to host", "cpu input", "control flow")


def transform(
    module: torch.fx.GraphModule,
    passes: Collection[str] = ALL,
    *,
    generated: bool,
    home: torch.device | None = None,
    tell: Callable[[str], object] | None = None,
) -> Split | None:
    """The graph in parts; None where no pass has anything to do. The module stays as it is.
    `generated`: code is generated for it. `home`: the device that really is where its own one
    stands, for constants, if that is another one. No pass touches a graph with tensors on several
    devices besides the host, or with none, or with tensors that are not plain memory. Whatever
    fails here, the graph can be compiled as it is; `tell` is told."""
    try:
        return in_parts(module, passes, generated=generated, home=home)
    except Exception as error:
        log.exception("%s; please report this", _FAILED)
        if tell is not None:
            tell(f"{_FAILED}: {first_line(str(error))}")
        return None


def in_parts(
    module: torch.fx.GraphModule,
    passes: Collection[str],
    *,
    generated: bool,
    home: torch.device | None = None,
) -> Split | None:
    """The same, but for what fails."""
    if PASSES.keys().isdisjoint(passes):
        return None
    devices = reading.devices(module.graph)
    if len(devices) != 1 or not any(map(_is_worth_it, module.graph.nodes)):
        return None
    if not all(map(reading.is_plain, module.graph.nodes)):
        return None
    (device,) = devices
    draft = Draft(_copied(module), device, home or device, generated)
    before = _obstacles(draft)
    for name in PASSES:
        if name in passes:
            before = _pass(draft, name, before)
    return split(draft) if draft.applied else None


@functools.cache
def edition() -> str:
    """Of PyGraph's code, passes and all that they go by: what they have done, and a cache outlives
    the process with, holds for the same edition."""
    digest = hashlib.sha256()
    for path in sorted(Path(pygraph.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A module of the same attributes, and a graph of its own."""
    made = torch.fx.GraphModule(module, copied(module.graph))
    made.meta = dict(module.meta)
    return made


def _pass(draft: Draft, name: str, before: set[Any]) -> set[Any]:
    """The obstacles that are left of those before."""
    notes = len(draft.applied)
    PASSES[name](draft)
    if len(draft.applied) == notes:
        return before
    draft.drop_unneeded()
    left = _obstacles(draft)
    draft.cleared |= {node.name: name for node in before - left}
    return left


def _obstacles(draft: Draft) -> set[Any]:
    """The nodes of the body that stand in a capture's way."""
    return set(filter(draft.stays, remaining(draft.graph)))


def _is_worth_it(node: Any) -> bool:
    return kind(node) in _OBSTACLES or (node.op == "placeholder" and reading.is_number(node))


def remaining(graph: torch.fx.Graph) -> list[Any]:
    """The nodes of a graph that still are obstacles."""
    return [node for node in graph.nodes if kind(node) in _OBSTACLES]
