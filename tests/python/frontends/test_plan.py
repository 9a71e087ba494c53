"""Plans: graphs, breaks and obstacles, each with the line that is to blame."""

import inspect
import sys

import pytest

torch = pytest.importorskip("torch")

from pygraph.frontends.compile.plan import plan  # noqa: E402
from pygraph.planning.fake import StandInMode, built_without_memory  # noqa: E402

# Dynamo's traces hold what the file said when it was read: lines are found by their markers.
SOURCE = inspect.getsource(sys.modules[__name__]).splitlines()


def line_of(marker: str) -> str:
    (number,) = [n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# {marker}")]
    return f"test_plan.py:{number}"


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, scale=1.0):
        return self.linear(x).relu() * scale


class Awkward(Plain):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(4.0)  # an attribute, not a buffer: .to() leaves it behind

    def forward(self, x):
        y = self.linear(x)
        if y.sum().item() > 0:  # marker: item
            y = y + self.table.to(y.device)  # marker: hoist
        y = y * torch.sqrt(torch.tensor(2.0))  # marker: cpu operator
        y = torch.nn.functional.dropout(y, 0.5, training=True)  # marker: random
        y = y[y > 0]  # marker: mask
        return y.sum().cpu()  # marker: result


class Counting(Plain):
    def forward(self, x):
        self.seen.add_(1)
        return self.linear(x)


def test_a_plain_model_is_one_graph():
    found = plan(Plain(), torch.randn(2, 8), {"scale": 3.0})
    assert found.error is None and found.capturable and found.breaks == []
    (graph,) = found.graphs
    assert sorted(each.shape for each in graph.constants) == [(4,), (4, 8)]
    assert [each.shape for each in graph.patched] == [(2, 8)]
    assert [(each.shape, each.nbytes) for each in graph.outputs] == [((2, 4), 32)]
    assert graph.operators > 2 and 0 < graph.views < graph.operators
    assert found.scalars == ["3.0"]


def test_the_model_gets_its_own_tensors_back():
    model = Plain()
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    plan(model, torch.randn(2, 8))
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert all(after[name] is tensor for name, tensor in before.items())
    assert model(torch.ones(2, 8)).shape == (2, 4)


def test_breaks_and_obstacles_with_their_lines():
    found = plan(Awkward(), torch.randn(2, 8))
    assert found.error is None and not found.capturable
    breaks = {each.source: each for each in found.breaks}
    assert set(breaks) == {line_of("marker: item"), line_of("marker: mask")}
    assert "item()" in breaks[line_of("marker: item")].reason
    assert "nonzero" in (breaks[line_of("marker: mask")].explanation or "")
    assert len(found.graphs) == 3
    places = {(each.kind, each.source) for each in found.findings}
    assert ("host to device", line_of("marker: hoist")) in places
    assert ("cpu operator", line_of("marker: cpu operator")) in places
    assert ("random numbers", line_of("marker: random")) in places
    assert ("device to host", line_of("marker: result")) in places
    assert any("1 (or True)" in note for note in found.notes)


def test_random_numbers_do_not_split_a_graph_and_eval_draws_none():
    dropout = torch.nn.Dropout(0.5)
    training = plan(dropout.train(), torch.randn(4))
    assert [each.kind for each in training.findings] == ["random numbers"]
    assert training.capturable
    assert plan(dropout.eval(), torch.randn(4)).findings == []


def test_a_cpu_tensor_beside_gpu_tensors_is_found():
    model = Plain().to("meta")
    x = torch.randn(2, 8, device="meta")
    (graph,) = plan(model, (x,), {"scale": torch.ones(())}).graphs
    assert [each.shape for each in graph.host_inputs] == [()]
    assert [(each.kind, each.operator) for each in graph.findings] == [
        ("cpu input", "aten.mul.Tensor")
    ]
    # Wholly on the CPU, the same program is taken as one that will be moved.
    assert plan(Plain(), (torch.randn(2, 8),), {"scale": torch.ones(())}).capturable


class Mixed(Plain):
    """On the device, but for what the passes can take away and what they cannot."""

    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(2.5)  # attributes, not buffers
        self.table = torch.arange(4.0)

    def forward(self, x, mask=None, back=False):
        y = self.linear(x) * self.scale  # marker: scale
        if mask is not None:
            y = y * mask.to(y.device)  # marker: moved mask
        if back:
            on_host = y.sum(0).cpu() * 2  # marker: host work
            y = y + on_host.to(y.device)  # marker: back again
        return y, y.argmax().cpu()  # marker: copied result


