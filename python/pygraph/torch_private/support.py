"""What can be done in this process: torch's version, the driver, a GPU, access to tensors."""

from __future__ import annotations

import dataclasses
import functools

import torch

from pygraph import _engine
from pygraph.torch_private.tensors import TensorBase, dispatch_keys, object_of
from pygraph.torch_private.versions import torch_problem


@dataclasses.dataclass(frozen=True)
class Support:
    """`problem` is None when graphs can be captured and called in this process."""

    problem: str | None
    tensor_access: str  #: "direct", or why tensors cannot be reached from the engine


@functools.cache
def tensor_access() -> str:
    """Calibrates the engine's access to tensors. 'direct' on success, else what is missing."""
    sample = torch.arange(5, dtype=torch.float32)[1:]
    missing = _engine.calibrate(
        sample,
        object_of(sample),
        object_of(sample.untyped_storage()),
        sample.data_ptr(),
        TensorBase,
    )
    if missing:
        return missing
    for other in (torch.zeros(3, dtype=torch.int8), torch.nn.Parameter(torch.ones(2))):
        if _engine.data_pointer(other) != other.data_ptr():
            return "the engine reads another address than Tensor.data_ptr()"
        if _engine.requires_grad(other) != other.requires_grad:
            return "the engine reads another value than Tensor.requires_grad"
    metadata_bytes()
    return "direct"


@functools.cache
def metadata_bytes() -> int:
    """Calibrates how the engine compares all metadata of a tensor at once. 0: it asks for each."""
    samples = [
        torch.empty((3,) * dimensions, dtype=dtype, device=device)
        for dimensions, dtype, device in [
            (0, torch.float32, "cpu"),
            (1, torch.float64, "meta"),
            (2, torch.int8, "cpu"),
            (5, torch.bool, "meta"),
        ]
    ]
    return _engine.calibrate_metadata([(each, dispatch_keys(each).raw_repr()) for each in samples])


@functools.cache
def support() -> Support:
    """Looks once: torch's version, the driver, a GPU, the engine's access to tensors."""
    access = tensor_access()
    problem = torch_problem(torch.__version__)
    if problem is None and not torch.cuda.is_available():
        capabilities = _engine.capabilities()
        problem = capabilities.problem or "this torch finds no CUDA device"
    if problem is None and not _engine.capabilities().usable:
        problem = _engine.capabilities().problem
    if problem is None and access != "direct":
        problem = f"the engine cannot reach torch's tensors: {access}"
    if problem is None and not _engine.cuda_api_present():
        problem = "libtorch_cuda lacks the C functions that the engine calls"
    return Support(problem, access)


@functools.cache
def twin_problem() -> str | None:
    """Why programs cannot be compiled for the CPU twin; None when they can."""
    problem = torch_problem(torch.__version__)
    access = tensor_access()
    if problem is None and access != "direct":
        problem = f"the engine cannot reach torch's tensors: {access}"
    return problem
