"""PyGraph: a linker and loader for CUDA graphs on stock PyTorch.

    model = torch.compile(model, backend="pygraph")

The public names are loaded on first use, so that importing the package costs next to nothing and
works on a machine without a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pygraph.frontends.adopt.adopted import NotMovable, adopt
    from pygraph.frontends.callable.captured import capture
    from pygraph.frontends.callable.graphed import make_graphed_callables
    from pygraph.frontends.compile.backend import backend
    from pygraph.frontends.compile.example import NotFrozen
    from pygraph.frontends.compile.explain import explain
    from pygraph.frontends.compile.freeze import freeze
    from pygraph.frontends.compile.plan import plan
    from pygraph.runtime.registry import info, report, reset
    from pygraph.runtime.requirement import RequirementNotMet

    __version__: str

__all__ = [
    "NotFrozen",
    "NotMovable",
    "RequirementNotMet",
    "__version__",
    "adopt",
    "backend",
    "capture",
    "explain",
    "freeze",
    "info",
    "make_graphed_callables",
    "plan",
    "report",
    "reset",
]

_HOMES = {
    "backend": "pygraph.frontends.compile.backend",
    "adopt": "pygraph.frontends.adopt.adopted",
    "capture": "pygraph.frontends.callable.captured",
    "NotFrozen": "pygraph.frontends.compile.example",
    "freeze": "pygraph.frontends.compile.freeze",
    "NotMovable": "pygraph.frontends.adopt.adopted",
    "RequirementNotMet": "pygraph.runtime.requirement",
    "explain": "pygraph.frontends.compile.explain",
    "info": "pygraph.runtime.registry",
    "make_graphed_callables": "pygraph.frontends.callable.graphed",
    "report": "pygraph.runtime.registry",
    "reset": "pygraph.runtime.registry",
    "plan": "pygraph.frontends.compile.plan",
}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker finds the names above, and no others

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from pygraph import _engine

            return _engine.version
        if name in _HOMES:
            import importlib

            value = getattr(importlib.import_module(_HOMES[name]), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module 'pygraph' has no attribute {name!r}")
