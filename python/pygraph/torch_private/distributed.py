"""Groups of ranks: who is in one, their store on the host, and when a group goes.

Nothing here imports torch.distributed before the program has: a process without groups has none of
its modules' costs, and a build of torch without it works.
"""

from __future__ import annotations

import datetime
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from pygraph.torch_private.names import attribute, private
from pygraph.torch_private.replacing import surround

_MODULE = "torch.distributed.distributed_c10d"
_TRACED = "torch._library.fake_class_registry:FakeScriptObject"
REDUCER = "torch._C._distributed_c10d.Reducer"
"""DDP's, which computes with buckets of gradients of its own."""
#: Ends a group: orderly, or at once.
_ENDS = ("shutdown", "abort")


def is_handle(value: Any) -> bool:
    """Whether it names ranks and holds no data: a mesh or a group, which graphs are given from
    torch 2.13 on, or what stands for one while they are traced."""
    return in_use() and isinstance(value, _handles())


def is_layout(value: Any) -> bool:
    """Whether it says how tensors are laid out among ranks: a mesh or a group, or a placement on
    one. None of these is changed once it is made."""
    return in_use() and isinstance(value, (*_handles(), _placement()))


@functools.cache
def _handles() -> tuple[type, ...]:
    places = (f"{_MODULE}:ProcessGroup", "torch.distributed.device_mesh:DeviceMesh", _TRACED)
    return tuple(map(private, places))


@functools.cache
def _placement() -> Any:
    return private("torch.distributed.tensor.placement_types:Placement")


def in_use() -> bool:
    """Whether this process has groups."""
    module = sys.modules.get(_MODULE)
    return module is not None and bool(module.is_initialized())


def group_named(group: Any) -> Any:
    """The process group that an operator is given by its name, or as an object of TorchScript's;
    None where there is none."""
    if not in_use():
        return None
    kind = private(f"{_MODULE}:ProcessGroup")
    if isinstance(group, kind):
        return group
    try:
        if isinstance(group, str):
            return private(f"{_MODULE}:_resolve_process_group")(group)
        if isinstance(group, torch.ScriptObject):
            return kind.unbox(group)
    except (RuntimeError, ValueError, TypeError):
        return None
    return None


def world() -> Any:
    """The group of all ranks."""
    return private(f"{_MODULE}:_get_default_group")()


def name_of(group: Any) -> str:
    return str(group.group_name)


def ranks_of(group: Any) -> list[int]:
    """The ranks of a group, as the world counts them, in the group's order."""
    return list(private(f"{_MODULE}:get_process_group_ranks")(group))


def own_rank(group: Any) -> int:
    """This process's place in it."""
    return int(group.rank())


def store_of(group: Any) -> Any:
    """A connection of our own to the group's store: a wait on it holds up nobody else's."""
    return private(f"{_MODULE}:_get_process_group_store")(group).clone()


def time_out(group: Any) -> datetime.timedelta:
    """After which the group gives a collective up."""
    kinds = attribute("_device_types", group)(group)
    backend = attribute("_get_backend", group)(group)
    options = [backend(kind).options for kind in kinds]
    return min(attribute("_timeout", each)(each) for each in options)


def wait(tensor: torch.Tensor) -> None:
    """Waits for the collective whose result it is."""
    private("torch.distributed._functional_collectives:wait_tensor")(tensor)


def forbid_registration() -> None:
    """Has NCCL register no buffers of captured collectives, where the program has not said that it
    shall: peers would be told addresses that a program moves, and a capture would wait for them.
    NCCL reads this when it first captures a collective (NCCL_GRAPH_REGISTER in its user guide)."""
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")


def watch_ends(tell: Callable[[Any], None]) -> None:
    """Has `tell` called with each process group that is about to be shut down or aborted, by
    whichever of torch's functions. Once per process."""

    def around(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        tell(group)
        return original(group, *args, **kwargs)

    kind = private(f"{_MODULE}:ProcessGroup")
    for name in _ENDS:
        surround((kind, name), around)
