"""Which library computes a convolution, and in which layout."""

from __future__ import annotations

from pygraph.torch_private.names import bound

select_backend = bound("torch._C:_select_conv_backend")
memory_format = bound("torch._C:_conv_determine_backend_memory_format")