def test_what_passes_take_away_is_told_before_and_after():
    x, mask = torch.randn(2, 8, device="meta"), torch.ones(2, 4)
    found = plan(Mixed().to("meta"), (x, mask))
    (graph,) = found.graphs
    assert {(each.kind, each.source, *each.taken_away_by) for each in graph.findings} == {
        ("cpu input", line_of("marker: scale"), "bring"),
        ("host to device", line_of("marker: moved mask"), "bring"),
        ("device to host", line_of("marker: copied result"), "fetch"),
    }
    assert graph.remaining == [] and graph.taken_away == graph.findings
    assert graph.whole and graph.cover == "wholly" and found.capturable
    assert [each.name for each in graph.passes] == ["bring", "bring", "fetch"]
    lines = [line_of(f"marker: {each}") for each in ("scale", "moved mask", "copied result")]
    assert [each.source for each in graph.passes] == lines
    assert sorted(each.shape for each in graph.host_inputs) == [(), (2, 4)]
    text = str(found)
    assert "lines in the way: 3 before the passes, 0 behind them" in text
    place = line_of("marker: moved mask")
    assert f"aten._to_copy.default at {place}: taken away by the pass bring" in text
    assert "pass fetch: a copy to the host is made behind the graph" in text
    assert "runs as CUDA graphs: wholly" in text and "to do" not in text


def test_work_of_the_host_in_the_middle_remains():
    x = torch.randn(2, 8, device="meta")
    found = plan(Mixed().to("meta"), (x,), {"back": True})
    (graph,) = found.graphs
    assert {(each.kind, each.source) for each in graph.remaining} == {
        ("device to host", line_of("marker: host work")),
        ("cpu operator", line_of("marker: host work")),
        ("host to device", line_of("marker: back again")),
    }
    assert {each.source for each in graph.taken_away} == {
        line_of("marker: scale"),
        line_of("marker: copied result"),
    }
    assert graph.cover == "in part" and not found.capturable
    text = str(found)
    assert "lines in the way: 5 before the passes, 3 behind them" in text
    assert "in part: what no pass takes away runs between CUDA graphs" in text
    assert "to do: an operator computes on the CPU: make the tensor on the GPU" in text
    assert "to do: an input lives on the CPU" not in text


def test_a_line_that_is_taken_away_in_part_remains():
    def function(x, y):
        for again in (False, True):
            x = x + (x.cpu() * 2 if again else y).to(x.device)  # marker: some of it
        return x

    found = plan(function, (torch.randn(4, device="meta"), torch.randn(4)))
    (graph,) = found.graphs
    assert found.error is None
    copies, remaining = (
        [each for each in listed if each.kind == "host to device"]
        for listed in (graph.findings, graph.remaining)
    )
    assert [each.count for each in copies] == [2] and copies[0].taken_away_by == []
    assert [each.count for each in remaining] == [1] and graph.passes


def test_a_graph_with_arguments_of_the_host_alone_may_be_whole():
    found = plan(lambda x: x.to("meta") * 2, torch.randn(4), device="meta")
    assert found.capturable  # the trace moves it, as a user would
    (graph,) = plan(Host().to("meta"), (torch.randn(4),)).graphs
    assert graph.host_inputs and not graph.constants and not graph.patched
    assert graph.taken_away and graph.cover == "wholly"


