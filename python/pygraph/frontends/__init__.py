"""Where calls come from. A frontend knows who calls a callable, which of its arguments stay, and
what its code makes buffers with; it hands that to `runtime` and knows nothing of captures."""
