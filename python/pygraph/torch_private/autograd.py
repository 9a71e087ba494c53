"""Backwards and their threads, versions of tensors, and functions of the program's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygraph.torch_private.names import bound, place
from pygraph.torch_private.replacing import surround

is_multithreading_enabled = bound("torch._C:_is_multithreading_enabled")
set_multithreading_enabled = bound("torch._C:_set_multithreading_enabled")
count_up_versions = bound("torch._C:_increment_version")
set_versions = bound("torch._C._autograd:_unsafe_set_version_counter")
#: What torch's Python code names where it calls a backward (torch/autograd/graph.py).
WAY_IN = "run_backward"


def surround_arguments_of_functions(around: Callable[..., Any]) -> None:
    """Has `around(original, args)` return the arguments of each torch.autograd.Function that is
    applied, from now on; `original(args)` does what torch does with them. Once."""
    surround(place("torch._functorch.utils:unwrap_dead_wrappers"), around)
