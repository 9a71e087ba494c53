"""The report on a stored measurement: its numbers, its gaps, what other pages show of it."""

import copy
import re

import pytest

pytest.importorskip("torch")

from paper_support import NAMES, line, mode, whole, with_gaps, without

from benchmarks.harness import shown
from benchmarks.harness.markdown import escape
from benchmarks.paper.report import figures, markdown, published, sections, tables, targets
from benchmarks.paper.report.figures import rows_of
from benchmarks.paper.report.markdown import as_markdown
from benchmarks.paper.workloads.catalogue import WORKLOADS

# ------------------------------------------------------------------------------- numbers


def test_the_latency_table_holds_the_rows_figures():
    found = line(tables.latency(rows_of(with_gaps()), runs=2), "EOS")
    # 70 is the floor, 73.5 is 1.05 times that; 114 / 73.5 and 150 / 73.5.
    assert found == {
        "workload": "EOS",
        "batch": "1,048,576",
        "eager": "182",
        "default": "114",
        "reduce-overhead": "150",
        "pygraph": "73.5",
        "floor": "70.0",
        "pygraph / floor": "1.05",
        "over default": "1.55",
        "over reduce-overhead": "2.04",
        "published": "-",
        "run": "1",
    }
    assert "run" not in tables.latency(rows_of(whole())).head


def test_published_figures_stand_beside_ours_where_they_are_known():
    table = tables.latency(rows_of(whole()))
    assert line(table, "XLNET-I")["published"] == "3.36"
    assert line(table, "geometric mean")["published"] == "1.29 (25)"
    assert [row[0] for row in table.rows if row[-1] != "-"] == ["XLNET-I"]
    coverage = line(tables.coverage(rows_of(whole())), "VM")
    assert coverage["published: PyTorch"] == "58.84%"
    assert coverage["published: PyGraph"] == "71.01%"
    assert set(published.WORKLOADS) <= set(NAMES)


def test_rows_stand_in_the_papers_order():
    content = whole()
    stored = {"other": content["workloads"]["EOS"]}
    content["workloads"] = stored | dict(reversed(content["workloads"].items()))
    assert list(rows_of(content)) == [*NAMES, "other"]
    assert tuple(NAMES) == tuple(WORKLOADS)


def test_missing_values_are_dashes():
    table = tables.latency(rows_of(with_gaps()), runs=2)
    lost = line(table, "MMC")
    assert {lost[key] for key in table.head[2:-1]} == {"-"}
    assert lost["run"] == "2"
    wrong = line(table, "TKE")
    assert wrong["reduce-overhead"] == wrong["over reduce-overhead"] == "-"
    assert wrong["over default"] == "1.24"
    assert line(tables.compile_cost(rows_of(with_gaps())), "TKE")["reduce-overhead"] == "-"
    raised = line(table, "DR-I")
    assert raised["pygraph"] == raised["pygraph / floor"] == "-" and raised["floor"] == "17,000"
    assert line(table, "LCNET")["eager"] == "-"
    assert line(tables.correctness(rows_of(with_gaps())), "MMC")["modes right"] == "-"


def test_means_say_over_how_many_rows_they_are():
    content = {"workloads": {name: whole()["workloads"][name] for name in ("EOS", "DLRM")}}
    foot = line(tables.latency(rows_of(content)), "geometric mean")
    # sqrt(114 / 73.5 * 537 / 433.65) and sqrt(150 / 73.5 * 566 / 433.65).
    assert foot["over default"] == "1.39 (2)"
    assert foot["over reduce-overhead"] == "1.63 (2)"
    assert line(tables.latency(rows_of(with_gaps())), "geometric mean")["over default"].endswith(
        "(23)"
    )
    assert line(tables.latency(rows_of({"workloads": {}})), "geometric mean")["over default"] == "-"


def test_a_floor_that_is_a_bound_is_marked_and_explained():
    content = whole()
    found = line(tables.latency(rows_of(content)), "VM")
    assert found["floor"] == "6,454†" and found["pygraph / floor"] == "1.05†"
    assert found["over default"] == "4.19"
    text = as_markdown(content)
    assert sections.BOUND_IS in text and "- VM: cannot be captured" in text
    for name in ("ST", "DALLE2", "VM"):
        del content["workloads"][name]
    assert "†" not in as_markdown(content)


