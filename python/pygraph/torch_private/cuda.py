"""torch.cuda. Some names are those of a build of torch for CUDA alone."""

from __future__ import annotations

from pygraph.torch_private.names import bound

is_in_bad_fork = bound("torch.cuda:_is_in_bad_fork")
sleep = bound("torch.cuda:_sleep")
is_history_enabled = bound("torch._C:_cuda_isHistoryEnabled")
record_memory_history = bound("torch.cuda.memory:_record_memory_history")
memory_snapshot = bound("torch.cuda.memory:_snapshot")
clear_cublas_workspaces = bound("torch._C:_cuda_clearCublasWorkspaces")
