"""Backwards run on the thread that calls them.

Autograd has a thread of its own for each GPU. `loss.backward()` wakes it and sleeps; it runs the
backward, Python's part of it too, and wakes the caller. Where graphs have taken the launches off
the host, the two wakes and the caches that are cold on either side are a good part of an iteration.
Torch can run a backward on the calling thread (torch.autograd.set_multithreading_enabled): the
order of its nodes, their streams and their results are the same. What is lost is that backwards of
several GPUs are launched side by side, so this is only done in a process that uses one.

The setting is a thread's, and is read when `backward()` begins, before anything of ours runs; and
what changes it in the backward is undone at its end. So it is turned off in the first call of a
forward that may get a graph, and stays so: cuDNN's execution plans belong to the thread that they
were made on (aten/src/ATen/native/cudnn/Conv_v8.cpp), and backwards that changed their thread would
have them made again. It takes seconds. Whoever turns it on again there is left alone.
"""

from __future__ import annotations

import threading

from pygraph.torch_private import autograd


class _Here(threading.local):
    """Of this thread."""

    ours = False  #: that the setting was turned off


_here = _Here()


def settle(alone: bool) -> None:
    """Backwards that this thread calls run on it from now on if `alone`, that is if the process
    uses one GPU; otherwise where torch has them."""
    if not alone:
        leave()
    elif not _here.ours and autograd.is_multithreading_enabled():
        autograd.set_multithreading_enabled(False)
        _here.ours = True


def resume() -> None:
    """They run on it again, if they did and somebody took it back."""
    if _here.ours:
        autograd.set_multithreading_enabled(False)


def leave() -> None:
    """Takes that back, on this thread."""
    if _here.ours:
        autograd.set_multithreading_enabled(True)
        _here.ours = False
