"""The demonstration on a GPU, as far as the CPU twin can show it: nothing wrong is timed."""

import io

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

import pygraph  # noqa: E402
from pygraph.demo import on_gpu  # noqa: E402

TWIN = {"backend": "pygraph", "options": {"device": "twin"}}


@pytest.fixture(autouse=True)
def fresh():
    pygraph.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def fresh_input():
    return torch.randn(3, 6)


def test_a_way_that_is_right_is_timed():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU())
    shown = on_gpu.run(model, fresh_input, on_gpu.OURS, TWIN)
    assert shown.problem is None and shown.error == 0.0
    assert 0 < shown.host_us <= shown.latency_us
    (graph,) = pygraph.report().graphs
    assert graph.replays > on_gpu.TIMED


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda model, x: model(x) * 1.1, "relative error"),
        (lambda model, x: model(x) * torch.nan, "relative error"),
        (lambda model, x: model(torch.ones(3, 6)), "another input"),
    ],
)
def test_a_way_that_is_wrong_is_not_timed(monkeypatch, wrong, reason):
    def model(x):
        return 1.0 + 1e-4 * x.double()  # hardly depends on its input

    monkeypatch.setattr(torch, "compile", lambda model, **_: lambda x: wrong(model, x))
    shown = on_gpu.run(model, fresh_input, "default", {})
    assert reason in shown.problem and shown.latency_us is None


def test_the_table_tells_how_much_faster_and_what_failed():
    found = [
        on_gpu.Measured("default", 1e-6, None, 10.0, 300.0),
        on_gpu.Measured("reduce-overhead", 0.5, "relative error 5.0e-01"),
        on_gpu.Measured(on_gpu.OURS, 1e-6, None, 5.0, 100.0),
    ]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(on_gpu.as_table("resnet18", found))
    text = console.export_text()
    assert "3.00x" in text and "failed" in text and "relative error 5.0e-01" in text
