"""The benchmark of lanes (./run bench-parallel): nodes of a graph side by side, beside one chain.

nets        models with branches that no library has
workloads   what is measured: models, and what they are called with
modes       the ways to run them: serial, with lanes, the floor, streams by hand
check       whether a mode computes what it should; nothing wrong is ever timed
run         one workload in all modes: prepared, weighed, checked, timed
timeline    which kernel ran when on which stream, as a picture
worker      one workload in a process of its own
suite       all workloads and their processes, within a budget
record      what is stored
goals       the summary, and the goals judged on it
command     what the command line asks for
"""
