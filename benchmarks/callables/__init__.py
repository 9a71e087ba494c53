"""The benchmark of captured functions (./run bench-callables): whole steps as one CUDA graph.

program      what a row measures: models, optimizers, and a unit of work on them
workloads_*  the rows' programs
catalogue    all rows
modes        the ways to call a unit: eager, compiled, captured by hand, captured by PyGraph
check        whether a mode computes what it should; nothing wrong is ever timed
run          one row in all modes: prepared, weighed, checked, timed
worker       one row in a process of its own
suite        all rows and their processes, within a budget
record       what is stored, and gone on with
targets      the goals, judged on stored figures
table        what is shown
timeline     when the host launched and the GPU ran, in one call
chart        that as a picture
"""
