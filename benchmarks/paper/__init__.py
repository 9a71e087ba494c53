"""The paper's benchmark (`./run bench`): its 25 workloads, every way to run them, its tables.

workloads   the programs, a package of its own
modes       the ways to run them, pygraph with a part switched off among them, and the floor
prepare     all modes of a workload, to their steady states; memory
check       whether a mode computes what eager and the compiled callable do
run         one workload in all modes: prepared, checked, timed, profiled
worker      that in a process of its own
turns       alone on the machine for the clocks
suite, costs, progress    all workloads, resumable, with a table of what each is at
record      what is stored, and gone on with
report      the tables, figures and comparisons, a package of its own
command     what the command line asks for
"""
