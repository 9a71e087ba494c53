"""Graphs that somebody else captured, made movable: `pygraph.adopt`.

There is no callable here, and nothing is captured. Two captures of the same work are there already,
with other static tensors (pairs.py). The engine compares them, the addresses of these tensors are
relocated, and all else stays where the first capture has it, explained word by word (words.py). The
proof is that of every graph (capturing/proof.py), with a replay of the first graph as the callable
(proving.py). adopted.py has the whole in its order.
"""
