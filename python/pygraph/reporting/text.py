"""A report as plain text, for logs and terminals without rich, and the formats both share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygraph.reporting.model import GraphReport, Report, Selected

#: How the graphs of a device run.
_HOW = {"cuda": "as CUDA graphs", "twin": "as graphs on the CPU twin"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def as_bytes(count: float) -> str:
    """A size with the largest unit that leaves at least one in front: 1536 is "1.5 KiB"."""
    size = float(count)
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable: the last unit always returns")


def first_line(text: str) -> str:
    """The first that is not blank, as of what an error says."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def headline(report: Report) -> str:
    """The whole report in one line."""
    if not report.graphs:
        return "PyGraph: no compiled graph has run yet"
    counts = [
        f"{sum(graph.graphed for graph in graphs)} of {len(graphs)} compiled graphs run {how}"
        for device, how in _HOW.items()
        if (graphs := [each for each in report.graphs if _counts(each) and each.device == device])
    ]
    return (
        f"PyGraph: {', '.join(counts) or 'each compiled graph was replaced'}, "
        f"{report.replays} of {report.calls} calls replayed ({report.coverage():.1%}), "
        f"{as_bytes(report.bytes_copied)} copied"
    )


def _counts(graph: GraphReport) -> bool:
    """Whether it is one of the compiled graphs: one that was compiled once more is not any more."""
    return graph.state != "replaced"


def outside_line(graph: GraphReport) -> str:
    """Which operators run outside of it, and what finding out has cost; empty where none does."""
    if not graph.culprits:
        return ""
    names = " and ".join(graph.culprits)
    if not graph.compiled_again_s:
        return f"compiled with {names} outside, in which captures had failed"
    return f"compiled once more with {names} outside, in {graph.compiled_again_s:.1f} s"


def environment_line(report: Report) -> str:
    """What is known. The twin is named as a device; where all graphs are on it, a problem that
    keeps CUDA graphs off is none."""
    known = {key: value for key, value in report.environment.items() if value is not None}
    devices = {graph.device for graph in report.graphs}
    if "twin" in devices:
        known["device"] = " and ".join(filter(None, (known.get("device"), "CPU twin")))
    if devices == {"twin"}:
        known.pop("problem", None)
    return ", ".join(f"{key} {value}" for key, value in known.items())


def graph_lines(graph: GraphReport) -> list[str]:
    """One graph; the lines below the first are indented."""
    lines = [f"{graph.name}: {graph.state}; {graph.replays} of {graph.calls} calls replayed"]
    if graph.blame:
        lines.append(f"  because {graph.blame}")
    lines += [f"  pass {each}" for each in graph.passes]
    if graph.culprits:
        lines.append(f"  {outside_line(graph)}")
    if graph.not_repeated:
        lines.append(f"  a replay does not repeat {' and '.join(graph.not_repeated)}")
    if graph.host_numbers:
        count = len(graph.host_numbers)
        plural = "s" if count > 1 else ""
        lines.append(f"  {count} host number{plural}: {', '.join(graph.host_numbers)}")
    if graph.compared:
        lines.append(
            f"  {graph.compared} calls compared with the callable, {graph.differed} differ"
        )
        lines += [f"  {each}" for each in graph.differences]
    if graph.nodes:
        lines.append(
            f"  {graph.nodes} nodes ({graph.kernels} kernels, {graph.edges} edges"
            f"{f' in {graph.lanes} lanes' if graph.lanes > 1 else ''}"
            f"{f', launched in {graph.parts} parts' if graph.parts > 1 else ''}"
            f"{f', on {graph.peers}, too' if graph.peers else ''}), "
            f"{graph.inputs} inputs, {graph.constants} constants, {graph.outputs} outputs"
        )
        lines.append(
            f"  outputs: {graph.outputs_direct} direct, {graph.outputs_copied} copied, "
            f"{graph.outputs_kept} kept, {graph.outputs_aliased} aliases"
        )
        lines.append(
            f"  {graph.relocations} relocations, {graph.coincidences} coincidences, "
            f"{graph.noise} noise; proof: {graph.proof}"
        )
        lines.append(
            f"  memory: arena {as_bytes(graph.arena_bytes)} "
            f"(at least {as_bytes(graph.arena_lower_bound)}"
            f"{f', in {graph.arena_pieces} pieces' if graph.arena_pieces > 1 else ''}), "
            f"outputs {as_bytes(graph.output_bytes)}"
            f"{f' (with {lent} pieces of scratch)' if (lent := graph.scratch_in_outputs) else ''}, "
            f"private pool {as_bytes(graph.private_pool_bytes)}, "
            f"taken by the capture {as_bytes(graph.capture_bytes)}"
        )
    if graph.unknown_words:
        lines.append(
            f"  {graph.unknown_words} of {graph.foreign_words} foreign addresses unexplained: "
            "constants must stay in place"
        )
    if graph.offsets_kept:
        lines.append(f"  storage offsets must stay as they are: {graph.offsets_kept}")
    if graph.programs > 1 or graph.evictions or graph.relinks:
        lines.append(
            f"  {graph.programs} programs, {graph.evictions} evicted, {graph.relinks} linked anew"
            f"{f'; no room for more: {graph.limit}' if graph.limit else ''}"
        )
    if graph.waiting and graph.waiting != graph.reason:
        lines.append(f"  {graph.waiting}")
    if graph.copies:
        lines.append(f"  {as_bytes(graph.bytes_copied)} copied in {graph.copies} copies")
    if graph.bytes_staged or graph.bytes_fetched:
        lines.append(
            f"  {as_bytes(graph.bytes_staged)} brought from the host, "
            f"{as_bytes(graph.bytes_fetched)} returned to it"
        )
    if graph.bytes_looked_at:
        lines.append(f"  {as_bytes(graph.bytes_looked_at)} of indices read in front of launches")
    if graph.replays:
        lines.append(f"  {graph.updates / graph.replays:.1f} nodes patched per replay")
    lines += [f"  {line}" for line in selection_lines(graph)]
    if graph.timings_ms:
        steps = ", ".join(f"{name} {value:.1f}" for name, value in graph.timings_ms.items())
        lines.append(f"  built in ms: {steps}")
    return lines


#: Sizes of one graph whose selection is told.
_MOST_SELECTED = 8


def selection_lines(graph: GraphReport) -> list[str]:
    """Whether its programs serve calls, and how, and why; the last ones, where there are many."""
    lines = [f"{_serves(each)}: {each}" for each in graph.selection[-_MOST_SELECTED:]]
    more = len(graph.selection) - len(lines)
    if more:
        programs = [each for each in graph.selection if each.what == "callable"]
        pay = sum(each.graph for each in programs)
        of = f"; {pay} of {len(programs)} sizes have a graph" if programs else ""
        lines.append(f"and {more} more{of}")
    return lines


_SERVES = {
    "callable": ("a graph serves", "runs without a graph"),
    "copies": ("patched", "copied"),
    "past": ("calls go past the guards", "calls do not go past the guards"),
    "early": ("launched before the guards", "launched behind the guards"),
    "lanes": ("nodes run side by side", "nodes run in a row"),
}


def _serves(found: Selected) -> str:
    return _SERVES[found.what][0 if found.graph else 1]


def as_text(report: Report) -> str:
    """The report as lines of text, one block per graph."""
    lines = [headline(report)]
    if report.environment:
        lines.append(environment_line(report))
    for graph in report.graphs:
        lines += graph_lines(graph)
    lines += [f"event: {event}" for event in report.events]
    return "\n".join(lines)
