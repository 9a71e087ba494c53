"""Graphs of a GPU on a machine without one: traced without memory, and run with the device's half
on the CPU as well."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from pygraph.frontends.compile.parts import run_by_operators
from pygraph.transform import parts, pipeline
from pygraph.transform.split import Split

DEVICE = torch.device("cuda:0")


class OnDevice:
    """An argument that stands on the device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def _plain(argument: Any) -> Any:
    return argument.tensor if isinstance(argument, OnDevice) else argument


def trace(function: Any, *arguments: Any) -> torch.fx.GraphModule:
    """ATen's graph of a function of tensors of device and host, and of integers that vary."""
    shapes = ShapeEnv()
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes):
        fakes = [
            _varying(shapes, each, index)
            if type(each) is int
            else torch.empty_strided(
                _plain(each).shape,
                _plain(each).stride(),
                dtype=_plain(each).dtype,
                device=DEVICE if isinstance(each, OnDevice) else "cpu",
            )
            for index, each in enumerate(arguments)
        ]
        return make_fx(function)(*fakes)


def on_cpu(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph, which makes tensors on the CPU where it would on the device."""
    for node in module.graph.nodes:
        there = lambda leaf: torch.device("cpu") if leaf == DEVICE else leaf  # noqa: E731
        copies = "copy" in str(node.target) and node.kwargs.get("device") == DEVICE
        node.args = torch.utils._pytree.tree_map(there, tuple(node.args))
        node.kwargs = torch.utils._pytree.tree_map(there, dict(node.kwargs))
        if copies:  # a copy to where it is would be none
            node.target, node.args = torch.ops.aten.clone.default, node.args[:1]
            node.kwargs = {}
    module.recompile()
    return module


def _varying(shapes: ShapeEnv, value: int, index: int) -> torch.SymInt:
    source = ConstantSource(f"integer_{index}")
    symbol = shapes.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
    return shapes.create_symintnode(symbol, hint=value, source=source)


class Case:
    """A function before and after the passes."""

    def __init__(self, function: Any, *arguments: Any, generated: bool = True) -> None:
        self._plain = on_cpu(trace(function, *arguments))
        self.module = trace(function, *arguments)
        self.before = operators(self.module)
        self.split: Split | None = pipeline.in_parts(
            self.module, pipeline.ALL, generated=generated, home=torch.device("cpu")
        )
        assert operators(self.module) == self.before
        self.body = self.module if self.split is None else self.split.body
        self.after = operators(self.body)
        self.bodies = 0

    def run(self, *arguments: Any) -> tuple[list[Any], list[Any]]:
        """What both return for arguments of the host."""
        return list(self._plain(*arguments)), list(self.callable()(list(arguments)))

    def callable(self) -> parts.InParts:
        split = self.split
        assert split is not None
        host = lambda part: None if part is None else run_by_operators(on_cpu(part.module))  # noqa: E731
        body = run_by_operators(on_cpu(split.body))

        def count(given: list[Any]) -> Any:
            self.bodies += 1
            return body(given)

        return parts.InParts(
            split, count, host(split.front), host(split.behind), torch.device("cpu"), False
        )


def operators(module: torch.fx.GraphModule) -> list[str]:
    """What a graph calls, by name, in order."""
    return [
        str(node.target).removeprefix("aten.").removesuffix(".default")
        for node in module.graph.nodes
        if node.op == "call_function"
    ]
