"""Which lines are the user's: judged by where torch and PyGraph are, not by names of folders."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from pygraph.capturing import reasons, record
from pygraph.demo import small_models
from pygraph.frames import is_programs
from pygraph.frontends.compile import sources
from pygraph.planning.source import of_text

TORCH = os.path.dirname(torch.__file__)


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/user/torch/net.py", True),
        ("/home/user/pygraph/python/net.py", True),
        (f"{TORCH}vision/models/resnet.py", True),
        (small_models.__file__, True),
        (f"{TORCH}/nn/modules/linear.py", False),
        (record.__file__, False),
        ("<eval_with_key>.1", False),
    ],
)
def test_a_frame_is_judged_by_the_packages_locations(file: str, own: bool) -> None:
    assert is_programs(file) == own
    text = f'  File "{file}", line 7, in forward\n    x + y\n'
    assert (sources.line_of(text) is not None) == own
    assert (of_text(text)[0] is not None) == own


@pytest.mark.parametrize("folder", ["torch", "pygraph"])
def test_a_project_in_such_a_folder_has_its_lines_named(tmp_path: Path, folder: str) -> None:
    file = tmp_path / folder / "net.py"
    file.parent.mkdir()
    file.write_text("def net(x):\n    raise RuntimeError('no')\n")
    with pytest.raises(RuntimeError) as caught:
        runpy.run_path(str(file))["net"](1)
    assert reasons.explain(caught.value, None)[2] == f"{file}:2"


def test_a_line_of_a_module_of_torchs_is_the_one_that_calls_it() -> None:
    found: list[Any] = []
    linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))

    def catch(gm: Any, inputs: Any) -> Any:
        found.append(sources.finder(gm))
        return gm.forward

    torch.compile(lambda x: linear(x), backend=catch)(torch.randn(3))
    line = found[0]("_weight_norm")  # Dynamo's trace ends in torch's parametrizations.py
    assert line is not None and Path(line.split(":")[0]).name == "test_frames.py"
