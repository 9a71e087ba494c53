"""The paper's benchmark (`pygraph bench`): its 25 workloads, every way to run them, its tables.

What is measured:

workload    what a workload is
catalogue   the 25
inputs, language, speech, vision, numeric, multimodal    how their inputs and models are made
sources     TorchBench's checkout and the libraries, and what is missing
modes       the ways to run them, pygraph with a part switched off among them, and the floor

How:

prepare     all modes of a workload, to their steady states; memory
check       whether a mode computes what eager and the compiled callable do
profile     what ran on the GPU in an iteration, and how it was launched
run         one workload in all modes: prepared, checked, timed, profiled
worker      that in a process of its own
turns       alone on the machine for the clocks
suite, costs, progress    all workloads, resumable, with a table of what each is at
record      what is stored, and gone on with
command     what the command line asks for

And what is made of it, from stored records alone:

published   what the paper published
figures     numbers derived from rows
targets     the requirements, judged
blocks, tables, sections    the report, whatever it is written as
markdown, html, style, charts, report    its files
compare     what got slower between two records
"""
