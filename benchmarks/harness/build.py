"""Models, built where they will run: a CPU takes many seconds to draw the largest's 900 million
weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pygraph.demo.models import MODEL_SEED, Workload, needing

log = logging.getLogger(__name__)


def build_on(
    device: torch.device,
    build: Callable[[], nn.Module],
    library: str,
    built: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> nn.Module:
    """With the weights of MODEL_SEED, where it will run if that can be; `built` is called with what
    was built there. Unavailable where the library does not work."""
    torch.manual_seed(MODEL_SEED)
    with needing(library):
        if device.type == "cpu":
            return build()
        try:
            with device:
                return built(build()).to(device)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            log.debug("a model of %s is built on the CPU", library, exc_info=True)
        torch.manual_seed(MODEL_SEED)
        return build().to(device)


def make_model(workload: Workload, device: Any) -> nn.Module:
    """The model in eval mode, always with the same random weights for one kind of device.

    Programs build on the CPU and move the model, which leaves behind the tensors that are neither
    parameters nor buffers; those are put back there, since captures have to cope with them.
    """
    return build_on(torch.device(device), workload.build, workload.library, _as_if_moved).eval()


def _as_if_moved(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, value.cpu())
    return model
