"""A plan's words and data, without a trace."""

import subprocess
import sys

import torch

from pygraph.planning import KINDS
from pygraph.planning.source import of_text


def test_what_takes_a_graph_apart_has_a_remedy():
    for kind in KINDS.values():
        assert bool(kind.remedy) == kind.splits


def test_the_innermost_line_outside_torch():
    inside = f'  File "{torch.__file__}", line 5, in f\n    deep\n'
    trace = '  File "/a/outer.py", line 1, in f\n    outer()\n  File "/a/b.py", line 22, in g\n'
    assert of_text(trace + "    x + y\n" + inside) == ("b.py:22", "x + y")
    assert of_text(inside) == (None, None)


def test_the_data_is_importable_without_torch():
    code = "import sys; from pygraph.planning import Plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
