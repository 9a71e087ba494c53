"""Any callable, captured as it is: `pygraph.capture` and `pygraph.make_graphed_callables`.

A call runs as it is first, and is watched (watching.py): which code ran, and which tensors it read
and wrote. What the callable reads hangs on a few roots, its arguments and its surroundings, and is
described as a tree (structure.py). The tensors in it are the arguments of a graph; those that the
callable was not given are *lifted* (lifting.py). A step (step.py) runs the callable on them, for
real or in a capture, and gives back what it returns and what it rebinds. From there on the way is
that of every graph: runtime.CompiledGraph. captured.py has the life of a captured callable.

Where results wait for a backward, the step also returns what autograd saves (training.py,
saving.py), and the backward is a callable of its own (kept.py), with its own graphs (backward.py).
"""
