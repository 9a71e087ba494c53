"""What a call of an operator reads and writes, for whoever lets nodes run side by side.

Its schema says which arguments it writes, and what it returns is written. What nobody has declared,
or has declared for an operator that is not torch's, reads and writes all of the memory that its
nodes have addresses of: such a call has no touches. What is read is taken to be all of the memory
that a tensor is in, for a kernel may count from its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pygraph import _engine
from pygraph.operators import known
from pygraph.operators.obstacles import draws
from pygraph.operators.table import COLLECTIVES
from pygraph.torch_private.dispatch import OpOverload, tree_leaves

#: Namespaces whose schemas are kept to: torch's own operators.
_DECLARED = ("aten", "prims")


def known_nodes(
    nodes: tuple[int, int], target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> _engine.KnownNodes:
    """Of a call that launched these nodes, as counts before and after, and returned `result`."""
    touches = _touches(target, args, kwargs, result)
    return _engine.KnownNodes(*nodes, touches, in_order=_in_order(target, args, kwargs))


def reading(tensor: torch.Tensor) -> _engine.Touch:
    return _engine.Touch(tensor.data_ptr(), False)


def writing(tensor: torch.Tensor, whole: bool = False) -> _engine.Touch:
    """All that the tensor's elements are in, or the whole memory that it is in."""
    if whole:
        return _engine.Touch(tensor.data_ptr(), True)
    item = tensor.element_size()
    steps = [stride * item for stride in tensor.stride()]
    dimensions = list(zip(tensor.shape, steps, strict=True))
    return _engine.Touch(tensor.data_ptr(), True, item, dimensions)


def _touches(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[_engine.Touch]:
    if not isinstance(target, OpOverload) or target.namespace not in _DECLARED:
        return []
    read, written = _tensors((args, kwargs)), known.written(target, args, kwargs)
    results = _tensors(result)
    if any(each.layout != torch.strided for each in (*read, *written, *results)):
        return []
    given = {each.untyped_storage().data_ptr() for each in read}
    # What is between the elements of memory that the call has made is nobody's, and may be copied
    # with them (slice_scatter of a strided tensor).
    return [
        *(reading(each) for each in read if each.numel()),
        *(writing(each) for each in written if each.numel()),
        *(
            writing(each, each.untyped_storage().data_ptr() not in given)
            for each in results
            if each.numel()
        ),
    ]


def _in_order(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether calls of it stay in order: they draw random numbers, or other ranks make them too."""
    if not isinstance(target, OpOverload):
        return True
    return target.namespace in COLLECTIVES or draws(target, args, kwargs)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