def test_coverage_counts_kernels_inside_and_outside():
    content = whole()
    mode(content, "BERT", "pygraph").update(kernels=1000, kernels_in_graphs=999.6)
    found = line(tables.coverage(rows_of(content)), "BERT")
    assert found["reduce-overhead: inside"] == "300"
    assert found["reduce-overhead: outside"] == "100"
    assert found["reduce-overhead: coverage"] == "75.0%"
    assert found["pygraph: outside"] == "0.4"
    assert found["pygraph: coverage"] == ">99.9%"
    sums = line(tables.coverage(rows_of(content)), "sum")
    assert [sums[f"pygraph's graphs: {what}"] for what in ("found", "captured", "deployed")] == [
        "75",
        "50",
        "50",
    ]
    assert sums["reduce-overhead: graphs"] == "50"


def test_bytes_compiling_and_memory():
    rows = rows_of(whole())
    rows["DGPT2"].mode("pygraph").extra["indices_read"] = 512.0
    copied = line(tables.copied(rows), "DGPT2")
    assert copied["indices read on the host"] == "512 B"
    assert line(tables.copied(rows), "EOS")["indices read on the host"] == "-"
    assert copied["pygraph"] == "128 B" and copied["pygraph-copies"] == "5.0 MB"
    assert copied["reduce-overhead"] == "953.0 MB" and copied["published: PyTorch"] == "953 MB"
    cost = line(tables.compile_cost(rows), "EOS")
    assert cost["pygraph / reduce-overhead"] == "1.20" and cost["pygraph / default"] == "2.40"
    assert cost["no caches: default"] == "50.0" and cost["no caches: reduce-overhead"] == "100.0"
    assert line(tables.compile_cost(rows), "published")["pygraph / reduce-overhead"] == "2.21"
    memory = line(tables.memory(rows), "EOS")
    assert memory["peak: pygraph"] == "1,010" and memory["peak: pygraph / default"] == "1.01"
    assert memory["held: reduce-overhead"] == "700"
    assert line(tables.memory(rows), "geometric mean")["peak: pygraph / default"] == "1.01 (25)"


def test_host_and_pipelined_time():
    content = whole()
    mode(content, "EOS", "pygraph").update(host_us=12.34, pipelined_us=1234.5)
    table = tables.host(rows_of({"workloads": {"EOS": content["workloads"]["EOS"]}}))
    found = line(table, "EOS")
    assert found["host: pygraph"] == "12.3" and found["pipelined: pygraph"] == "1,234"
    # 57 / 12.34, and 108.3 / 1234.5.
    foot = line(table, "speed-up over default")
    assert foot["host: pygraph"] == "4.62 (1)" and foot["pipelined: pygraph"] == "0.09 (1)"


def test_the_distance_from_the_floor_is_sorted_worst_first():
    content = with_gaps()
    mode(content, "DCGAN", "pygraph")["latency_us"] = 464 * 2.0
    mode(content, "DMLM", "pygraph")["latency_us"] = 13184 * 1.5
    table = tables.distance(rows_of(content))
    names = [row[0] for row in table.rows]
    assert names[:2] == ["DCGAN", "DMLM"] and set(names[-2:]) == {"MMC", "DR-I"}
    assert line(table, "DCGAN")["pygraph / floor"] == "2.00"
    assert line(table, "ST")["idle: reduce-overhead"] == "63.9%"


def test_ablations_are_found_by_their_names():
    content = whole()
    rows = rows_of(content)
    found = line(tables.ablation(rows), "EOS")
    assert found["pygraph-copies / pygraph"] == "1.20"
    text = as_markdown(content)
    assert "pygraph-always was not measured: every graph that is proven is used" in text
    assert "pygraph-untransformed was not measured: programs are compiled as they are" in text
    for each in content["workloads"].values():
        more = copy.deepcopy(next(r for r in each["records"] if r["mode"] == "pygraph"))
        each["records"].append(more | {"mode": "pygraph-always"})
    assert line(tables.ablation(rows_of(content)), "EOS")["pygraph-always / pygraph"] == ("1.00")
    for each in content["workloads"].values():
        more = copy.deepcopy(next(r for r in each["records"] if r["mode"] == "pygraph"))
        slower = {"mode": "pygraph-untransformed", "latency_us": 1.5 * more["latency_us"]}
        each["records"].append(more | slower)
    found = line(tables.ablation(rows_of(content)), "EOS")
    assert found["pygraph-untransformed / pygraph"] == "1.50"
    text = as_markdown(content)
    assert "pygraph-untransformed: programs are compiled as they are" in text
    assert "was not measured" not in text
    for name in NAMES:
        for which in ("pygraph-copies", "pygraph-always", "pygraph-untransformed"):
            without(content, name, which)
    assert tables.ablation(rows_of(content)) is None
    assert "No mode with a part switched off was measured." in as_markdown(content)


