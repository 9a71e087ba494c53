"""The requirements that the engine's record answers, each with what was measured.

Everything here is arithmetic on stored figures, so that a record can be judged again later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.engine.linktime import LIMIT
from benchmarks.engine.memory import Figures, packing
from benchmarks.engine.tight import CALLS, STREAM_MIB, Tight
from benchmarks.harness.figures import over
from benchmarks.harness.record import by_mode
from benchmarks.harness.targets import PEAK_LIMIT, Target, judged
from pygraph.reporting import GRAPHED, PARTLY


def activations_ratio(default: Figures, pygraph: Figures) -> float | None:
    """The peaks' ratio with the model and its inputs left out of both."""
    if default.peak_mib is None or pygraph.peak_mib is None:
        return None
    above = default.peak_mib - default.own_mib
    return (pygraph.peak_mib - pygraph.own_mib) / above if above > 0 else None


def memory_targets(models: Sequence[str], figures: Sequence[Figures]) -> list[Target]:
    """Three targets for each model, those that were not measured included."""
    measured = by_mode(figures)
    return [target for model in models for target in _memory(model, measured.get(model, {}))]


def _memory(model: str, modes: Mapping[str, Figures]) -> list[Target]:
    default, own = modes.get("default"), modes.get("pygraph")
    ratio, parts = over(modes, "pygraph", "default", "peak_mib"), []
    same = usable = None
    if default and own:
        same = bool(own.digest) and own.digest == default.digest
        if ratio is not None:
            above = activations_ratio(default, own)
            detail = f"{own.peak_mib:,.0f} of {default.peak_mib:,.0f} MiB"
            detail += "" if above is None else f"; without model and inputs {above:.3f}"
            parts.append(detail)
    # Memory of a callable that runs uncaptured meets any limit: it says nothing about graphs.
    states = [str(graph["state"]) for graph in own.graphs] if own else []
    failed = own is not None and not (states and all(s in (GRAPHED, PARTLY) for s in states))
    if failed:
        parts.append("not graphed")
    if own:
        usable = False if own.same_after is False else own.freed_is_usable
    peak = "peak allocated at most that of default"
    return [
        judged(f"memory, {model}", peak, ratio, PEAK_LIMIT, "; ".join(parts), failed=failed),
        Target(
            f"memory for others, {model}",
            "what is free between calls can be had by another model, and results stay right",
            usable,
            own.freed_mib if own else None,
            detail=f"held when idle: {own.held_mib:,.0f} MiB" if own else "",
        ),
        Target(f"bits, {model}", "the bits of default", same),
    ]


def packing_table(figures: Sequence[Figures]) -> dict[str, dict[str, float | None]]:
    """Per model that was measured in both modes."""
    return {
        model: packing(modes["default"], modes["pygraph"])
        for model, modes in by_mode(figures).items()
        if "default" in modes and "pygraph" in modes
    }


def tight_target(tight: Mapping[str, Any] | None) -> Target:
    """On what the "tight" job returned for pygraph."""
    name = "capture without memory"
    requirement = (
        "with at most 1.5 times the memory of a call free: no failure, graphed, right, "
        f"at most {STREAM_MIB:.0f} MiB taken by a capture"
    )
    if tight is None:
        return Target(name, requirement, None)
    found = Tight(**{key: value for key, value in tight.items() if key != "captured_for_free"})
    taken = [graph["capture_bytes"] / 2**20 for graph in found.graphs]
    met = (
        found.error is None
        and found.calls == CALLS
        and found.same_bits is True
        and found.captured_for_free
        and found.share > 0.5
    )
    detail = (
        f"{found.workload}: {found.calls} of {CALLS} calls, {found.free_mib:,.0f} MiB free, "
        f"activations {found.share:.0%} of it" + (f"; {found.error}" if found.error else "")
    )
    return Target(name, requirement, met, max(taken, default=None), STREAM_MIB, detail)


def link_target(link: Mapping[str, Any] | None) -> Target:
    """On what the "link" job returned."""
    name = "link time"
    requirement = "captures, comparison and proof, its runs left out, over one capture"
    if link is None:
        return judged(name, requirement, None, LIMIT)
    detail = (
        f"{link['workload']}: {link['link_and_proof_ms']:.1f} ms, of them the proof's runs "
        f"{link['proof_runs_ms']:.1f} ({link['proof_runs_are']}); one capture "
        f"{link['one_capture_ms']:.1f} ms ({link['one_capture_is']})"
    )
    failed = not all(state in (GRAPHED, PARTLY) for state in link["states"])
    return judged(name, requirement, link["captures"], LIMIT, detail, failed=failed)
