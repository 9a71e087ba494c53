"""The threads that backwards run on."""

from __future__ import annotations

from pygraph.torch_private.names import bound

is_multithreading_enabled = bound("torch._C:_is_multithreading_enabled")
set_multithreading_enabled = bound("torch._C:_set_multithreading_enabled")
count_up_versions = bound("torch._C:_increment_version")
