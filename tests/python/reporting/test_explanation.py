"""An explanation as text, JSON and a page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from pygraph.reporting import Applied, Blocker, Explanation, GraphReport, OutsideKernel, Report

EVIL = '<script>alert("x")</script>&.py'


def example() -> Explanation:
    graph = GraphReport(
        name="graph 0 (inference)",
        state="graphed",
        nodes=3,
        calls=10,
        replays=8,
        past_wrappers=True,
        passes=[Applied("hoist", f"a copy of {EVIL}", f"{EVIL}:3")],
        timings_ms={"link": 2.0, "capture": 1.0, "proof": 0.5},
    )
    blocker = Blocker(
        what="a copy from the GPU to the CPU",
        graph=graph.name,
        operator="aten._to_copy.default",
        source=f"{EVIL}:12",
        code=f"x = '{EVIL}'",
        remedy="return the tensor",
    )
    return Explanation(
        name=EVIL,
        counted="kernels",
        inside=9.0,
        outside=3.0,
        kernels_outside=[OutsideKernel(f"void kernel<{EVIL}>", 3.0, 12.5)],
        blockers=[blocker],
        compiled=[f"forward ({EVIL}:1)"],
        report=Report([graph], {"torch": EVIL}),
        notes=[EVIL],
        error=f"KeyError: {EVIL}",
    )


class Read(HTMLParser):
    """The tags of a page, which must nest, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_needs_nothing_and_escapes_what_the_user_wrote() -> None:
    page = Read(example().to_html())
    assert not {"script", "link", "img", "iframe", "kernel"} & set(page.tags)
    assert not {name for name, _ in page.attributes} & {"src", "href", "onclick"}
    assert ("style", "width: 75.0%") in page.attributes
    text = "".join(page.texts)
    for part in (
        f"{EVIL}:12",
        f"x = '{EVIL}'",
        f"KeyError: {EVIL}",
        f"forward ({EVIL}:1)",
        f"void kernel<{EVIL}>",
        f"a copy of {EVIL}",
        f"torch {EVIL}",
        "aten._to_copy.default",
        "return the tensor",
        "9 of 12 kernels inside of graphs (75.0%)",
    ):
        assert part in text, part
    assert page.tags.count("table") == 3 and "url(" not in text and "@import" not in text


def test_the_text_has_all_that_blocks() -> None:
    lines = str(example()).splitlines()
    assert lines[0] == f"{EVIL}: 9 of 12 kernels inside of graphs (75.0%)"
    for line in (
        "blocker: graph 0 (inference): a copy from the GPU to the CPU: aten._to_copy.default at "
        f"{EVIL}:12",
        "  to do: return the tensor",
        f"  3 x void kernel<{EVIL}>: 12.5 us",
        f"  pass hoist: a copy of {EVIL} ({EVIL}:3)",
        "  launched past the wrappers",
        f"note: {EVIL}",
    ):
        assert line in lines, line
    assert "graphs took 2.5 ms to build" in str(example())


def test_nothing_counted_is_said() -> None:
    assert str(Explanation("f")).startswith("f: no compiled graph was called")
    graph = GraphReport("graph 0", "warming")
    assert str(Explanation("f", report=Report([graph]))).startswith("f: nothing ran inside")
    assert Explanation("f").coverage == 0.0


def test_rich_shows_the_same() -> None:
    console = Console(width=300, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(example())
    assert console.export_text().split() == str(example()).split()


def test_it_is_saved_by_suffix(tmp_path: Path) -> None:
    found = example()
    for suffix in ("json", "html", "txt"):
        found.save(tmp_path / f"page.{suffix}")
    data = json.loads((tmp_path / "page.json").read_text())
    assert data["coverage"] == 0.75 and data["blockers"][0]["source"] == f"{EVIL}:12"
    assert data["report"]["graphs"][0]["passes"][0]["name"] == "hoist"
    assert (tmp_path / "page.html").read_text() == found.to_html()
    assert (tmp_path / "page.txt").read_text() == f"{found}\n"
    with pytest.raises(ValueError, match=r"needed: \.json, \.html or \.txt"):
        found.save(tmp_path / "page.pdf")
