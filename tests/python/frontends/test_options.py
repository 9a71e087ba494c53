"""The backend's options: checked on every path, and what has no effect is said once."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pygraph
from pygraph.decide.signatures import SignatureRules
from pygraph.frontends.compile.options import Options, split
from pygraph.runtime import devices
from pygraph.runtime.warn import warn_once
from pygraph.torch_private import support


@pytest.fixture(autouse=True)
def fresh(fresh_dynamo: None) -> Iterator[None]:
    pygraph.reset()
    warn_once.cache_clear()
    yield
    pygraph.reset()


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


def call(**options: Any) -> None:
    compiled = torch.compile(function, backend="pygraph", options=options)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), function(x))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


# ------------------------------------------------------------------------------- checks


def test_options_are_split() -> None:
    given = {"require": "full", "max_autotune": True, "triton.unique_kernel_names": True}
    ours, inductor = split(given)
    assert (ours.compiler, ours.require, ours.device) == ("inductor", "full", "cuda")
    assert inductor == {"max_autotune": True, "triton.unique_kernel_names": True}
    assert split({}, "max-autotune")[1]["max_autotune"] is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compiler": "nonsense"}, r"compiler.*'nonsense'.*inductor"),
        ({"device": "twin", "compiler": "inductor"}, r"compiler.*twin.*works with 'aot' only"),
        ({"max_programs": 0}, r"max_programs.*is 0.*1 or more"),
        ({"programs_at_once": -1}, r"programs_at_once.*0 or more"),
        ({"debug_interval": True}, r"debug_interval.*is True.*integer"),
        ({"capture_sizes": 3}, r"capture_sizes.*has 3; it must be a list"),
        ({"capture_sizes": ["a"]}, r"capture_sizes.*has 'a'"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(given)


@pytest.mark.parametrize("path", [{}, {"compiler": "aot"}, {"device": "twin"}, {"require": "full"}])
@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("capture_size", "capture_sizes"),
        ("max_autotun", "max_autotune"),
        ("triton.cudagraph", "triton.cudagraphs"),
    ],
)
def test_a_misspelt_name_is_an_error_on_every_path(
    path: dict[str, Any], wrong: str, nearest: str
) -> None:
    """Before anything else: here without a GPU too, where all would fall back."""
    with pytest.raises(Exception, match="unknown option") as caught:
        call(**path, **{wrong: 3})
    text = str(caught.value)
    assert f"unknown option '{wrong}' (nearest: '{nearest}')" in text
    assert all(field.name in text for field in dataclasses.fields(Options))


def test_choices_and_defaults_agree_with_those_they_are_for() -> None:
    for device in devices.PLATFORMS:
        assert split({"device": device})[0].platform.name == device
    ours, policy = Options(), SignatureRules()
    assert (ours.max_programs, ours.capture_at) == (policy.programs, policy.capture_at)
    assert (ours.programs_at_once, ours.capture_sizes) == (policy.at_once, policy.sizes)


def test_every_option_is_described() -> None:
    (tree,) = ast.parse(inspect.getsource(Options)).body
    assert isinstance(tree, ast.ClassDef)
    fields = [n for n, each in enumerate(tree.body) if isinstance(each, ast.AnnAssign)]
    assert len(fields) == len(dataclasses.fields(Options))
    assert all(isinstance(tree.body[n + 1], ast.Expr) for n in fields)


# ------------------------------------------------------------------------------- warnings


@pytest.mark.parametrize("path", [{"compiler": "aot"}, {"device": "twin"}])
def test_an_option_of_inductor_without_effect_is_said_once(
    path: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        call(**path, max_autotune=True)
        torch._dynamo.reset()
    said = [each for each in warnings_of(caplog) if "max_autotune" in each]
    wanted = "options without effect: 'max_autotune'. Compiler 'aot' does not use Inductor"
    assert said == [f"PyGraph: {wanted}"]


def test_why_there_are_no_cuda_graphs_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = "no CUDA driver: an NVIDIA driver is needed"
    monkeypatch.setattr(support, "support", lambda: support.Support(problem, "direct"))
    for _ in range(2):
        call(compiler="aot")
        torch._dynamo.reset()
    (said,) = warnings_of(caplog)
    assert problem in said and "options={'device': 'twin'}" in said
    assert ("build of torch for CUDA" in said) == (torch.version.cuda is None)
    assert [graph.device for graph in pygraph.report().graphs] == ["cuda", "cuda"]


def test_a_model_on_the_cpu_beside_a_gpu_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(support, "support", lambda: support.Support(None, "direct"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for _ in range(2):
        call(compiler="aot")
        torch._dynamo.reset()
    (said,) = warnings_of(caplog)
    assert "no argument, parameter or buffer is on a CUDA device" in said
    assert "Move the model and its arguments to the GPU" in said


def test_what_raises_and_what_is_graphed_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(support, "support", lambda: support.Support("no GPU", "direct"))
    with pytest.raises(Exception, match="no GPU"):
        call(require="full")
    call(device="twin")
    assert pygraph.report().graphs[0].device == "twin"
    assert not warnings_of(caplog)
