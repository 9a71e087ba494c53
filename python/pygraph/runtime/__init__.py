"""The life of a compiled graph: its programs, its threads, its training pair, its report."""
