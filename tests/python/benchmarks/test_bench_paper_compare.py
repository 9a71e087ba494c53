"""Two results of the paper's benchmark compared: what is slower, what is noise, what is lost."""

import io
import json

import pytest

pytest.importorskip("torch")

from paper_support import NAMES, mode, row, whole, with_gaps, without
from rich.console import Console

from benchmarks.harness.regress import Rule
from benchmarks.paper.report import compare


def compared(old, new, metric="latency_us", limit=compare.LIMIT):
    return compare.compare(old, new, Rule(metric, limit, compare.CONFIDENCE))


def only(old, new, name="EOS", **options):
    return next(each for each in compared(old, new, **options) if each.name == name)


def bad(old, new, **options):
    return [each.name for each in compared(old, new, **options) if each.bad]


def scaled(content, name, which, factor):
    found = mode(content, name, which)
    for key in ("latency_us", "latency_p10_us", "latency_p90_us"):
        found[key] *= factor
    return content


def test_the_same_is_no_change():
    assert bad(whole(), whole()) == []
    assert bad(with_gaps(), with_gaps()) == []
    assert len(compared(whole(), whole())) == 25


def test_a_slower_machine_is_no_change():
    new = whole()
    for name in NAMES:
        for each in new["workloads"][name]["records"]:
            scaled(new, name, each["mode"], 1.4)
    assert bad(whole(), new) == []


def test_a_planted_slowdown_is_found_and_one_within_the_limit_is_not():
    assert bad(whole(), scaled(whole(), "EOS", "pygraph", 1.04)) == ["EOS"]
    found = only(whole(), scaled(whole(), "EOS", "pygraph", 1.04))
    assert found.slower == ["default", "reduce-overhead"]
    # 73.5 / 114, and 4% more.
    change = found.changes["default"]
    assert (change.old, change.new) == pytest.approx((0.6447, 0.6705), abs=1e-4)
    assert change.growth == pytest.approx(0.04) and change.bound == 0.03
    assert bad(whole(), scaled(whole(), "EOS", "pygraph", 1.029)) == []
    assert bad(whole(), scaled(whole(), "EOS", "pygraph", 1.04), limit=0.05) == []
    assert bad(whole(), scaled(whole(), "EOS", "pygraph", 0.5)) == []


def test_one_incumbent_is_enough_and_the_floor_does_not_count():
    faster = scaled(whole(), "EOS", "reduce-overhead", 0.9)
    assert only(whole(), faster).slower == ["reduce-overhead"]
    assert bad(whole(), scaled(whole(), "EOS", "floor", 0.5)) == []


def test_samples_that_spread_widen_the_bound():
    def noisy(content):
        found = mode(content, "EOS", "pygraph")
        found.update(
            latency_p10_us=found["latency_us"] * 0.6, latency_p90_us=found["latency_us"] * 1.4
        )
        found["samples"] = 50
        return content

    old, new = noisy(whole()), noisy(scaled(whole(), "EOS", "pygraph", 1.1))
    # Twice 1.2533 * 0.8 / 2.5632 / sqrt(50) = 0.0553, and little from default: 3 of them together.
    assert only(old, new).changes["default"].bound == pytest.approx(0.2348, abs=1e-3)
    assert bad(old, new) == []
    assert bad(old, noisy(scaled(whole(), "EOS", "pygraph", 1.3))) == ["EOS"]
    for content in (old, new):
        mode(content, "EOS", "pygraph")["samples"] = 50_000
    assert bad(old, new) == ["EOS"]


def test_other_metrics():
    new = whole()
    mode(new, "EOS", "pygraph")["pipelined_us"] *= 1.1
    mode(new, "DLRM", "pygraph").update(host_us=434.0, host_p90_us=435.0)
    assert bad(whole(), new) == []
    assert bad(whole(), new, metric="pipelined_us") == ["EOS"]
    assert bad(whole(), new, metric="host_us") == ["DLRM"]


def test_lost_rows_and_modes():
    new = whole()
    del new["workloads"]["EOS"]
    new["workloads"]["VM"].update(records=[], error="no\n  memory")
    without(new, "BERT", "pygraph")
    without(new, "DLRM", "reduce-overhead")
    found = {each.name: each for each in compared(whole(), new)}
    assert {name for name, each in found.items() if each.bad} == {"EOS", "VM", "BERT", "DLRM"}
    assert found["EOS"].lost == ("not in the new result",)
    assert found["VM"].lost == ("no memory",)
    assert found["BERT"].lost[0] == "pygraph was not run"
    assert found["DLRM"].lost == ("no ratio to reduce-overhead any more",)


