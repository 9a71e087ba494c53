"""One model, compiled several times in one process without the compilations meeting.

Dynamo keeps what it compiled beside the *code object* of the function, so two torch.compile objects
of one model share a list of entries. Dynamo compares the backend before it takes an entry, but they
still count towards one recompile limit and are searched one after the other, which a measurement
would see. A twin of the model with a code object of its own has its own list.
"""

from __future__ import annotations

import copy
from types import FunctionType
from typing import Any


def isolated(model: Any, label: str) -> Any:
    """The same module with the same parameters, its `forward` a code object of its own.

    Only the outermost `forward`: behind a graph break in a submodule, that one's code is shared
    again, and there Dynamo's comparison of backends has to do.
    """
    forward = type(model).forward
    code = forward.__code__.replace(co_name=f"{forward.__code__.co_name}_{label}")
    own = FunctionType(code, forward.__globals__, code.co_name, None, forward.__closure__)
    own.__defaults__, own.__kwdefaults__ = forward.__defaults__, forward.__kwdefaults__
    twin = copy.copy(model)
    twin.__class__ = type(type(model).__name__, (type(model),), {"forward": own})
    return twin
