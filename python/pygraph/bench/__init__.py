"""The measuring harness: every way to run a model, side by side in one process.

models      which programs, and their inputs
modes       the ways to run them: eager, default, reduce-overhead, pygraph, and the floor
compare     whether a way computes what eager computes; nothing wrong is ever timed
measure     the clocks
run         one model through all of that
record      what is stored, and the summary over the models
table, chart, demo    what is shown

Absolute times move from host to host and from hour to hour. Everything here is therefore measured
in rounds that visit each mode in turn, and what counts are the ratios within a run.
"""
