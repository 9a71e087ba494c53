"""The command line: quick help, wrong names, programs of one's own, and the exit codes."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pygraph.cli import app

runner = CliRunner()


def test_help_needs_no_torch():
    code = (
        "import sys; from pygraph.cli import app\n"
        "from typer.testing import CliRunner\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        "assert result.exit_code == 0 and 'demo' in result.output, result.output\n"
        "assert 'torch' not in sys.modules and 'rich.progress' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--models", "nonsense"],
        ["demo", "--twin-model", "nonsense"],
        ["plan", "--model", "no"],
        ["plan", "no"],
    ],
)
def test_an_unknown_name_lists_the_known_ones(arguments: list[str]):
    pytest.importorskip("torch")
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert any(known in result.output for known in ("mlp-8", "unet"))


def test_plan_as_json():
    pytest.importorskip("torch")
    result = runner.invoke(app, ["plan", "--model", "mlp-1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["capturable"] and len(found["graphs"]) == 1


def test_plan_for_a_reader():
    pytest.importorskip("torch")
    result = runner.invoke(app, ["plan", "--model", "mlp-8"])
    assert result.exit_code == 0, result.output
    assert "1 graph, runs as CUDA graphs: wholly" in result.output


def test_version_needs_no_torch():
    code = (
        "import sys; from pygraph.cli import app\n"
        "from typer.testing import CliRunner\n"
        "result = CliRunner().invoke(app, ['--version'])\n"
        "import pygraph\n"
        "assert result.output == f'pygraph {pygraph.__version__}\\n', result.output\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


PROGRAMS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, scale=1.0):
        return self.linear(x) * scale

model = Net()
def with_args(): return Net(), (torch.randn(2, 4),)
def with_kwargs(): return Net(), torch.randn(2, 4), {"scale": torch.ones(3)}
def raises(): raise RuntimeError("no weights")
def needs(x): return Net()
def number(): return 3
def odd(): return Net(), 3
constant = 4
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The name of a module in the current directory."""
    pytest.importorskip("torch")
    (tmp_path / "programs_of_a_user.py").write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "programs_of_a_user"
    sys.modules.pop("programs_of_a_user", None)


@pytest.mark.parametrize(
    "given",
    [
        ["with_args"],
        ["with_kwargs"],
        ["model", "--input", "2x4"],
        ["Net", "--input", "2x4:float32", "--input", "3"],
    ],
)
def test_a_program_of_ones_own(programs: str, given: list[str]):
    result = runner.invoke(app, ["plan", f"{programs}:{given[0]}", "--json", *given[1:]])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["name"] == f"{programs}:{given[0]}" and found["capturable"]
    assert found["graphs"][0]["patched"][0]["shape"] == [2, 4]


def test_a_program_of_ones_own_in_training(programs: str):
    given = ["--model", f"{programs}:with_args", "--json", "--training"]
    result = runner.invoke(app, ["plan", *given])
    assert result.exit_code == 0, result.output
    names = [each["name"] for each in json.loads(result.output)["graphs"]]
    assert names == ["graph 0 (forward)", "graph 1 (backward)"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["model"], "needed: --input"),
        (["model", "--input", "2x"], "--input 2x: needed are sizes"),
        (["model", "--input", "2:float"], None),
        (["model", "--input", "2:float33"], "--input 2:float33: needed"),
        (["with_args", "--input", "2x4"], "leave out --input"),
        (["nothing"], "found no 'nothing' there, but Net, constant"),
        (["raises"], "RuntimeError: no weights"),
        (["needs"], "a factory takes no arguments"),
        (["number"], "returned int"),
        (["odd"], "args: int"),
        (["constant"], "is a int"),
    ],
)
def test_what_is_wrong_with_a_program_is_named(programs: str, given: list[str], found: str | None):
    result = runner.invoke(app, ["plan", f"{programs}:{given[0]}", *given[1:]])
    if found is None:
        assert result.exit_code == 1 and "trace ended early" in result.output
        return
    assert result.exit_code == 2, result.output
    # The box around a message breaks its lines.
    said = " ".join(result.output.replace("\u2502", " ").split())
    assert found in said, said


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["plan", "mlp-1", "--model", "mlp-1"], ["plan", "mlp-1", "--input", "3"]],
)
def test_a_plan_is_of_one_model(arguments: list[str]):
    pytest.importorskip("torch")
    assert runner.invoke(app, arguments).exit_code == 2


def test_a_module_that_is_not_there_is_named(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    result = runner.invoke(app, ["plan", "no_such_module:make"])
    assert result.exit_code == 2 and "ModuleNotFoundError" in result.output
