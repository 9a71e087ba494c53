"""The report as a page, and its charts."""

import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from paper_support import HOSTILE, line, mode, whole, with_gaps

from benchmarks.paper.report import charts, figures, sections, tables
from benchmarks.paper.report.figures import rows_of
from benchmarks.paper.report.html import as_html, write_report
from benchmarks.paper.report.markdown import as_markdown

VOID = {"meta", "br", "img", "link", "hr"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects what a browser would load or name."""

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.ids, self.text = [], [], [], []
        self.tags = {}

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        for key in ("src", "href", "xlink:href", "action", "data"):
            if key in given and not given[key].startswith("#"):
                self.loads.append(given[key])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page():
    return as_html(with_gaps())


def test_the_page_is_whole_and_needs_nothing_else(page):
    parser = Page()
    parser.feed(page)
    parser.close()
    assert parser.open == [] and parser.loads == []
    assert len(parser.ids) == len(set(parser.ids))
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    assert parser.tags["svg"] == 4 and page.count('role="img" aria-label="') == 4
    links = re.findall(r'href="#([^"]+)"', page)
    assert links and set(links) <= set(parser.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(parser.ids)
    assert parser.tags["table"] == page.count('<div class="wide" role="region"') == 12


def test_the_page_escapes_what_it_did_not_write(page):
    assert "<script" not in page
    parser = Page()
    parser.feed(page)
    assert " ".join(HOSTILE.split()) in "".join(parser.text)


def test_the_page_says_what_the_markdown_says(page):
    parser = Page()
    parser.feed(page)
    said = set(parser.text)
    for table in (tables.latency(rows_of(with_gaps()), 2), tables.memory(rows_of(with_gaps()))):
        for row in (*table.rows, *table.foot):
            assert {cell for cell in row if cell} <= said
    titles = sections.sections(with_gaps())
    assert set(titles) <= said


@pytest.fixture
def no_charts(monkeypatch):
    """They take most of a page's time."""
    monkeypatch.setattr(charts, "draw", lambda name, rows: None)


def test_slower_is_not_shown_as_good(page, no_charts):
    lines = re.findall(r"<tr><th scope=.row. class=.w.>XLNET-T</th>.*?</tr>", page)
    assert '<td class="good">1.05</td><td>0.99</td>' in lines[0]
    content = whole()
    content["workloads"] = {"XLNET-T": content["workloads"]["XLNET-T"]}
    mode(content, "XLNET-T", "pygraph")["latency_us"] *= 1.5
    slow = re.findall(r"<tr><th scope=.row. class=.w.>XLNET-T</th>.*?</tr>", as_html(content))[0]
    assert '<td class="bad">0.70</td><td class="bad">0.66</td>' in slow


def test_charts_are_the_same_each_time(page):
    rows = rows_of(with_gaps())
    for name in charts.CHARTS.keys() - {"ablation"}:
        first = charts.draw(name, rows)
        assert first is not None and first.svg in page
        assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]+"', "", first.svg)
        assert "<metadata" not in first.svg and "date" not in first.svg
        assert all(f">{each}<" in first.svg.replace("†", "") for each in ("XLNET-I", "DMLM"))
        assert ">MMC<" not in first.svg
    assert charts.draw("speed-up", {}) is None and charts.draw("floor", {}) is None


def test_the_first_chart_shows_the_speed_ups_and_what_failed():
    drawn = charts.draw("speed-up", rows_of(with_gaps()))
    mean = line(tables.latency(rows_of(with_gaps())), "geometric mean")["over default"][:4]
    assert f">{mean}<" in drawn.svg and drawn.alt.endswith(
        f"The geometric mean of pygraph is {mean}."
    )
    assert drawn.svg.count(">failed<") == 2 and ">4.19<" in drawn.svg


def test_the_ablation_is_drawn_once_each_part_was_switched_off(monkeypatch):
    content = whole()
    for name, factor in (("pygraph-untransformed", 1.5), ("pygraph-always", 0.8)):
        assert not any(isinstance(each, sections.Chart) for each in ablation(content))
        for workload in content["workloads"]:
            own = mode(content, workload, "pygraph")
            more = own | {"mode": name, "latency_us": factor * own["latency_us"]}
            content["workloads"][workload]["records"].append(more)
    assert ablation(content)[-1] == sections.Chart("ablation")
    mode(content, "EOS", "pygraph-always").update(correct=False, error="boom", latency_us=None)
    seen = {}
    monkeypatch.setattr(charts, "_bars", lambda name, names, series, *rest, **_: seen.update(
        {each.mode: dict(zip(names, each.values, strict=True)) for each in series}))  # fmt: skip
    charts.draw("ablation", rows_of(content))
    assert list(seen) == list(figures.PARTS) and len(seen["pygraph-copies"]) == 26
    assert seen["pygraph-untransformed"]["BERT"] == pytest.approx(1.5)
    assert seen["pygraph-always"]["geomean"] == pytest.approx(0.8)
    assert seen["pygraph-always"]["EOS"] is None
    monkeypatch.undo()
    drawn = charts.draw("ablation", rows_of(content))
    assert drawn.svg.count(">failed<") == 1 and ">pygraph-always<" in drawn.svg
    assert drawn.alt.startswith("Bars: latency of pygraph-untransformed, pygraph-copies and")


def ablation(content):
    return sections.sections(content)["Ablation"]


def test_a_report_is_two_files(tmp_path, no_charts):
    place = tmp_path / "docs" / "paper25.md"
    content = whole()
    content["workloads"] = {"EOS": content["workloads"]["EOS"]}
    write_report(content, place, tmp_path / "pages" / "paper25.html")
    assert "(../pages/paper25.html)" in place.read_text()
    assert (tmp_path / "pages" / "paper25.html").read_text().startswith("<!DOCTYPE html>")


def test_an_empty_file_gives_a_report_too():
    empty = {"settings": {}, "runs": [], "workloads": {}, "targets": []}
    assert "# PyGraph" in as_markdown(empty)
    parser = Page()
    parser.feed(as_html(empty))
    assert parser.open == []


def test_the_readmes_picture_stands_alone_and_has_the_tables_figures():
    rows = rows_of(whole())
    made = charts.picture(charts.in_short(rows))
    assert "currentColor" not in made and "var(" not in made
    assert '<rect width="100%" height="100%" fill="#ffffff"/>' in made
    table = tables.short(rows)
    for line_ in (*table.rows, *table.foot):
        for text in (line_[0], line_[5], line_[6]):
            assert f">{text}<" in made, text
