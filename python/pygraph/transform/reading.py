"""What a node of an ATen graph computes with: its value without memory, and where that is."""

from __future__ import annotations

from typing import Any

import torch

from pygraph.frames import of_text
from pygraph.operators.obstacles import on_cpu
from pygraph.torch_private.dispatch import tree_leaves
from pygraph.torch_private.fake_tensors import known_true
from pygraph.torch_private.symbols import of as symbols_of


def value(node: Any) -> Any:
    """What tracing has left of it: a tensor without memory, a size, a tuple of them, or None."""
    return node.meta.get("val")


def tensors(node: Any) -> list[torch.Tensor]:
    """Those that a node makes."""
    return [leaf for leaf in tree_leaves(value(node)) if isinstance(leaf, torch.Tensor)]


def on_host(node: Any) -> bool:
    """Whether it makes tensors, all of them on the host."""
    made = tensors(node)
    return bool(made) and all(map(on_cpu, made))


def on_device(node: Any) -> bool:
    """Whether it makes a tensor that is not on the host."""
    return any(not on_cpu(tensor) for tensor in tensors(node))


def is_plain(node: Any) -> bool:
    """Whether the tensors that a node makes are what their memory holds: none is sparse, quantized,
    or to be conjugated or negated."""
    return all(
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        for tensor in tensors(node)
    )


def is_number(node: Any) -> bool:
    """Whether it makes a size, or another number of Python's."""
    return isinstance(value(node), (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def devices(graph: torch.fx.Graph) -> set[torch.device]:
    """Of all tensors in a graph, but the host."""
    made = (tensor for node in graph.nodes for tensor in tensors(node))
    return {tensor.device for tensor in made if not on_cpu(tensor)}


def placeholders(graph: torch.fx.Graph) -> list[Any]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def output(graph: torch.fx.Graph) -> Any:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def results(graph: torch.fx.Graph) -> list[Any]:
    """What a graph returns: nodes, numbers and None."""
    (returned,) = output(graph).args
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def source(node: Any) -> str | None:
    """The user's line that it comes from, as 'file.py:12'."""
    place = of_text(node.stack_trace)
    return None if place is None else str(place)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements are known to fill its memory, each once: then copying its bytes copies
    it. Asks nothing of sizes that would be guarded."""
    expected: Any = 1
    dimensions = list(zip(tensor.shape, tensor.stride(), strict=True))
    if all(type(number) is int for pair in dimensions for number in pair):
        dimensions.sort(key=lambda pair: (pair[1], pair[0]), reverse=True)
    for size, stride in reversed(dimensions):
        if not known_true(size == 1):
            if not known_true(stride == expected):
                return False
            expected = expected * size
    return True


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether an element may stand in for several, as in an expanded tensor."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(known_true(stride == 0) and not known_true(size == 1) for size, stride in pairs)


def same_layout(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of the same sizes are known to have the same strides."""
    pairs = zip(left.stride(), right.stride(), strict=True)
    return all(known_true(one == other) for one, other in pairs)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same tensor without memory, on another device."""
    with tensor.fake_mode:
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
        )


def symbols(node: Any) -> set[Any]:
    """The symbols that sizes, strides and numbers of what it makes consist of."""
    return {symbol for leaf in tree_leaves(value(node)) for symbol in symbols_of(leaf)}
