"""The 25 workloads of the paper, as programs from tensors to tensors.

workload    what a workload is
catalogue   the 25
inputs, language, speech, vision, numeric, multimodal    how their inputs and models are made
sources     TorchBench's checkout and the libraries, and what is missing
"""