def test_what_never_ran_cannot_be_lost_and_what_is_new_is_fine():
    old, new = with_gaps(), with_gaps()
    del new["workloads"]["MMC"]
    assert bad(old, new) == []
    assert bad(new, whole()) == []
    assert only(new, whole(), "MMC").is_new


def test_lost_correctness():
    new = whole()
    mode(new, "EOS", "pygraph").update(correct=False, latency_us=None, verdict={"reason": "stale"})
    mode(new, "DLRM", "pygraph")["verdict"]["bit_equal_to_default"] = False
    assert only(whole(), new).lost[0] == "pygraph is wrong: stale"
    assert only(whole(), new, "DLRM").lost == ("not bit-equal to default any more",)
    assert bad(whole(), new) == ["EOS", "DLRM"]


@pytest.mark.parametrize(
    ("key", "fine", "worse", "said"),
    [
        ("kernels_in_graphs", 378.5, 370, "coverage 95.0% -> 92.5%"),
        ("bytes_copied", 128, 129, "bytes copied 128 B -> 129 B"),
        ("peak_mib", 1060, 1061, "peak MiB 1,010 -> 1,061"),
    ],
)
def test_coverage_bytes_and_memory(key, fine, worse, said):
    new = whole()
    mode(new, "EOS", "pygraph")[key] = fine
    assert bad(whole(), new) == []
    mode(new, "EOS", "pygraph")[key] = worse
    assert only(whole(), new).worse == (said,)
    assert bad(whole(), new) == ["EOS"]


# ------------------------------------------------------------------------------- command


def run(tmp_path, old, new, metric="latency_us", limit=compare.LIMIT):
    files = []
    for name, content in (("old.json", old), ("new.json", new)):
        files.append(tmp_path / name)
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            files[-1].write_text(text)
    out = io.StringIO()
    status = compare.run_compare(*files, metric, limit, Console(file=out, width=300))
    return status, out.getvalue()


def test_the_exit_status_and_the_table(tmp_path):
    status, text = run(tmp_path, whole(), whole())
    assert status == 0 and "none of 25 workloads is slower" in text
    status, text = run(tmp_path, whole(), scaled(whole(), "EOS", "pygraph", 1.1))
    assert status == 1 and "slower, lost or grown: EOS (1 of 25)" in text
    assert "0.645 -> 0.709 (+10.0%, 3.0%)" in text
    assert "slower against default and reduce-overhead" in text
    assert run(tmp_path, whole(), scaled(whole(), "EOS", "pygraph", 1.1), limit=0.2)[0] == 0


def test_another_machine_is_told(tmp_path):
    new = whole()
    new["runs"][0]["env"]["torch"] = "2.12.0"
    status, text = run(tmp_path, whole(), new)
    assert status == 0 and "torch 2.11.0+cu130 -> 2.12.0" in text
    assert "other versions" not in run(tmp_path, whole(), whole())[1]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file"),
        ("{", "found no JSON"),
        ("[1]", "found a JSON list"),
        ({"a": 1}, "found a;"),
        ({"env": {}, "records": []}, "./run regress"),
        ({"runs": [], "workloads": {}}, "found no workloads"),
        ({"runs": [], "workloads": {"EOS": {"records": [{"mode": "eager"}]}}}, "another form"),
        ({"runs": [], "workloads": {"EOS": 3}}, "another form"),
    ],
)
def test_what_is_no_result_is_named(tmp_path, content, found):
    for old, new, name in ((content, whole(), "old.json"), (whole(), content, "new.json")):
        place = tmp_path / name[:3]
        place.mkdir(exist_ok=True)
        status, text = run(place, old, new)
        assert status == 2
        assert name in text and found in text and "needed: a result of `./run bench`" in text


def test_an_unknown_metric(tmp_path):
    status, text = run(tmp_path, whole(), whole(), metric="weight")
    assert status == 2 and "latency_us, host_us, pipelined_us" in text


def test_a_row_alone():
    content = {"workloads": {"EOS": row("EOS")}}
    assert compared(content, content)[0].changes["floor"].old == pytest.approx(1.05)
