"""When the wrappers around a compiled graph may be skipped, and when not."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch

from pygraph.frontends.compile import entry_point, hook
from pygraph.torch_private import aot

INERT = """
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        arg0_1, arg1_1, arg2_1 = args
        args.clear()
        partition0_args = [arg2_1, arg0_1, arg1_1]
        del arg2_1, arg0_1, arg1_1
        (buf1, buf2) = self.partitions[0](partition0_args)
        del partition0_args
        return (buf1, buf2, )
"""


def outer(tmp_path: Any, source: str, partitions: int = 1) -> Any:
    """A partition of a generated module with this source."""
    file = tmp_path / "generated.py"
    file.write_text(source)
    names: dict[str, Any] = {"empty_strided_cuda": None}
    exec(compile(source, str(file), "exec"), names)
    exec("def partition_0(args):\n    return args", names)
    names["runner"] = names["Runner"]([names["partition_0"]] * partitions)
    return names["partition_0"]


def test_an_outer_function_that_moves_names_is_inert(tmp_path: Any) -> None:
    model = outer(tmp_path, INERT)
    assert entry_point.covers_everything(model) and entry_point.comes_first(model)


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        ("return (buf1, buf2, )", "return (buf1, torch.relu(buf2), )", True),
        ("        del partition0_args\n", "        (b,) = self.partitions[1]([buf1])\n", True),
        ("        args.clear()\n", "        args.clear()\n        arg0_1.add_(1)\n", False),
        ("        args.clear()\n", "        buf0 = torch.relu(arg0_1)\n", False),
        ("        args.clear()\n", "        (b,) = self.partitions[1]([arg0_1])\n", False),
        ("= [arg2_1, arg0_1, arg1_1]", "= [arg2_1 + 1, arg0_1, arg1_1]", False),
        ("        args.clear()\n", "        del args[torch.tensor(0)]\n", False),
        ("(partition0_args)\n", "(partition0_args + [arg0_1])\n", False),
        ("(partition0_args)\n", "(partition0_args, flag=1)\n", False),
        ("self.partitions[0](", "self.partitions[1](", False),
        ("(buf1, buf2) = ", "self.buf1, buf2 = ", False),
    ],
)
def test_what_a_partition_comes_behind(tmp_path: Any, old: str, new: str, first: bool) -> None:
    """Behind it, anything may happen in its turn."""
    assert old in INERT
    model = outer(tmp_path, INERT.replace(old, new), partitions=2)
    assert entry_point.comes_first(model) is first
    assert not entry_point.covers_everything(model)


def test_only_the_first_partition_comes_first(tmp_path: Any) -> None:
    partition = outer(tmp_path, INERT, partitions=2)
    runner = partition.__globals__["runner"]
    runner.partitions[1] = types.FunctionType(partition.__code__, partition.__globals__)
    assert not entry_point.comes_first(runner.partitions[1])
    assert entry_point.comes_first(partition) and entry_point.comes_first(runner.call)
    assert entry_point.comes_first(lambda arguments: arguments)
    assert not entry_point.comes_first(lambda arguments: partition(arguments))
    runner.partitions.clear()
    assert not entry_point.comes_first(partition) and not entry_point.covers_everything(partition)


def test_code_that_was_not_partitioned_is_whole(tmp_path: Any) -> None:
    assert entry_point.covers_everything(lambda arguments: arguments)
    partition = outer(tmp_path, INERT)
    assert entry_point.covers_everything(partition.__globals__["runner"].call)


def test_an_unknown_callable_beside_partitions_is_not_whole(tmp_path: Any) -> None:
    partition = outer(tmp_path, INERT)
    assert not entry_point.covers_everything(lambda arguments: partition(arguments))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        args.clear()\n", "        args.clear()\n        arg0_1.add_(1)\n"),
        ("        del partition0_args\n", "        buf3 = buf1 + 1\n"),
        ("return (buf1, buf2, )", "return (buf1, torch.relu(buf2), )"),
        ("return (buf1, buf2, )", "return (buf1, arg0_1.view(3), )"),
        ("partition0_args = [arg2_1, arg0_1, arg1_1]", "partition0_args = [arg2_1[0]]"),
        ("        del partition0_args\n", "        assert arg0_1\n"),
        (
            "        del partition0_args\n",
            "        (buf4,) = self.partitions[0](partition0_args)\n",
        ),
    ],
)
def test_an_outer_function_that_does_something_is_not(tmp_path: Any, old: str, new: str) -> None:
    assert old in INERT
    assert not entry_point.covers_everything(outer(tmp_path, INERT.replace(old, new)))


VIEW = "return (buf1, reinterpret_tensor(buf2, (3, 4), (4, 1), 0), )"


@pytest.mark.parametrize(
    ("old", "new", "hands_over"),
    [
        ("", "", True),
        ("return (buf1, buf2, )", VIEW, True),
        ("return (buf1, buf2, )", "return (None, buf2, )", True),
        (
            "return (buf1, buf2, )",
            VIEW.replace("buf2", "arg1_1"),
            True,
        ),  # is none of those asked of
        ("return (buf1, buf2, )", VIEW.replace("buf2", "arg2_1"), False),
        ("return (buf1, buf2, )", "return (buf1, arg0_1, )", False),
        ("return (buf1, buf2, )", "return (buf1, torch.relu(buf2), )", False),
        ("return (buf1, buf2, )", "return (buf1, reinterpret_tensor(buf1 + buf2, ()), )", False),
        ("        args.clear()\n", "        args.clear()\n        buf0 = arg0_1\n", False),
        ("        args.clear()\n", "        args.clear()\n        arg0_1.add_(1)\n", False),
        ("        args.clear()\n", "        (b,) = self.partitions[1]([arg1_1])\n", False),
        ("arg0_1, arg1_1, arg2_1 = args", "arg0_1, arg1_1, arg2_1 = args[:]", False),
    ],
)
def test_what_hands_arguments_over(tmp_path: Any, old: str, new: str, hands_over: bool) -> None:
    assert old in INERT
    model = outer(tmp_path, INERT.replace(old, new) if old else INERT)
    assert entry_point.hands_over(model, {0, 2}) is hands_over
    assert not entry_point.hands_over(model, {3})
    assert entry_point.hands_over(lambda arguments: arguments, {0})
    assert not entry_point.hands_over(outer(tmp_path, INERT, partitions=2), ())


def test_several_partitions_are_not_whole(tmp_path: Any) -> None:
    assert not entry_point.covers_everything(outer(tmp_path, INERT, partitions=2))


def metadata(**changes: Any) -> Any:
    from torch._functorch._aot_autograd.schemas import OutputType

    fields: dict[str, Any] = {
        "mutated_inp_runtime_indices": [],
        "input_info": [types.SimpleNamespace(mutates_data=False, mutates_metadata=False)],
        "mutated_graph_handled_indices": [],
        "mutated_graph_handled_indices_seen_by_autograd": [],
        "num_intermediate_bases": 0,
        "tokens": {},
        "is_rng_op_functionalized": False,
        "output_info": [types.SimpleNamespace(output_type=OutputType.non_alias)],
    }
    return types.SimpleNamespace(**{**fields, **changes})


def test_plain_metadata_is_inert_and_everything_else_is_not() -> None:
    from torch._functorch._aot_autograd.schemas import OutputType

    assert aot.wrappers_are_inert(metadata())
    alias = [types.SimpleNamespace(output_type=OutputType.alias_of_input)]
    for change in (
        {"mutated_inp_runtime_indices": [1]},
        {"input_info": [types.SimpleNamespace(mutates_data=True, mutates_metadata=False)]},
        {"num_intermediate_bases": 1},
        {"tokens": {"effect": 1}},
        {"is_rng_op_functionalized": True},
        {"output_info": alias},
    ):
        assert not aot.wrappers_are_inert(metadata(**change)), change
    assert not aot.wrappers_are_inert(None)


def test_arguments_that_the_graph_writes_itself_are_counted_up() -> None:
    written = [types.SimpleNamespace(mutates_data=True, mutates_metadata=False)] * 2
    by_graph = {"mutated_graph_handled_indices": [0, 1], "input_info": written}
    seen = {"mutated_graph_handled_indices_seen_by_autograd": [1]}
    found = metadata(**by_graph, **seen)
    assert aot.wrappers_are_inert(found)
    assert (aot.counted_up(found), aot.arguments_of(found)) == ([1], 2)
    by_wrappers = by_graph | {"mutated_graph_handled_indices": [0]}
    assert not aot.wrappers_are_inert(metadata(**by_wrappers, **seen))


@pytest.mark.parametrize("again", [False, True])
def test_metadata_is_observed_on_a_cache_miss_and_on_a_hit(
    again: bool, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also: a torch that renames a field would silently keep every wrapper in place."""
    from torch._inductor.compile_fx import compile_fx

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    found: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        with hook.observed_metadata() as metadata:
            compiled = compile_fx(gm, inputs)
        found.append([aot.wrappers_are_inert(each) for each in metadata])
        return compiled

    def write(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    for function in (lambda x: x * 2, lambda x: x.view(3), write):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(function, backend=backend)(torch.randn(3))
    assert found == [[True], [False], [True]]  # what the graph writes itself is only counted up
    with hook.observed_metadata() as metadata:
        pass
    assert metadata == []


def test_routes_need_every_object_to_be_found() -> None:
    a, b, c, r, s = (torch.randn(2) for _ in range(5))
    route = functools.partial(entry_point.arguments_between, torch.is_tensor)
    assert route((a, b, c), [c, a]) == [2, 0]
    assert route((a, b), [a, c]) is None  # c is not the caller's
    assert route((a, a), [a]) is None  # which of the two?
    assert route((a, 3), [a]) is None  # an integer may be computed with
    assert entry_point.results_between((r, s), [r, s]) == []
    assert entry_point.results_between([s], [r, s]) == [1]
    assert entry_point.results_between((r, s), [s, r]) == [1, 0]
    assert entry_point.results_between((r.clone(),), [r]) is None  # the result was rebuilt
    assert entry_point.results_between(r, [r]) is None


def test_dynamo_takes_an_entry_for_a_compiled_function() -> None:
    from pygraph import _engine

    compiled = torch.compile(
        lambda x: (x * 2, x + 1), backend=lambda gm, _: _engine.make_entry_point(gm.forward)
    )
    for _ in range(2):
        x = torch.randn(3)
        double, more = compiled(x)
        assert torch.equal(double, x * 2) and torch.equal(more, x + 1)
