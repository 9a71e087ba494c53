"""`pygraph.make_graphed_callables`, in place of torch.cuda.make_graphed_callables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

import torch

from pygraph.frontends.callable.captured import capture
from pygraph.frontends.callable.step import tensors_in

One = TypeVar("One", bound=Callable[..., Any])
Several = TypeVar("Several", bound=tuple[Callable[..., Any], ...])


@overload
def make_graphed_callables(
    callables: Several,
    sample_args: tuple[tuple[Any, ...], ...],
    num_warmup_iters: int = ...,
    allow_unused_input: bool = ...,
    pool: Any = ...,
    *,
    device: str = ...,
) -> Several: ...
@overload
def make_graphed_callables(
    callables: One,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = ...,
    allow_unused_input: bool = ...,
    pool: Any = ...,
    *,
    device: str = ...,
) -> One: ...
def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    *,
    device: str = "cuda",
) -> Any:
    """Makes callables whose calls and backwards are replayed as CUDA graphs, in place of
    torch.cuda.make_graphed_callables.

    model = pygraph.make_graphed_callables(model, (sample,))

    `callables`: a module or function, or a tuple of them. A module gets another forward and is
    returned; in place of a function a new one is returned. `sample_args`: for each callable a tuple
    of arguments. Each callable is called on them `num_warmup_iters` times, with a backward, which
    makes its first graphs if that is 3 or more; 0: the program's own calls do. Buffers of modules,
    tensors among the arguments and the generators are left as they were, and no gradient is
    accumulated. `allow_unused_input`: arguments and parameters that require grad need not take part
    in the results. `pool` is taken for torch's sake and not needed.

    What torch asks for is not needed: calls may have other shapes, dtypes, keywords and values, may
    be made under autocast, several times before a backward, in training and evaluation. Each kind
    of call gets graphs of its own. Inputs are not copied, results and gradients are the caller's to
    keep. Modules may have hooks. What no graph can serve runs as it is, and pygraph.report() says
    why.

    Raises RuntimeError for an input that is not used, as torch does, ValueError or TypeError for
    wrong arguments, and what the callables raise. What it returns may be called from several
    threads; it must itself be called by one at a time for a module."""
    several = isinstance(callables, tuple)
    functions: tuple[Any, ...] = callables if several else (callables,)
    samples: tuple[Any, ...] = sample_args if several else (sample_args,)
    _require_arguments(functions, samples, num_warmup_iters)
    made = tuple(_graphed(function, device) for function in functions)
    for function, sample in zip(made, samples, strict=True):
        with _left_as_it_is(function, sample):
            for _ in range(num_warmup_iters):
                _warm_up(function, sample, allow_unused_input)
    return made if several else made[0]


def _require_arguments(functions: Sequence[Any], samples: Sequence[Any], iterations: int) -> None:
    for function in functions:
        if not callable(function):
            kind = type(function).__name__
            raise TypeError(f"make_graphed_callables takes callables, found a {kind}")
    if len(samples) != len(functions) or not all(isinstance(each, tuple) for each in samples):
        raise TypeError(
            "sample_args must be a tuple of arguments, or one for each of the callables"
        )
    if iterations < 0:
        raise ValueError(f"num_warmup_iters is {iterations}; it must be 0 or more")


def _graphed(function: Any, device: str) -> Any:
    if not isinstance(function, torch.nn.Module):
        return capture(function, device=device)
    function.forward = capture(function.forward, device=device)
    return function


def _warm_up(function: Callable[..., Any], sample: tuple[Any, ...], allow_unused: bool) -> None:
    """One call and its backward, whose gradients nobody gets."""
    outputs = [each for each in tensors_in(function(*sample)) if each.requires_grad]
    own = function.parameters() if isinstance(function, torch.nn.Module) else ()
    inputs = [each for each in (*tensors_in(sample), *own) if each.requires_grad]
    if outputs and inputs:
        ones = [torch.ones_like(each) for each in outputs]
        torch.autograd.grad(outputs, inputs, ones, allow_unused=allow_unused)


@contextlib.contextmanager
def _left_as_it_is(function: Any, sample: tuple[Any, ...]) -> Iterator[None]:
    """Puts back what calls write meanwhile: buffers, arguments, generators."""
    module = function if isinstance(function, torch.nn.Module) else torch.nn.Module()
    buffers = [
        (owner, name, buffer)
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    written = [*tensors_in(sample), *(buffer for _, _, buffer in buffers)]
    values = [each.detach().clone() for each in written]
    gpus = {each.device.index for each in (*written, *module.parameters()) if each.is_cuda}
    if not gpus and torch.cuda.is_available():
        gpus = {torch.cuda.current_device()}
    try:
        with torch.random.fork_rng(devices=sorted(gpus)):
            yield
    finally:
        for owner, name, buffer in buffers:
            setattr(owner, name, buffer)
        with torch.no_grad():
            for each, value in zip(written, values, strict=True):
                if not torch.equal(each, value):
                    each.copy_(value)