def test_how_numbers_are_shown():
    assert shown.microseconds(99.94) == "99.9" and shown.microseconds(1234567.0) == "1,234,567"
    assert [shown.percent(each) for each in (None, 0.0, 1.0, 0.99996, 0.0001)] == [
        *("-", "0.0%", "100.0%", ">99.9%", "<0.1%")
    ]
    assert [shown.amount(each) for each in (0, 336, 12300, 953e6, 1.5e9)] == [
        *("0 B", "336 B", "12.3 kB", "953.0 MB", "1.50 GB")
    ]
    assert shown.yes(None) == "-" and shown.yes(False) == "no"
    assert len(shown.shortened("word " * 500)) <= 300


# -------------------------------------------------------------------------------- report


def test_the_report_says_where_the_rows_come_from_and_what_went_wrong():
    text = as_markdown(with_gaps())
    for part in (
        "All runs: GPU NVIDIA H200, driver 580.159.04, torch 2.11.0+cu130,",
        "| 1 | 2026-11-20 | 13 | 30 | pygraph bench --part 0 |",
        "| pygraph bench --part 1 |",
        "- TKE, reduce-overhead: output 0 differs",
        r"- DR-I, pygraph: CUDA out of memory \| again",
        "| BSCG | 3 | reads &lt;CPU&gt; memory |",
        "its decoder from its config",
        "- inputs: 8 different buffers in turn",
        "Not judged yet.",
    ):
        assert part in text, part
    failed = text.partition("## Workloads that could not run")[2]
    assert "- MMC: RuntimeError: &lt;script&gt;" in failed.partition("##")[0]


def test_what_a_run_has_to_add_stands_under_the_runs():
    content = with_gaps()
    assert "Run 1:" not in as_markdown(content)
    content["runs"][0]["note"] = "by an earlier version"
    assert "\n- Run 1: by an earlier version.\n" in as_markdown(content)


def test_a_target_that_is_just_missed_does_not_look_met():
    near = {"name": "n", "requirement": "r", "value": 1.1472, "limit": 1.15, "met": False}
    far = {"name": "m", "requirement": "r", "value": 94149.9, "limit": 336, "met": False}
    content = with_gaps() | {"targets": [near, far]}
    text = as_markdown(content)
    assert "| n | r | 1.147 | 1.15 | NO |" in text and "| m | r | 94,150 | 336 | NO |" in text


def test_every_markdown_table_is_rectangular():
    content = with_gaps()
    content["targets"] = [
        each.to_dict() for each in targets.evaluate(list(NAMES), rows_of(content))
    ]
    groups = re.findall(r"(?:^\|.*\|\n)+", as_markdown(content), re.MULTILINE)
    assert len(groups) == 13
    for group in groups:
        counts = {len(re.split(r"(?<!\\)\|", each)) for each in group.splitlines()}
        assert len(counts) == 1, group


def test_markdown_is_escaped():
    assert escape("a|b\n`c` <d>") == r"a\|b \`c\` &lt;d&gt;"


# --------------------------------------------------------------------- parts of other pages


def test_the_whole_table():
    made = markdown.whole_table(with_gaps())
    lines = made.splitlines()
    assert lines[0].startswith("| workload | model | batch | default | reduce-overhead | pygraph |")
    assert "| EOS | pyhpc_equation_of_state | 1,048,576 | 114 | 150 | 73.5 | 70.0 | 1.05 |" in made
    assert "| XLNET-T | XLNetLMHeadModel, training |" in made
    assert len([each for each in lines if each.startswith("|")]) == 2 + 25 + 1
    said = " ".join(lines)
    assert "NVIDIA H200, driver 580.159.04, torch 2.11.0+cu130, 2026-11-20 to 2026-11-21." in said
    assert "Bit-equal to torch.compile's default: 23 of 23 rows." in said
    assert said.endswith("Measured in 2 runs; the report has their commands, and each row's run.")


