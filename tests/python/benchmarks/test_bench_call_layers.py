"""A call broken down by layers: what each takes without those within it, and what is measured."""

from __future__ import annotations

import pytest
import torch

from benchmarks import host_path
from benchmarks.harness import call_layers
from pygraph.frontends.trace.timeline import HostSpan


def spans(*given: tuple[str, int, int]) -> list[HostSpan]:
    return [HostSpan(name, 1, start, end) for name, start, end in given]


def test_a_layer_is_told_without_those_within_it() -> None:
    found = call_layers.exclusive(
        spans(
            ("launch", 30, 60),
            ("module call", 0, 100),
            ("entry", 20, 70),
            ("generated code", 10, 80),
            ("launch", 61, 65),
        )
    )
    assert found == {"module call": 30, "generated code": 20, "entry": 16, "launch": 34}
    assert sum(found.values()) == 100


def test_what_begins_with_another_layer_is_within_it() -> None:
    found = call_layers.exclusive(spans(("entry", 0, 9), ("bind", 0, 4), ("dispatcher", 4, 9)))
    assert found == {"entry": 5, "bind": 4}


@pytest.mark.parametrize("training", [False, True])
def test_the_layers_of_each_mode_make_up_the_call(training: bool) -> None:
    found = host_path.measure_call(2, training, 20, "twin")
    assert (found["layers"], found["training"]) == (2, training)
    assert list(found["modes"]) == ["nothing"] * (not training) + [
        "aot_eager",
        "pygraph",
        "pygraph behind guards",
    ]
    for mode, figures in found["modes"].items():
        layers = figures["layers_us"]
        program = {"entry", "bind", "allocation", "launch", "results"}
        past = mode == "pygraph" and not training
        assert "module call" in layers and ("compare" in layers) == past
        assert ({"guards", "generated code"} <= set(layers)) != past
        assert (program <= set(layers)) == mode.startswith("pygraph")
        assert ("autograd" in layers) == training
        assert ("wrappers" in layers) == (training and mode.startswith("pygraph"))
        assert all(us >= 0 for us in layers.values())
        assert 0.5 < sum(layers.values()) / figures["call"]["median_us"] < 2.0
    text = host_path.shown(found)
    assert "training" in text if training else "inference" in text
    assert "launch" in text and "%)" in text


def test_a_compiler_that_does_nothing_computes_once() -> None:
    computed = []

    def function(x: torch.Tensor) -> torch.Tensor:
        computed.append(x)
        return x + 1

    call = call_layers.doing_nothing(function, ())
    assert call(torch.zeros(1)) is call(torch.ones(1)) and len(computed) == 1


def test_on_a_gpu_torch_s_own_modes_are_measured() -> None:
    assert list(call_layers.modes("cuda", False)) == [
        "nothing",
        "default",
        "reduce-overhead",
        "pygraph",
        "pygraph behind guards",
    ]