class Host(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x.to("meta") * 2


def test_json_has_both_sides():
    data = plan(Mixed().to("meta"), (torch.randn(2, 8, device="meta"),)).to_dict()
    (graph,) = data["graphs"]
    assert [each["taken_away_by"] for each in graph["findings"]] == [["fetch"], ["bring"]]
    assert graph["remaining"] == [] and data["capturable"]
    assert [each["name"] for each in graph["passes"]] == ["bring", "fetch"]


def test_constants_are_computed_for_a_plan_and_nothing_else():
    def function(x):
        return x * torch.sqrt(torch.tensor([2.0, 3.0])).to(x.device)  # marker: constant

    found = plan(function, torch.randn(2, device="meta"))
    assert found.capturable and {each.name for each in found.graphs[0].passes} == {"fold"}
    assert {tuple(each.taken_away_by) for each in found.findings if each.splits} == {("fold",)}


def test_numbers_as_indices_are_in_nobodys_way_and_masks_are() -> None:
    x, index = torch.randn(4, 4), torch.tensor([1, 2])
    assert plan(lambda x, i: x[:, i] * 2, (x, index)).capturable
    assert not plan(lambda x, i: x[i > 1], (x, torch.arange(4))).capturable


def test_a_library_that_a_capture_would_break_forbids_it() -> None:
    found = plan(lambda x: torch.linalg.eigh(x)[0] + 1, torch.randn(4, 4))
    assert [(each.kind, each.operator) for each in found.findings] == [
        ("library state", "aten._linalg_eigh.default")
    ]
    assert not found.capturable and found.graphs[0].cover == "not at all"
    assert "every input is on the CPU" not in str(found)
    assert "not at all: its inputs are on the CPU, or what is listed" in str(found)


def test_the_text_says_what_a_finding_means_and_what_helps():
    text = str(plan(Plain(), torch.randn(2, 8)))
    assert "Plain: 1 graph, runs as CUDA graphs: wholly (" in text
    assert "in part" not in text and "to do" not in text
    training = str(plan(Plain(), torch.randn(2, 8), training=True))
    assert "Plain: 2 graphs, run as CUDA graphs: wholly (" in training and "to do" not in training
    text = str(plan(Awkward(), torch.randn(2, 8)))
    assert "Awkward: 3 graphs, run as CUDA graphs: wholly; 2 breaks" in text
    assert "to do: a break" in text and "random numbers:" not in text.split("to do", 1)[1]


def test_a_graph_on_the_cpu_alone_runs_without_a_cuda_graph():
    def function(x, y):
        y = y * 2
        torch._dynamo.graph_break()
        return x + 1, y

    found = plan(function, (torch.randn(2, device="meta"), torch.randn(2)))
    assert [graph.cover for graph in found.graphs] == ["not at all", "wholly"]
    assert "run as CUDA graphs: 1 wholly, 1 not at all; 1 break" in str(found)


def test_written_inputs_are_counted():
    (graph,) = plan(Counting(), torch.randn(2, 8)).graphs
    assert graph.mutated == 1


def test_training_has_a_backward():
    found = plan(Plain(), torch.randn(2, 8), training=True)
    assert [graph.name.partition("(")[2] for graph in found.graphs] == ["forward)", "backward)"]
    backward = found.graphs[1]
    assert [each.shape for each in backward.patched] == [(2, 4)]
    assert backward.constants, "the saved tensors stay where they are"


def refuse(context, gradient):
    raise RuntimeError("no gradient of this\nand a second line")


def test_an_error_of_a_backward_is_named():
    """Dynamo puts one of its own around it, whose first line is "backend='...' raised:"."""

    @torch.library.custom_op("pygraph_test::refusing", mutates_args=())
    def refusing(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    refusing.register_fake(torch.empty_like)
    refusing.register_autograd(refuse)
    found = plan(lambda x: refusing(x * 2), torch.ones(3, requires_grad=True), training=True)
    assert found.error is not None and "RuntimeError: no gradient of this" in found.error


def test_a_failing_program_is_reported_not_raised():
    def wrong(x):
        return x @ torch.ones(3, 3, device=x.device)  # marker: wrong

    found = plan(wrong, torch.randn(2, 8))
    assert found.error is not None and not found.capturable
    assert line_of("marker: wrong") in found.error


def test_no_path_of_this_machine_in_a_plan():
    found = plan(Awkward(), torch.randn(2, 8))
    for text in (str(found), repr(found.to_dict())):
        assert "test_plan.py:" in text
        assert str(__file__) not in text and "site-packages" not in text


def test_planning_again_finds_the_same():
    first, second = (plan(Awkward(), torch.randn(2, 8)) for _ in range(2))
    assert first.graphs == second.graphs and first.breaks == second.breaks


def test_a_model_without_memory():
    def build():
        return torch.nn.Sequential(*(torch.nn.Linear(1 << 17, 1 << 17) for _ in range(8)))

    with StandInMode():
        x = torch.empty(1, 1 << 17)
    found = plan(built_without_memory(build), x)
    assert found.error is None
    assert sum(each.nbytes for each in found.graphs[0].constants) > 1 << 38
