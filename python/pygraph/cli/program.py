"""The program that `pygraph plan` is asked about: a model of the demo, or `module:factory`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from pygraph.frontends.compile.plan import plan
from pygraph.planning import Plan

RETURNS = "a model, (model, args) or (model, args, kwargs)"
LISTED = 12
"""Names that are listed in place of one that is not there."""
SIZES = re.compile(r"(\d+(?:x\d+)*)(?::(\w+))?")


def make_plan(named: str, inputs: Sequence[str], training: bool) -> Plan:
    """KeyError or ValueError, with what was found and what is needed, where that cannot be."""
    if ":" in named:
        model, args, kwargs = load(named, [tensor(each) for each in inputs])
        return plan(model, args, kwargs, name=named, training=training)
    from pygraph.demo import models
    from pygraph.demo.without_gpu import plan_workload

    if inputs:
        raise ValueError(f"{named}, a model of the demo, has its own inputs: leave out --input")
    try:
        (workload,) = models.find(named)
    except KeyError as error:
        raise KeyError(f"{error.args[0]}; for a model of your own: module:factory") from error
    return plan_workload(workload, training)


def load(named: str, inputs: Sequence[torch.Tensor]) -> tuple[Any, Any, Mapping[str, Any]]:
    """The model that `module:factory` names, and the arguments that it is called with."""
    made = _made(named)
    if not isinstance(made, tuple):
        if not callable(made):
            raise ValueError(f"{named} returned {type(made).__name__}; needed: {RETURNS}")
        if not inputs:
            raise ValueError(
                f"{named} is a model without arguments; needed: --input, such as --input "
                "1x3x224x224:float32, or a factory that returns (model, args)"
            )
        return made, tuple(inputs), {}
    if not 2 <= len(made) <= 3 or not callable(made[0]):
        found = ", ".join(type(each).__name__ for each in made)
        raise ValueError(f"{named} returned ({found}); needed: {RETURNS}")
    if inputs:
        raise ValueError(f"{named} returned its own arguments: leave out --input")
    model, args, *rest = made
    kwargs = rest[0] if rest else {}
    if not isinstance(args, tuple | list | torch.Tensor) or not isinstance(kwargs, Mapping):
        found = f"args: {type(args).__name__}, kwargs: {type(kwargs).__name__}"
        raise ValueError(f"{named} returned {found}; needed: a tuple or list, and a dictionary")
    return model, args, kwargs


def _made(named: str) -> Any:
    module, _, path = named.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except Exception as error:
        raise ValueError(
            f"{named}: importing {module!r} raised {_in_short(error)}; needed: a module in "
            f"{os.getcwd()} or an installed one"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            there = [each for each in dir(found) if not each.startswith("_")]
            shown = ", ".join([*there[:LISTED], *["..."] * (len(there) > LISTED)]) or "nothing"
            raise ValueError(f"{named}: found no {name!r} there, but {shown}")
        found = getattr(found, name)
    if isinstance(found, torch.nn.Module):
        return found
    if not callable(found):
        raise ValueError(f"{named} is a {type(found).__name__}; needed: a model or a factory")
    try:
        return found()
    except Exception as error:
        raise ValueError(
            f"{named}() raised {_in_short(error)}; a factory takes no arguments and returns "
            f"{RETURNS}"
        ) from error


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else '-'}"


def tensor(text: str) -> torch.Tensor:
    """Of these sizes and this type: "1x3x224x224:float32"."""
    match = SIZES.fullmatch(text)
    dtype = getattr(torch, match[2] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise ValueError(
            f"--input {text}: needed are sizes and a type of torch, such as 1x3x224x224:float32, "
            "4x128:int64 or 16:bool"
        )
    return torch.empty([int(size) for size in match[1].split("x")], dtype=dtype)
