"""Graphs rewritten before they are compiled, so that nothing in them stands in a capture's way."""
