"""torch.cuda. Some names are those of a build of torch for CUDA alone."""

from __future__ import annotations

from typing import Any

from pygraph.torch_private.names import bound, place

is_in_bad_fork = bound("torch.cuda:_is_in_bad_fork")
sleep = bound("torch.cuda:_sleep")
#: The truth: callables that are captured may be told otherwise (capturing/asking.py).
is_current_stream_capturing = bound("torch._C:_cuda_isCurrentStreamCapturing")
is_history_enabled = bound("torch._C:_cuda_isHistoryEnabled")
record_memory_history = bound("torch.cuda.memory:_record_memory_history")
memory_snapshot = bound("torch.cuda.memory:_snapshot")
clear_cublas_workspaces = bound("torch._C:_cuda_clearCublasWorkspaces")


def answer_about_captures() -> tuple[Any, str]:
    """Where torch.cuda.is_current_stream_capturing() has its answer from."""
    return place("torch.cuda.graphs:_cuda_isCurrentStreamCapturing")
