"""Which frames of a stack are the program's, and not torch's or PyGraph's."""

from __future__ import annotations

import os

import torch

import pygraph

_PACKAGES = tuple(os.path.join(each.__path__[0], "") for each in (torch, pygraph))
#: It has models, which are programs like any other.
_BENCH = os.path.join(pygraph.__path__[0], "bench", "")


def is_programs(file: str) -> bool:
    """Whether a frame's file is of the program. Generated code ("<string>") is not."""
    return file.startswith(_BENCH) or not file.startswith(("<", *_PACKAGES))
