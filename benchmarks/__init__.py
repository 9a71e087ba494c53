"""The laboratory: what PyGraph is measured with. It is no part of the package that is installed."""
