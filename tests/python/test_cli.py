"""The command line: quick help, wrong names, and the exit codes."""

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
        ["demo", "--modes", "nonsense"],
        ["demo", "--twin-model", "nonsense"],
        ["plan", "--model", "no"],
    ],
)
def test_an_unknown_name_lists_the_known_ones(arguments: list[str]):
    pytest.importorskip("torch")
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert any(known in result.output for known in ("mlp-8", "reduce-overhead", "unet"))


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
