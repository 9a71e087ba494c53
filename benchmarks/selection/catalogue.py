"""All scenarios, by theme. Tiny ones have the same kernels, smaller tensors and fewer of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.layers import Layer
from benchmarks.selection import callers
from benchmarks.selection.models import (
    Bag,
    Cell,
    Clone,
    Columns,
    Each,
    Foreach,
    Kernels,
    Normed,
    Outputs,
    Pointwise,
    Product,
    Readers,
    Regression,
    Total,
    broken,
    convolutions,
    perceptron,
)
from benchmarks.selection.scenario import WIDTH, Made, Scenario, drawn, large, lengths, mixed
from pygraph.demo.models import chosen

WAITS, FLOWS = True, False
TF32 = 1e-2
"""Tolerance where cuDNN rounds to TF32, as torch has it."""
SQUARE = drawn((WIDTH, WIDTH))
FEW_ROWS = drawn((8, WIDTH))


def few_kernels(tiny: bool) -> list[Scenario]:
    rows, columns = (64, 256) if tiny else (32_768, 1024)
    big = large(rows, columns)
    return [
        Scenario("pointwise", "one tiny pointwise kernel", Pointwise, FEW_ROWS, WAITS),
        Scenario("pointwise_flow", "the same, and no waiting", Pointwise, FEW_ROWS, FLOWS),
        Scenario("matmul", "one small matrix product", Product, SQUARE, WAITS),
        Scenario("matmul_flow", "the same, and no waiting", Product, SQUARE, FLOWS),
        Scenario("reduction", "one small reduction", Total, SQUARE, WAITS),
        Scenario("reduction_flow", "the same, and no waiting", Total, SQUARE, FLOWS),
        Scenario("pointwise_128mb", "one pointwise kernel that is bandwidth-bound, of 128 MiB",
                 Pointwise, big, WAITS),
        Scenario("copy_128mb", "one copy of 128 MiB, and no waiting", Clone, big, FLOWS),
        Scenario("norm_softmax", "a norm and a softmax", Normed, SQUARE, WAITS),
        Scenario("two_kernels", "two kernels", lambda: Kernels(2), SQUARE, WAITS),
        Scenario("three_kernels", "three kernels, and no waiting", lambda: Kernels(3), SQUARE,
                 FLOWS),
        Scenario("five_kernels", "five kernels", lambda: Kernels(5), SQUARE, WAITS),
        Scenario("five_kernels_flow", "the same, and no waiting", lambda: Kernels(5), SQUARE,
                 FLOWS),
    ]  # fmt: skip


def moving_inputs(tiny: bool) -> list[Scenario]:
    rows, columns = (64, 64) if tiny else (4096, 1024)
    many, more = (10, 30) if tiny else (100, 300)
    readers = 10 if tiny else 50
    one = large(rows, columns)
    vectors = {count: drawn(*[(64,)] * count) for count in (many, more)}
    return [
        Scenario("fresh_16mb", "an input of 16 MiB that the caller makes anew for each call",
                 Columns, one, WAITS, callers.Fresh),
        Scenario("fresh_16mb_flow", "the same, and no waiting", Columns, one, FLOWS,
                 callers.Fresh),
        Scenario("rotation_16mb", "32 inputs of 16 MiB in rotation", Columns, one, WAITS,
                 buffers=32),
        Scenario("two_of_16mb", "two inputs of 16 MiB, no call has those of the one before",
                 Columns, large(rows, columns, 2), FLOWS),
        Scenario("inputs_100", "100 tiny inputs, all elsewhere in each call, a kernel for each",
                 Each, vectors[many], WAITS),
        Scenario("inputs_300_flow", "300 of them, and no waiting", Each, vectors[more], FLOWS),
        Scenario("foreach_100", "100 tiny inputs, and one foreach operator", Foreach,
                 vectors[many], WAITS),
        Scenario("foreach_300_flow", "300 of them, and no waiting", Foreach, vectors[more],
                 FLOWS),
        Scenario("read_by_50", "a moving input of 64 KiB that 50 kernels read",
                 lambda: Readers(readers), SQUARE, WAITS),
        Scenario("read_by_50_flow", "the same, and no waiting", lambda: Readers(readers), SQUARE,
                 FLOWS),
        Scenario("read_by_200_flow", "an input of 4 KiB that 200 kernels read, and no waiting",
                 lambda: Readers(4 * readers), FEW_ROWS, FLOWS),
    ]  # fmt: skip


def graph_breaks(tiny: bool) -> list[Scenario]:
    most = 6 if tiny else 30
    return [
        Scenario("breaks_3", "three graphs of five kernels", broken(3, 5), SQUARE, WAITS),
        Scenario("breaks_3_flow", "three graphs of one kernel, and no waiting", broken(3, 1),
                 SQUARE, FLOWS),
        Scenario("breaks_10", "ten graphs of one kernel", broken(10, 1), SQUARE, WAITS),
        Scenario("breaks_10_flow", "ten graphs of three kernels, and no waiting", broken(10, 3),
                 SQUARE, FLOWS),
        Scenario("breaks_30_flow", "30 graphs of two kernels, and no waiting", broken(most, 2),
                 SQUARE, FLOWS),
    ]  # fmt: skip


def streams_of_sizes(tiny: bool) -> list[Scenario]:
    many, drawn_ones = (10, 16) if tiny else (40, 128)
    sizes = {count: [16 + 8 * n for n in range(count)] for count in (2, 8, many)}
    given: dict[str, Any] = {"model": lambda: Kernels(6), "dynamic": True}

    def rotation(name: str, about: str, count: int, waits: bool) -> Scenario:
        made = lengths(sizes[count])
        return Scenario(name, about, made=made, waits=waits, buffers=max(8, count), **given)

    return [
        rotation("lengths_2", "two lengths in turn, six kernels", 2, WAITS),
        rotation("lengths_8_flow", "eight lengths in turn, and no waiting", 8, FLOWS),
        rotation("lengths_40", "40 lengths in turn", many, WAITS),
        Scenario("lengths_random", "random ones of 64 lengths", made=lengths(
                 mixed(drawn_ones, 64)), waits=WAITS, buffers=drawn_ones, **given),
        Scenario("lengths_random_flow", "random ones of 1,000 lengths, and no waiting",
                 made=lengths(mixed(drawn_ones, 1000)), waits=FLOWS, buffers=drawn_ones, **given),
        Scenario("two_batches", "a model that gets batches of 8 and of 32, sizes not dynamic",
                 lambda: Kernels(8), lengths([8, 32]), WAITS),
    ]  # fmt: skip


def ways_to_call(tiny: bool) -> list[Scenario]:
    width = 128 if tiny else 2048
    products = drawn((width, width), dtype=torch.float32 if tiny else torch.float16)
    half = torch.float32 if tiny else torch.float16
    large_one = large(*((64, 64) if tiny else (4096, 1024)))
    outputs = 10 if tiny else 100

    def matmuls() -> nn.Module:
        return Kernels(8, width).to(half)

    return [
        Scenario("chained_flow", "20 tiny calls, each with the result of the one before",
                 lambda: Kernels(3), SQUARE, FLOWS, callers.Repeated),
        Scenario("matmuls_2048", "four large matrix products", matmuls, products, WAITS,
                 tolerance=2e-2),
        Scenario("matmuls_2048_flow", "the same, and no waiting: the GPU is always behind",
                 matmuls, products, FLOWS, tolerance=2e-2),
        Scenario("twenty_kernels", "20 kernels", lambda: Kernels(20), SQUARE, WAITS),
        Scenario("wait_every_50", "20 kernels, and a wait after every 50th call",
                 lambda: Kernels(20), SQUARE, FLOWS, callers.Now),
        Scenario("python_200us_flow", "200 us of Python's in front of each call",
                 lambda: Kernels(6), SQUARE, FLOWS, callers.Thoughtful),
        Scenario("python_200us", "the same, and a wait behind it", lambda: Kernels(6), SQUARE,
                 WAITS, callers.Thoughtful),
        Scenario("work_between", "work on the results that nobody compiles", lambda: Kernels(4),
                 SQUARE, FLOWS, callers.Between),
        Scenario("two_streams", "calls on two streams", lambda: Kernels(6),
                 drawn((WIDTH, WIDTH), (WIDTH, WIDTH)), FLOWS, callers.Streams),
        Scenario("no_grad", "torch.no_grad() is entered for each call", lambda: Kernels(6),
                 SQUARE, WAITS, callers.WithoutGradients, gradients=True),
        Scenario("outputs_100", "100 results", lambda: Outputs(outputs), FEW_ROWS, WAITS),
        Scenario("outputs_64mb", "four results of 16 MiB, which each call allocates",
                 lambda: Outputs(4), large_one, FLOWS),
    ]  # fmt: skip


def programs(tiny: bool) -> list[Scenario]:
    width = 32 if tiny else 512
    table, bags = (100, 8) if tiny else (100_000, 256)
    size = 16 if tiny else 64
    images = drawn((1, 3, size, size))
    step, hidden = drawn((16, 1, WIDTH)), drawn((1, WIDTH), (1, WIDTH))

    def indices(generator: torch.Generator, device: torch.device, n: int) -> Any:
        return (torch.randint(table, (bags, 16), generator=generator).to(device),)

    def sequence(generator: torch.Generator, device: torch.device, n: int) -> Any:
        return (*step(generator, device, n), *hidden(generator, device, n))

    def trained(
        name: str, about: str, model: Any, made: Made, waits: bool, **more: Any
    ) -> Scenario:
        return Scenario(name, about, model, made, waits, training=True, **more)

    return [
        trained("mlp_tiny_training", "a training step of two layers of 32", perceptron(2, 32),
                drawn((16, 32)), WAITS),
        trained("mlp_tiny_training_flow", "the same, and no waiting", perceptron(2, 32),
                drawn((16, 32)), FLOWS),
        trained("mlp_small_training", "a training step of four layers of 512",
                perceptron(4, width), drawn((64, width)), WAITS),
        trained("conv_training_flow", "a training step of three convolutions, no waiting",
                lambda: Regression(convolutions(16, size)), drawn((8, 3, size, size)), FLOWS,
                tolerance=TF32),
        Scenario("transformer", "a transformer's block, 64 tokens", lambda: Layer(WIDTH, 4),
                 drawn((1, 64, WIDTH)), WAITS),
        Scenario("transformer_flow", "the same, and no waiting", lambda: Layer(WIDTH, 4),
                 drawn((1, 64, WIDTH)), FLOWS),
        Scenario("convolutions", "three convolutions", lambda: convolutions(16, size), images,
                 WAITS, tolerance=TF32),
        Scenario("embedding_bag", "a lookup in a table, 256 bags of 16 rows",
                 lambda: Bag(table, 64), indices, WAITS),
        Scenario("lstm_flow", "the cell of an LSTM, called for 16 steps", lambda: Cell(WIDTH),
                 sequence, FLOWS, callers.Steps),
    ]  # fmt: skip


THEMES = {
    "few kernels": few_kernels,
    "moving inputs": moving_inputs,
    "graph breaks": graph_breaks,
    "streams of sizes": streams_of_sizes,
    "ways to call": ways_to_call,
    "programs": programs,
}


def scenarios(tiny: bool = False) -> dict[str, Scenario]:
    return {each.name: each for make in THEMES.values() for each in make(tiny)}


SCENARIOS = scenarios()
THEME_OF = {each.name: theme for theme, make in THEMES.items() for each in make(True)}


def find(names: str | None = None, tiny: bool = False) -> list[Scenario]:
    """Those of a list with commas; KeyError where one is unknown."""
    known = scenarios(tiny)
    return [known[name] for name in chosen(names, list(known), "scenario")]
