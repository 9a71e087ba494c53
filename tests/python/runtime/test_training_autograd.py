"""Training as autograd allows it: in any order, several times, in part.

Every program runs compiled by PyGraph and by torch's aot_eager, and must compute the same bits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import Place
from torch.utils.checkpoint import checkpoint
from training_support import Compile, Net, agree, gradients, net, raised, serves, values

TRAINED = ("forward", "backward")


# ------------------------------------------------------------------- the order of backwards


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_forwards_before_their_backwards_in_any_order(place: Place, order: tuple[int, ...]) -> None:
    """What several forwards save is alive at the same time, each on memory of its own."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for _ in range(4):
            module.zero_grad()
            losses = [fast(place.randn(5, 6)).square().mean() for _ in order]
            for index in order:
                losses[index].backward()
                kept += [gradient.clone() for gradient in gradients(module)]
            kept += losses
        return kept

    serves(agree(place, program), *TRAINED, replays=8)


def test_a_graph_is_kept_for_a_second_backward(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for _ in range(4):
            module.zero_grad()
            loss = fast(place.randn(5, 6)).square().sum()
            loss.backward(retain_graph=True)
            first = [gradient.clone() for gradient in gradients(module)]
            fast(place.randn(5, 6))  # another forward, whose memory is given back
            loss.backward()
            kept += [loss, *first, *gradients(module)]
            kept.append(raised(loss.backward))
        return kept

    serves(agree(place, program), *TRAINED, replays=2)


class Deep(torch.nn.Module):
    """Many layers, so that a backward that gives activations up as it goes needs less memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle = x
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            middle = x if number == 3 else middle
        return x, middle


def test_what_somebody_else_holds_outlives_a_backward_in_parts(place: Place) -> None:
    """A backward lets go of what was saved as soon as it is used, if it alone holds it."""

    def program(compiled: Compile) -> list[Any]:
        module = Deep().to(place.torch)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(8):
            module.zero_grad()
            result, middle = fast(place.randn(40, 6))
            saved = result.grad_fn.saved_tensors if step % 2 else ()  # type: ignore[union-attr]
            before = [tensor.clone() for tensor in saved]
            loss = result.square().sum() + middle.sum()
            for last in (False, True) if step % 3 == 0 else (True,):
                loss.backward(retain_graph=not last)
                kept += [gradient.clone() for gradient in gradients(module)]
                place.randn(40, 6)  # takes memory that is free
            assert all(map(torch.equal, saved, before))
            kept += [middle, result]
        return kept

    report = agree(place, program)
    serves(report, *TRAINED, replays=6)
    if place.name == "twin":
        assert max(graph.parts for graph in report.graphs) > 2


def test_a_backward_of_a_backward_is_refused_as_torch_refuses_it(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for _ in range(4):
            x = place.randn(5, 6, requires_grad=True)
            loss = fast(x).square().sum()
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            kept += [gradient.detach(), raised(gradient.square().sum().backward)]
        assert "double backward" in kept[-1]
        return kept

    serves(agree(place, program), *TRAINED, replays=2)


# ------------------------------------------------------------------- gradients


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_add_up_over_micro_batches(place: Place, set_to_none: bool) -> None:
    """pytorch#169545, #96693, #181723: autograd takes a first gradient as it is and adds the later
    ones to it. Memory that the next backward writes again would count the last one several times.
    """

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        kept: list[Any] = []
        for _ in range(4):
            for _ in range(4):
                loss = fast(place.randn(5, 6)).square().mean() / 4
                loss.backward()
                kept.append(loss.detach())
            kept += [gradient.clone() for gradient in gradients(module)]
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        return kept + values(module)

    serves(agree(place, program), *TRAINED, replays=14)


def test_gradients_are_the_callers_own(place: Place) -> None:
    """pytorch#170604, #158551: what is kept of earlier steps stays, and may be written."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for step in range(6):
            module.zero_grad()
            out = fast(place.randn(5, 6))
            out.square().mean().backward()
            of_this_step = [parameter.grad for parameter in module.parameters()]
            kept += [out, *of_this_step]
            if step % 2:
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
                for gradient in of_this_step:
                    assert gradient is not None
                    gradient.add_(1.0)
        return kept

    serves(agree(place, program), *TRAINED, replays=4)


def test_an_input_that_wants_a_gradient(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for _ in range(5):
            x = place.randn(5, 6, requires_grad=True)
            fast(x).square().sum().backward()
            kept.append(x.grad)
        return kept + gradients(module)

    serves(agree(place, program), *TRAINED, replays=3)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_only_some_outputs_get_a_gradient(place: Place, used: tuple[int, ...]) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)

        def three(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = module(x)
            return y.sin(), (y * 2).sum(1), y.exp()

        fast = compiled(three)
        kept: list[Any] = []
        for _ in range(5):
            module.zero_grad()
            outputs = fast(place.randn(5, 6))
            torch.stack([outputs[index].sum() for index in used]).sum().backward()
            kept += [*outputs, *gradients(module)]
        return kept

    serves(agree(place, program), *TRAINED, replays=3)


def test_a_frozen_part_gets_no_gradient(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        module.first.requires_grad_(False)
        fast = compiled(module)
        for _ in range(5):
            fast(place.randn(5, 6)).square().sum().backward()
        assert module.first.weight.grad is None
        return gradients(module.second)

    serves(agree(place, program), *TRAINED, replays=3)


class Tied(Net):
    """Its second layer's weight is the first's."""

    def __init__(self) -> None:
        super().__init__(6)
        self.second = torch.nn.Linear(6, 6)
        self.second.weight = self.first.weight


def test_a_tied_weight_gets_both_gradients(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = Tied().to(place.torch)
        fast = compiled(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        kept: list[Any] = []
        for _ in range(5):
            optimizer.zero_grad()
            fast(place.randn(5, 6)).square().sum().backward()
            optimizer.step()
            kept += gradients(module)
        return kept + values(module)

    serves(agree(place, program), *TRAINED, replays=3)


class Clipped(torch.autograd.Function):
    """Passes gradients on, and only small ones."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient.clamp(-0.1, 0.1) * x


def test_a_backward_of_the_users_own(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(lambda x: Clipped.apply(module(x)) + 1)
        for _ in range(5):
            fast(place.randn(5, 6)).sum().backward()
        return gradients(module)

    serves(agree(place, program), *TRAINED, replays=3)


def test_a_result_that_is_saved_too(place: Place) -> None:
    """Writing to it before the backward is an error of torch, with us as without."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(lambda x: module(x).exp())  # exp saves its result
        kept: list[Any] = []
        for step in range(8):
            module.zero_grad()
            result = fast(place.randn(5, 6))
            loss = result.sum()
            kept.append(result)
            if step % 2:
                with torch.no_grad():
                    result.add_(1)
            kept += [raised(loss.backward), *gradients(module)]
        assert "modified by an inplace operation" in str([x for x in kept if isinstance(x, str)])
        return kept

    serves(agree(place, program), *TRAINED, replays=2)


def test_autocast(place: Place) -> None:
    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        fast = compiled(module)
        kept: list[Any] = []
        for _ in range(5):
            module.zero_grad()
            with torch.autocast(place.torch.type, torch.bfloat16):
                out = fast(place.randn(5, 6))
            assert out.dtype == torch.bfloat16
            out.float().square().mean().backward()
            kept += [out, *gradients(module)]
        return kept

    serves(agree(place, program), *TRAINED, replays=3)


# ------------------------------------------------------------------- recomputation


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["inside", "around"])
def test_checkpoints(place: Place, where: str, reentrant: bool) -> None:
    """pytorch#181723, #154306: a forward that is run again within the backward."""

    def program(compiled: Compile) -> list[Any]:
        module = net(place)
        if where == "inside":
            fast = compiled(lambda x: checkpoint(module, x, use_reentrant=reentrant).sin())
        else:
            inner = compiled(module)
            fast = lambda x: checkpoint(inner, x, use_reentrant=reentrant).sin()  # noqa: E731
        kept: list[Any] = []
        for _ in range(6):
            for _ in range(2):  # accumulated
                x = place.randn(5, 6, requires_grad=True)
                fast(x).square().sum().backward()
                kept.append(x.grad)
        return kept + gradients(module)

    report = agree(place, program)
    again = ("inference",) if (where, reentrant) == ("around", True) else ()
    serves(report, *TRAINED, *again, replays=4)
