"""The pages: what is generated in them is up to date, and what they quote is there."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)
BY_OTHERS = ("cannot import name", "Invalid backend", "GLIBC_2", "Could not find a version")
"""Errors of Python, torch, the loader and pip that the troubleshooting page explains."""


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


# ------------------------------------------------------------------------------- API reference


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """tools/api_reference.py on a small package of its own."""
    made = tool("api_reference")
    package = tmp_path / "pygraph"
    for module, text in {
        "__init__": """
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                from pygraph.work import Refused, run
            __all__ = ["Refused", "__version__", "run"]
        """,
        "work": """
            def run(first: int, *rest: str, name: str = "x", **more: object) -> list[int]:
                \"""Runs.\"""
            class Refused(RuntimeError):
                \"""Did not.\"""
        """,
        "options": """
            class Options:
                \"""Ours.\"""
                kind: Literal["a", "b"] = "a"
                \""" "a": the first.\"""
                sizes: list[int] = field(default_factory=list)
                \"""Sizes, in a docstring that goes on
                in a second line.\"""
                _hidden: int = 0
        """,
        "model": """
            class Record:
                \"""A record.\"""
                count: int
                \"""How many.\"""
                @property
                def double(self) -> int:
                    \"""Twice that.\"""
                def scaled(self, by: float = 2.0) -> float:
                    \"""By a factor.\"""
                def __str__(self) -> str: ...
        """,
    }.items():
        path = package / f"{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(_dedented(text))
    monkeypatch.setattr(made, "SOURCES", tmp_path)
    monkeypatch.setattr(made, "OPTIONS", ("pygraph.options", "Options"))
    monkeypatch.setattr(made, "RECORDS", {"Records": ("pygraph.model", ("Record",))})
    return made


def _dedented(text):
    import textwrap

    return textwrap.dedent(text).strip() + "\n"


def test_the_api_reference_has_signatures_defaults_and_docstrings(reference):
    page = reference.page()
    for part in (
        "### pygraph.run\n\n```python\nrun(\n    first: int,\n    *rest: str,\n"
        '    name: str = "x",\n    **more: object,\n) -> list[int]\n```\n\nRuns.\n',
        '- `kind`: `Literal["a", "b"]`, default `"a"`  \n  "a": the first.\n',
        "- `sizes`: `list[int]`, default `[]`  \n  Sizes, in a docstring that goes on in a second",
        "## Errors\n\n### pygraph.Refused\n\nA `RuntimeError`. Did not.\n",
        "### Record\n\nA record.\n\n- `count`: `int`  \n  How many.\n",
        "- `double`: `int`, computed  \n  Twice that.\n",
        "- `scaled(by: float = 2.0)`: `float`  \n  By a factor.\n",
    ):
        assert part in page, part
    assert "_hidden" not in page and "__str__" not in page and "version" not in page


@pytest.mark.parametrize(
    ("module", "line", "message"),
    [
        ("options", '    """ "a": the first."""', "Options.kind has no docstring below it"),
        ("work", '    """Runs."""', "pygraph.run has no docstring"),
        ("model", '        """Twice that."""', "Record.double has no docstring"),
    ],
)
def test_what_has_no_docstring_is_named(reference, module, line, message):
    path = reference.SOURCES / "pygraph" / f"{module}.py"
    text = path.read_text()
    assert line in text
    path.write_text(text.replace(line, line.partition('"')[0] + "..."))
    with pytest.raises(SystemExit, match=message):
        reference.page()


def test_a_changed_docstring_fails_the_check(reference, tmp_path):
    page = tmp_path / "api.md"
    with pytest.raises(SystemExit, match=r"run tools/api_reference\.py"):
        reference.main(["--check", "--page", str(page)])
    assert reference.main(["--page", str(page)]) == 0
    assert reference.main(["--check", "--page", str(page)]) == 0
    path = reference.SOURCES / "pygraph" / "work.py"
    path.write_text(path.read_text().replace("Runs.", "Walks."))
    with pytest.raises(SystemExit, match=r"run tools/api_reference\.py"):
        reference.main(["--check", "--page", str(page)])


