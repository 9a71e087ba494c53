"""The training benchmark (./run bench-training): whole steps, every way to take them.

nets        networks that no library brings
models      which programs, and their inputs
modes       the ways to train them: eager, default, reduce-overhead, pygraph, and the floor
tracks      what a few steps leave, and how far two such tracks are apart
check       whether a mode trains as it should; nothing wrong is ever timed
compiling   what compiling costs, and what is tuned
run         one program through all modes: prepared, checked, timed
memory      one program in one mode, weighed
worker      one of these in a process of its own
suite       all programs and their processes, within a budget
record      what is stored, and gone on with
targets     the requirements, judged on stored figures
table       what is shown
"""
