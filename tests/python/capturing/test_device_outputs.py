"""Outputs of every kind, on the twin and on the GPU: what the callable returns, in its form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from places import PLACES, Place, assert_bits, only_graph
from training_support import fresh

from pygraph.capturing import pipeline, proof, reference, tensors


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with fresh(request.param) as here, torch.no_grad():
        yield here


def test_views_and_aliases_of_everything(place: Place) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        x, y = arguments
        z = torch.relu(x @ y)
        w = z + 1
        return [z, z, z[1:], z.t(), w.view(-1)[3:], x, x[2:], x.view(torch.int32), w, None, 3]

    graph = place.graphed(function)
    for call in range(6):
        x, y = place.randn(16, 16), place.randn(16, 16)
        found = graph.dispatcher([x, y])
        assert_bits(found, function([x, y]))
        assert found[0] is found[1]
        assert found[5] is x
        if call:  # torch tells storages apart by their addresses
            assert found[2].untyped_storage().data_ptr() == found[0].untyped_storage().data_ptr()
            assert found[4].untyped_storage().data_ptr() == found[8].untyped_storage().data_ptr()
        assert found[7].data_ptr() == x.data_ptr()
    report = graph.refresh_report()
    assert report.state == "graphed", report.reason
    assert report.replays == 4
    assert (report.outputs_aliased, report.outputs_kept, report.outputs_copied) == (7, 0, 0)
    assert report.outputs_direct == 2


def test_a_result_that_nothing_writes_holds_what_it_may(place: Place) -> None:
    """Attention without dropout returns such a seed, which has no value that could be proven."""

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        seed = torch.empty(2, dtype=torch.int64, device=x.device)
        return [x + 1, seed, seed, seed[1:], x * 2]

    graph = place.graphed(function)
    for _ in range(5):
        x = place.randn(8)
        found = graph.dispatcher([x])
        assert_bits([found[0], found[4]], [x + 1, x * 2])
        assert found[1] is found[2]
        assert found[3].data_ptr() == found[1][1:].data_ptr()
    report = graph.refresh_report()
    assert (report.state, report.proof, report.replays) == ("graphed", "bit-equal", 3), report.blame
    (signature,) = graph._signatures.with_program
    assert signature.program.unwritten == [1, 2, 3]


@pytest.mark.parametrize("unknown", [[], [1 << 40]])
def test_what_unknown_memory_may_lead_to_is_proven(
    place: Place, monkeypatch: pytest.MonkeyPatch, unknown: list[int]
) -> None:
    """Nobody knows that a result is written by nothing while the graph reads memory that nobody
    can explain, where its address may stand."""
    exempt: list[list[int]] = []
    prove = proof.prove

    def noting(program: Any, run: reference.Reference, **_: Any) -> proof.Verdict:
        exempt.append(list(program.unwritten))
        return prove(program, run)

    monkeypatch.setattr(proof, "prove", noting)
    monkeypatch.setattr(pipeline.foreign, "explain", lambda holdings, words: ([], unknown))

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        return [x + 1, torch.empty(2, dtype=torch.int64, device=x.device)]

    graph = place.graphed(function)
    for _ in range(2):
        x = place.randn(8)
        assert_bits(graph.dispatcher([x])[:1], [x + 1])
    assert exempt[0] == ([] if unknown else [1])


def test_a_view_as_another_type_needs_an_offset_that_fits(place: Place) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        return [x + 1, x[2:].view(torch.float64)]

    graph = place.graphed(function)
    for _ in range(5):
        x = place.randn(18)[2:]
        found = graph.dispatcher([x])
        assert_bits(found, function([x]))
        assert found[1].data_ptr() == x[2:].data_ptr()
    assert graph.refresh_report().replays == 3


def test_a_tensor_of_the_callable_is_given_back_as_it_is(place: Place) -> None:
    constant = place.randn(4)

    def function(arguments: list[Any]) -> list[Any]:
        (x,) = arguments
        return [x * 2, constant]

    graph = place.graphed(function)
    for _ in range(5):
        x = place.randn(4)
        found = graph.dispatcher([x])
        assert torch.equal(found[0], x * 2)
        assert found[1] is constant
    report = graph.refresh_report()
    assert (report.state, report.outputs_kept, report.replays) == ("graphed", 1, 3)


def test_outputs_stay_as_they_are_while_the_caller_keeps_them(place: Place) -> None:
    fast = place.compile(lambda x: torch.cumsum(x, 0) * 2)
    inputs = [place.randn(64) for _ in range(12)]
    kept = [fast(x) for x in inputs]
    for x, y in zip(inputs, kept, strict=True):
        assert torch.equal(y, torch.cumsum(x, 0) * 2)
    assert only_graph().replays == 10


def test_conjugated_tensors_are_named_and_right(place: Place) -> None:
    def function(arguments: list[Any]) -> list[Any]:
        return [arguments[0].conj()]

    graph = place.graphed(function)
    for _ in range(4):
        x = place.randn(4, dtype=torch.complex64)
        assert torch.equal(graph.dispatcher([x])[0], x.conj())
        assert torch.equal(graph.dispatcher([x.conj()])[0], x)
    assert "conjugated" in (graph.report.reason or "")


def forms(results: list[Any]) -> list[tuple[Any, ...]]:
    """What can be seen of tensors without elements: of each also the first among all results that
    shares its storage."""
    storages = [result.untyped_storage()._cdata for result in results]
    return [
        (r.dtype, r.shape, r.stride(), r.storage_offset(), storages.index(storages[i]))
        for i, r in enumerate(results)
    ]


def test_empty_results_keep_strides_offset_and_storage(place: Place) -> None:
    constant = place.randn(0, 2)

    def function(arguments: list[Any]) -> list[Any]:
        x, nothing = arguments
        y = torch.relu(x)
        none = torch.cat([nothing, nothing])
        return [
            *(y, y[4:], y[2:2].t(), y[1:1].view(torch.int32)),
            *(none, none[..., 1:], none.mT, torch.empty_strided((0, 3), (7, 2), device=x.device)),
            *(x, x[3:3, 1:], nothing, nothing[..., 2:], constant),
        ]

    graph = place.graphed(function)
    kept = []
    for _ in range(6):
        arguments = [place.randn(6, 4)[2:], place.randn(2, 0, 5)[1:]]
        found, expected = graph.dispatcher(list(arguments)), function(list(arguments))
        assert forms([*found, *arguments]) == forms([*expected, *arguments])
        assert torch.equal(found[0], expected[0])
        assert found[8] is arguments[0] and found[10] is arguments[1] and found[12] is constant
        kept.append(found)
    storages = {id(found): found[4].untyped_storage()._cdata for found in kept}
    assert len(set(storages.values())) == len(kept)
    report = graph.refresh_report()
    assert (report.state, report.replays) == ("graphed", 4), report.reason


def test_an_empty_view_alone_keeps_its_base(place: Place) -> None:
    graph = place.graphed(lambda arguments: [torch.relu(arguments[0])[2:2]])
    for _ in range(5):
        (found,) = graph.dispatcher([place.randn(4, 4)])
        assert (found.shape, found.storage_offset()) == ((0, 4), 8)
        assert found.untyped_storage().nbytes() == 64
    assert graph.refresh_report().replays == 3


def test_a_callable_is_run_again_on_its_very_arguments(place: Place) -> None:
    """Whatever it makes of their offsets, alignments and neighbours, it makes each time."""

    def function(arguments: list[Any]) -> list[Any]:
        x, y = arguments
        y.add_(1)
        seen = (x.storage_offset(), x.data_ptr() % 512, x._base[0].item())
        return [x * sum(seen), y[1:], y.sum()]

    x, y = place.randn(9)[1:], place.randn(4)
    device = place.graphed(function).device
    run = reference.take(function, [x, y], (0, 1), (), device)
    first = y.clone()
    for _ in range(2):
        found = run.again()
        y.zero_()
        assert_bits(found, [*run.expected, *run.after.values()])
    run.finish()
    assert_bits([y], [first])


def test_copies_share_memory_as_the_arguments_do(place: Place) -> None:
    base, other, alone = place.randn(64), place.randn(8), place.randn(5)[1:]
    items = {
        0: base[1:9],
        2: base[5:20].view(5, 3).t(),
        3: base[8:10].view(torch.int64),
        4: other[2:4],
        5: alone,
        7: base[40:44],
        8: base[2:3],
    }
    groups = tensors.groups(items, [other[:3], place.randn(2)])
    assert sorted(map(sorted, groups)) == [[0, 2, 3, 8], [5], [7]], "4 shares with one that stays"
    moved = tensors.moved(groups)
    assert_bits([moved[index] for index in moved], [items[index] for index in moved])
    assert [moved[index].stride() for index in moved] == [items[index].stride() for index in moved]
    assert sorted(moved) == [0, 2, 3, 5, 7, 8]
    for index in moved:
        assert moved[index].data_ptr() != items[index].data_ptr()
    apart = {index: moved[index].data_ptr() - moved[0].data_ptr() for index in (2, 3, 8)}
    assert apart == {2: 16, 3: 28, 8: 4}
    assert (moved[0].data_ptr() - items[0].data_ptr()) % 64 == 0
    moved[0].fill_(7.0)
    assert moved[2].t().flatten()[:4].tolist() == [7.0] * 4
    assert moved[8].item() == 7.0 and base[2].item() != 7.0
    fronts = {3: 30, 5: 4}
    together = tensors.groups({3: items[3], 5: alone}, [base[1:2]], fronts)
    assert sorted(map(sorted, together)) == [[5]], "in front of 3 there is one that stays"
    copy = tensors.moved(together, fronts)[5]
    assert_bits([copy._base if copy._is_view() else copy], [alone])
    assert_bits([copy.as_strided((5,), (1,), copy.storage_offset() - 1)], [alone._base])
    assert tensors.groups({}, []) == []
    assert tensors.moved([]) == {}


def test_an_output_that_looks_other_when_captured_is_refused(place: Place) -> None:
    device = place.graphed(lambda arguments: arguments).device

    def function(arguments: list[Any]) -> list[Any]:
        y = arguments[0] + 1
        return [y.t() if device.space().contains(y.data_ptr()) else y]

    graph = place.graphed(function)
    for _ in range(4):
        x = place.randn(4, 4)
        assert_bits(graph.dispatcher([x]), [x + 1])
    assert graph.report.state == "fallback"
    assert "(1, 4), 0) when captured and" in (graph.report.reason or "")