def test_the_api_reference_is_up_to_date():
    """It needs neither torch nor the extension: another Python without site packages makes it."""
    command = [sys.executable, "-I", "-S", ROOT / "tools" / "api_reference.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------ measured tables


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The pages and records that tools/readme_table.py works on, to be changed; and the tool."""
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = tool("readme_table")
    sides = {path for block in made.BLOCKS for path in (block.page, block.record)}
    waiting = {block.record for block in made.BLOCKS if block.waits}
    for path in {made.PICTURE, made.EXAMPLE, *sides}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).exists() or path not in waiting:
            shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path, made


def check(tree):
    root, made = tree
    return made.main(["--check", "--root", str(root)])


def test_the_tables_are_what_the_records_give(tree):
    assert check(tree) == 0


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("README.md", "| dcgan, training | 32 |", "| dcgan, training | 33 |"),
        ("README.md", "for _ in range(10):", "for _ in range(11):"),
        (
            "docs/benchmarks.md",
            "| DR-I | nvidia_deeprecommender | 8,192 |",
            "| DR-I | nvidia_deeprecommender | 8,193 |",
        ),
        ("docs/benchmarks.md", "| mlp-8 | 16 |", "| mlp-8 | 17 |"),
    ],
)
def test_a_page_that_was_changed_by_hand_is_named(tree, page, old, new):
    path = tree[0] / page
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(
        SystemExit, match=rf"{page} is not what its measurements .* {re.escape(new)}"
    ):
        check(tree)


def test_another_measurement_makes_the_pages_and_the_picture_wrong(tree):
    root, made = tree
    record = root / made.PAPER
    content = json.loads(record.read_text())
    own = next(
        each for each in content["workloads"]["ALNET"]["records"] if each["mode"] == "pygraph"
    )
    own["latency_us"] /= 1.01
    record.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=r"README.md is not what"):
        check(tree)
    with pytest.raises(SystemExit, match=r"speed-ups.svg does not show what paper25.json gives"):
        made.check_picture(root / made.PICTURE, content)


def test_missing_markers_and_records_are_named(tree):
    root, made = tree
    readme = (root / "README.md").read_text()
    (root / "README.md").write_text(readme.replace("<!-- table: gain -->", ""))
    with pytest.raises(SystemExit, match=r"README\.md needs a line '<!-- table: gain -->'"):
        check(tree)
    (root / "README.md").write_text(readme)
    (root / made.FIRST_LIGHT).unlink()
    with pytest.raises(SystemExit, match=r"first-light.json is missing"):
        check(tree)


def test_a_table_may_wait_for_its_record(tree):
    root, made = tree
    from benchmarks.patterns.record import Record, document

    (root / made.PATTERNS).unlink(missing_ok=True)
    page = root / "docs/benchmarks.md"
    before = page.read_text()
    assert check(tree) == 0
    records = [
        Record("print", 1, mode, correct=True, latency_us=latency, graphs=2.0, outside=0.0)
        for mode, latency in (("default", 400.0), ("pygraph", 200.0), ("clean", 160.0))
    ]
    env = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11", "date": "2026-11-26T01:00"}
    content = document(records, env, "./run bench-patterns --out p.json", {}, {})
    (root / made.PATTERNS).write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=r"docs/benchmarks.md is not what"):
        check(tree)
    page.write_text(made.rewritten("docs/benchmarks.md", before, root, {made.PATTERNS: content}))
    (row,) = [line for line in page.read_text().splitlines() if line.startswith("| print() in")]
    assert "| 400 | - | 200 | 160 | 1.25 | 0.50 |" in row
    assert check(tree) == 0


def test_the_layers_table_has_a_row_per_way_of_compiling(tree):
    root, made = tree
    rows = [
        {"what": "whole", "mode": "default", "compile_s": 61.25, "latency_us": 5000},
        {"what": "layer", "mode": "pygraph", "compile_s": 4.5, "graph_memory_mib": 2},
    ]
    env = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11", "date": "2026-11-25T01:00"}
    record = {"rows": rows, "env": env, "command": "measure"}
    page = made.rewritten(
        "docs/usage.md",
        (root / "docs" / "usage.md").read_text(),
        root,
        {made.LAYERS_RECORD: record},
    )
    assert "| the whole model | default | 61.2 | - | 5,000.0 | - |" in page
    assert "| one layer, called for all | pygraph | 4.5 | 2.0 | - | - |" in page
    assert "NVIDIA H200, driver 580, torch 2.11, 2026-11-25. Measured with `measure`." in page


def test_the_papers_report_is_what_its_record_gives():
    pytest.importorskip("torch")
    from benchmarks.paper.report.markdown import as_markdown

    content = json.loads((ROOT / "benchmarks" / "results" / "paper25.json").read_text())
    assert as_markdown(content, "paper25.html") == (ROOT / "docs" / "paper25.md").read_text()


# --------------------------------------------------------------------------------- what is quoted


def between(text, begin, end):
    return text.partition(begin)[2].partition(end)[0]


def masked(text):
    """A report without numbers, which differ from run to run, and without the line of versions."""
    lines = [each for each in text.splitlines() if not each.startswith("pygraph ")]
    return [re.sub(r"[\d.,]*\d( [KMG]?i?B\b)?", "#", each) for each in lines]


def run_on_the_twin(program, *arguments):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("with a GPU it runs there, and another report is right")
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_shows_the_report_that_the_example_prints():
    text = (ROOT / "README.md").read_text()
    shown = between(text, "<!-- report: quickstart -->\n```\n", "```\n<!-- /report -->")
    assert masked(run_on_the_twin(ROOT / "examples" / "quickstart.py")) == masked(shown)


def test_the_example_is_short():
    assert len((ROOT / "examples" / "quickstart.py").read_text().splitlines()) <= 15


def test_one_compiled_block_is_one_graph(tmp_path):
    """The example of docs/usage.md, on the twin."""
    text = (ROOT / "docs" / "usage.md").read_text()
    section = text.partition("## One compiled block for many layers")[2]
    code = between(section, "```python\n", "```")
    wanted = '@torch.compile(backend="pygraph")'
    assert wanted in code
    twin = '@torch.compile(backend="pygraph", options={"device": "twin"})'
    program = tmp_path / "layers.py"
    code = code.replace(wanted, twin).replace('device = "cuda"', 'device = "cpu"')
    program.write_text(f"import torch, pygraph\n{code}")
    printed = masked(run_on_the_twin(program))
    shown = masked(between(section, "```\ngraph 0", "```"))
    assert [each for each in printed if each.startswith("graph ")] == [
        "graph " + "# (inference): graphed; # of # calls replayed"
    ]
    for each in shown[1:]:
        assert each in printed or each.strip() == "...", each


def test_the_changelog_begins_with_this_version():
    project = (ROOT / "CMakeLists.txt").read_text()
    version = re.search(r"project\(pygraph VERSION ([\d.]+)", project)[1]
    found = re.findall(r"^## (\S+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert found[0] == version
    assert found == sorted(found, key=lambda each: [*map(int, each.split("."))], reverse=True)
    assert (
        f"find_package(pygraph {version.rpartition('.')[0]} "
        in (ROOT / "docs/library.md").read_text()
    )


def literals():
    """Every text of the sources, with what is put into it as `{}`."""
    found = []
    for path in (ROOT / "python" / "pygraph").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (getattr(each, "value", None) for each in node.values)
                found.append("".join(each if isinstance(each, str) else "{}" for each in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    engine = [*(ROOT / "src").rglob("*.cpp"), *(ROOT / "include").rglob("*.h")]
    found += [re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in engine]
    found.append((ROOT / "CMakeLists.txt").read_text())
    return "\n".join(found)


@pytest.mark.parametrize(("page", "least"), [("troubleshooting", 30), ("cookbook", 10)])
def test_every_message_that_is_explained_is_in_the_sources(page, least):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.M)
    messages = [each for cell in cells for each in re.findall(r"`([^`]*)`", cell)]
    assert len(messages) > least
    known = literals()
    for message in messages:
        if any(each in message for each in BY_OTHERS):
            continue
        for part in filter(str.strip, message.split("...")):
            assert part.strip(" :;") in known, message


def anchors(page):
    """As GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", each).lower() for each in heads)
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = page if not path else (page.parent / path).resolve()
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target
