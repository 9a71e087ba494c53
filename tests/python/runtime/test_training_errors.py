"""Backwards that never come, or that do not come to their end.

Every program runs compiled by PyGraph and by torch's aot_eager, and must compute the same bits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import Place
from torch.multiprocessing.reductions import StorageWeakRef
from training_support import Compile, agree, gradients, net, raised, serves

TRAINED = ("forward", "backward")


def saved_storages(result: torch.Tensor, module: torch.nn.Module) -> list[StorageWeakRef]:
    """Of what the forward saved for the backward, the module's own memory left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    saved = result.grad_fn.saved_tensors  # type: ignore[union-attr]
    storages = [tensor.untyped_storage() for tensor in saved]
    return [StorageWeakRef(storage) for storage in storages if storage.data_ptr() not in own]


def test_a_backward_that_never_comes_gives_its_memory_back(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(8):
            module.zero_grad()
            result = fast(place.randn(5, 6))
            saved = saved_storages(result, module)
            assert saved and not any(storage.expired() for storage in saved)
            if step % 2 == 0:
                result.square().sum().backward()
                kept += gradients(module)
            kept.append(result.detach().clone())
            del result
            assert all(storage.expired() for storage in saved), step
        return kept

    serves(agree(place, program), *TRAINED, replays=2)


class Interrupted(Exception):
    """Raised by the user's own code."""


@pytest.mark.parametrize("where", ["between", "in a hook", "in a hook of a parameter"])
def test_an_exception_between_forward_and_backward_or_in_it(place: Place, where: str) -> None:
    def interrupt(gradient: torch.Tensor) -> None:
        raise Interrupted

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)

        def step(fails: bool) -> None:
            result = fast(place.randn(5, 6))
            if fails and where == "between":
                raise Interrupted
            if fails and where == "in a hook":
                result.register_hook(interrupt)
            hook = None
            if fails and where == "in a hook of a parameter":
                hook = module.first.weight.register_hook(interrupt)
            try:
                result.square().sum().backward()
            finally:
                if hook is not None:
                    hook.remove()

        kept: list[Any] = []
        for number in range(9):
            module.zero_grad()
            fails = number % 3 == 2
            kept.append(raised(lambda fails=fails: step(fails)))
            assert fails == ("Interrupted" in kept[-1])
            if not fails:
                kept += gradients(module)
        return kept

    serves(agree(place, program), *TRAINED, replays=4)
