"""The measuring harness: every way to run a model, side by side in one process.

models      which programs, and their inputs
modes       the ways to run them: eager, default, reduce-overhead, pygraph, and the floor
compare     whether a way computes what eager computes; nothing wrong is ever timed
measure     the clocks
run         one model through all of that
record      what is stored, and the summary over the models
table, chart, demo    what is shown
regress     two records compared, by ratios within each

and beside it, for the engine's record (benchmarks/engine.py), each in a process of its own:

large       programs at sizes where activations count
memory      what a mode does to the GPU's memory
tight       capturing where there is hardly any
linktime    linking and proving beside one capture
targets     the requirements, judged on stored figures
jobs, worker    the processes

training is the same for whole training steps (benchmarks/training.py), a package of its own.

Absolute times move from host to host and from hour to hour. Everything here is therefore measured
in rounds that visit each mode in turn, and what counts are the ratios within a run.
"""