def test_the_whole_table_says_what_is_particular_about_a_run():
    content = with_gaps()
    first = sum(row["run"] == 0 for row in content["workloads"].values())
    content["runs"][0]["note"] = "of an older commit"
    made = " ".join(markdown.whole_table(content).split())
    assert made.endswith(f"each row's run. Run 1, with {first} of the rows: of an older commit.")


def test_the_whole_table_has_the_command_where_there_is_one():
    made = " ".join(markdown.whole_table(whole(runs=1)).split())
    assert made.endswith("Measured with pygraph bench --part 0.")


def set_speed_up(content, name, value):
    for which, latency in (("reduce-overhead", 100.0 * value), ("pygraph", 100.0)):
        mode(content, name, which)["latency_us"] = latency


def test_the_readmes_rows_are_every_third_and_the_worst_memory():
    """The fastest, the slowest and every third between, and the largest peak wherever it stands."""
    content, names = whole(), list(NAMES)
    for rank, name in enumerate(reversed(names)):
        set_speed_up(content, name, 1.0 + rank / 100)
    mode(content, names[1], "pygraph")["peak_mib"] *= 100
    shown = [row.name for row in figures.sample(rows_of(content))]
    assert shown == [names[0], names[1], *names[3::3]]
    assert len(shown) == 10 and names[-1] in shown
    lines = markdown.readme_table(content).splitlines()
    assert len([each for each in lines if each.startswith("|")]) == 2 + 10 + 1
    assert any(each.startswith("| geometric mean of all |") for each in lines)


def test_the_readmes_first_figures_name_the_worst_memory():
    content = whole()
    for name in NAMES:
        set_speed_up(content, name, 1.5)
        for which in ("default", "pygraph"):
            mode(content, name, which)["peak_mib"] = 100.0
    mode(content, "DCGAN", "pygraph")["peak_mib"] = 300.0
    mode(content, "ALNET", "pygraph")["peak_mib"] = 103.0
    made = " ".join(markdown.gain(content).split())
    assert "1.50 times as fast as reduce-overhead (1.50 to 1.50)" in made
    assert made.endswith("and 3.00 times at worst (dcgan, training).")
    mode(content, "EOS", "reduce-overhead")["latency_us"] = None
    made = " ".join(markdown.gain(content).split())
    assert "1.50 times as fast as reduce-overhead (24 of them, 1.50 to 1.50)" in made
    said = " ".join(markdown.readme_table(content).split())
    assert said.endswith("The mean over reduce-overhead is of 24 rows.")
    said = " ".join(markdown.memory(content).split())
    assert "are 2 of 25 rows: dcgan, training (3.00), alexnet (1.03)." in said


def test_a_row_that_draws_random_numbers_is_explained():
    content = whole()
    assert tables.RANDOM not in as_markdown(content)
    content["workloads"]["DR-T"]["about"] |= {
        "random": True,
        "check": {
            "tolerance": {"outputs": 3.75, "gradients": 3.12},
            "seeds": {"outputs": 1.23, "gradients": 1.02},
        },
    }
    mode(content, "DR-T", "pygraph")["verdict"]["relative_error"] = 1.24
    found = line(tables.correctness(rows_of(content)), f"DR-T{tables.RANDOM}")
    assert found["results: error"] == "1.2e+00" and found["results: allowed"] == "3.8e+00"
    text = as_markdown(content)
    assert f"{tables.RANDOM} The program draws random numbers" in text
    assert "up to 1.2e+00 in results and 1.0e+00 in gradients" in text


def test_what_all_runs_have_in_common_is_no_column():
    content = whole(runs=2)
    head = tables.runs(content, rows_of(content)).head
    assert head == ("run", "date", "workloads", "minutes", "command")
    assert "All runs: GPU NVIDIA H200, driver 580.159.04," in as_markdown(content)
    content["runs"][0]["env"] |= {"driver": "590.1"}
    table = tables.runs(content, rows_of(content))
    assert table.head[2] == "driver" and [row[2] for row in table.rows] == ["590.1", "580.159.04"]
    assert "driver 5" not in as_markdown(content).partition("| run |")[0]
