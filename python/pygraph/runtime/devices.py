"""Which device a program is compiled for: a GPU, or the CPU twin (`options={"device": ...}`)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from pygraph import _engine
from pygraph.capturing import space
from pygraph.capturing.cuda import device_of
from pygraph.capturing.device import Device
from pygraph.torch_private import support

#: Why there are no graphs in a process that was forked.
FORKED = (
    "this process was forked from one that had used CUDA or the CPU twin, and neither survives a "
    "fork; start processes by multiprocessing's method 'spawn'"
)


@dataclasses.dataclass(frozen=True)
class Platform:
    """A kind of device, as the option `device` names it."""

    name: str
    what: str  #: for reasons: "on a CUDA device"
    problem: Callable[[], str | None]  #: why it cannot be used in this process
    advice: Callable[[], str]  #: what to do where it cannot, or where no tensor is on it
    index: Callable[[Iterable[Any]], int | None]  #: of the device that some values are on
    device: Callable[[int], Device]
    current: Callable[[], int]  #: the index of the device that is used where none is named
    on_host: Callable[[torch.Tensor], bool]  #: whether a tensor is not in the device's memory


def cuda_index(values: Iterable[Any]) -> int | None:
    """The index of the first CUDA tensor's device."""
    return next((x.device.index for x in values if isinstance(x, torch.Tensor) and x.is_cuda), None)


def _not_on_cuda(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type != "cuda")


def _cpu_index(values: Iterable[Any]) -> int | None:
    on_cpu = (isinstance(x, torch.Tensor) and x.device.type == "cpu" for x in values)
    return 0 if any(on_cpu) else None


def _cuda_problem() -> str | None:
    return FORKED if _engine.in_forked_child() else support.support().problem


def _cuda_advice() -> str:
    twin = "options={'device': 'twin'} tries PyGraph on the CPU"
    if torch.version.cuda is None:
        return f"A GPU needs a build of torch for CUDA, this one has none; {twin}"
    if support.support().problem is None:
        return f"Move the model and its arguments to the GPU; {twin}"
    return f"Without a GPU {twin}"


def _twin_problem() -> str | None:
    return FORKED if _engine.in_forked_child() else support.twin_problem()


def _twin_advice() -> str:
    return "The twin needs a model and arguments on the CPU, and a torch that PyGraph supports"


def _twin_device(index: int) -> Device:
    from pygraph.capturing.twin import twin_device

    return twin_device()


def release() -> None:
    """Gives the phantom memory of every device back, and the pinned memory that values cross
    between host and device in; no capture and no call may be under way."""
    space.release()
    _engine.release_staging()
    module = sys.modules.get("pygraph.capturing.twin")
    if module is not None:
        module.twin_device().release()


PLATFORMS = {
    "cuda": Platform(
        "cuda",
        "on a CUDA device",
        problem=_cuda_problem,
        advice=_cuda_advice,
        index=cuda_index,
        device=device_of,
        current=torch.cuda.current_device,
        on_host=_not_on_cuda,
    ),
    "twin": Platform(
        "twin",
        "on the CPU",
        problem=_twin_problem,
        advice=_twin_advice,
        index=_cpu_index,
        device=_twin_device,
        current=lambda: 0,
        on_host=lambda tensor: False,
    ),
}
