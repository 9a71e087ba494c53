"""A draft taken apart: the body, which is compiled for the device, and the host's parts.

The body keeps the places of the graph's arguments and results, for what is known of them from
elsewhere counts by these (which results a backward takes, which arguments are given away). An
argument that only the host needs is one that nobody uses; a result that is not the body's is None
there. What comes from the front and what goes to the part behind stands at the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pygraph._engine import Formula
from pygraph.reporting import Applied
from pygraph.transform import reading
from pygraph.transform.draft import Draft, Part


class Origin(NamedTuple):
    """Where a value is to be had."""

    place: str  #: "argument" of the graph, or result of "front", "body" or "behind"
    number: int


@dataclasses.dataclass(frozen=True)
class HostPart:
    """What the host computes, as a graph of its own."""

    module: torch.fx.GraphModule
    inputs: Sequence[Origin]

    @property
    def examples(self) -> list[Any]:
        """Its arguments, without memory."""
        return [reading.value(node) for node in reading.placeholders(self.module.graph)]


@dataclasses.dataclass(frozen=True)
class Split:
    """A graph in three parts."""

    body: torch.fx.GraphModule
    examples: list[Any]  #: the body's arguments, without memory
    arguments: int  #: how many of these are the graph's
    results: int  #: how many of the body's results are the graph's
    front: HostPart | None
    behind: HostPart | None
    #: where the body's other arguments are to be had that are not in their places
    given: Mapping[int, Origin]
    unused: frozenset[int]  #: arguments that the body does not need
    staged: frozenset[int]  #: arguments of the body that are brought from the host
    #: of some of these, what the host computes of arguments and brings in place of them
    computed: Mapping[int, Sequence[Formula]]
    fetched: frozenset[int]  #: results of the body that are copied to the host
    elsewhere: Mapping[int, Origin]  #: results of the graph that are not the body's
    applied: Sequence[Applied]
    #: which pass has taken an obstacle out of the way, by the name that its node had
    cleared: Mapping[str, str]

    def strides_of_results(self, of_body: list[Any]) -> list[Any]:
        """What is known of the strides of the graph's results, from what is known of the body's."""
        return [
            None if index in self.elsewhere else strides
            for index, strides in enumerate(of_body[: self.results])
        ]

    @property
    def transparent(self) -> bool:
        """Whether arguments and results are the body's, but for where they are."""
        moved = self.front or self.behind or self.given
        return not moved and not self.unused and not self.elsewhere

    @property
    def is_body(self) -> bool:
        """Whether a call of the body does all that one of the graph does."""
        return self.transparent and not self.staged and not self.fetched


def split(draft: Draft) -> Split:
    """Takes it apart; the draft's graph becomes the body."""
    return _Splitter(draft).split()


class _Splitter:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.graph = draft, draft.graph
        self.inputs = reading.placeholders(self.graph)
        new = {*draft.staged.values()}
        self.arguments = [node for node in self.inputs if node not in new]
        self.place = {node: index for index, node in enumerate(self.arguments)}
        self.returned = reading.results(self.graph)
        self.handed: list[Any] = []  #: what the body returns for the part behind
        self.fetched: set[int] = set()
        self.front: list[Any] = []  #: what the front returns

    def split(self) -> Split:
        draft = self.draft
        in_front, behind = self._nodes_in(Part.FRONT), self._nodes_in(Part.BEHIND)
        elsewhere = self._results_elsewhere(in_front, behind)
        rear = self._part_behind(behind)
        given, in_place = self._arguments_of_body()
        front = self._part(in_front, self.front, {}) if self.front else None
        for node in in_place:
            self._take_place(node)
        self._make_body(elsewhere, {*in_front, *behind})
        inputs = reading.placeholders(self.graph)
        place = {node: index for index, node in enumerate(inputs)}
        return Split(
            body=draft.module,
            examples=[reading.value(node) for node in inputs],
            arguments=len(self.arguments),
            results=len(self.returned),
            front=front,
            behind=rear,
            given={place[node]: source for node, source in given.items()},
            unused=frozenset(
                index
                for index, node in enumerate(inputs)
                if reading.on_host(node) and not node.users
            ),
            staged=frozenset(place[node] for node in draft.staged.values()),
            computed={
                place[owner]: [each.of(self.place) for each in expressions]
                for owner, expressions in draft.computed.items()
            },
            fetched=frozenset(self.fetched),
            elsewhere=elsewhere,
            applied=tuple(draft.applied),
            cleared=dict(draft.cleared),
        )

    def _nodes_in(self, part: Part) -> list[Any]:
        return [node for node in self.graph.nodes if self.draft.part(node) is part]

    def _from_front(self, node: Any) -> Origin:
        if node not in self.front:
            self.front.append(node)
        return Origin("front", self.front.index(node))

    def _from_body(self, node: Any) -> Origin:
        """One more result of the body, or one that it has."""
        for index, each in enumerate([*self.returned, *self.handed]):
            if each is node and index not in self.fetched:
                return Origin("body", index)
        self.handed.append(node)
        return Origin("body", len(self.returned) + len(self.handed) - 1)

    def _results_elsewhere(
        self, in_front: Iterable[Any], behind: Iterable[Any]
    ) -> dict[int, Origin]:
        """Results that the body does not have. Those that are fetched become the device's."""
        fronts, rears = set(in_front), set(behind)
        found: dict[int, Origin] = {}
        seen: dict[Any, int] = {}
        returned_behind: list[Any] = []
        for index, node in enumerate(self.returned):
            if not isinstance(node, torch.fx.Node):
                continue
            if node in self.place and reading.on_host(node):
                found[index] = Origin("argument", self.place[node])
            elif node in fronts:
                found[index] = self._from_front(node)
            elif node in self.draft.fetched:
                if node in seen:
                    found[index] = Origin("body", seen[node])
                else:
                    seen[node] = index
                    self.fetched.add(index)
            elif node in rears:
                if node not in returned_behind:
                    returned_behind.append(node)
                found[index] = Origin("behind", returned_behind.index(node))
        self.returned_behind, self.fetched_at = returned_behind, seen
        for index in found:
            self.returned[index] = None
        for index in self.fetched:
            self.returned[index] = self.returned[index].all_input_nodes[0]
        return found

    def _part_behind(self, behind: Sequence[Any]) -> HostPart | None:
        computed = [node for node in behind if node not in self.draft.fetched]
        if not computed:
            return None
        sources: dict[Any, Origin] = {}
        for node in computed:
            for each in node.all_input_nodes:
                if each in sources or each in computed or reading.is_number(each):
                    continue
                if each in self.place:
                    sources[each] = Origin("argument", self.place[each])
                elif each in self.draft.fetched:
                    sources[each] = self._fetched(each)
                elif self.draft.part(each) is Part.FRONT:
                    sources[each] = self._from_front(each)
                else:
                    sources[each] = self._from_body(each)
        return self._part(computed, self.returned_behind, sources)

    def _fetched(self, node: Any) -> Origin:
        if node not in self.fetched_at:
            self.handed.append(node.all_input_nodes[0])
            self.fetched_at[node] = len(self.returned) + len(self.handed) - 1
            self.fetched.add(self.fetched_at[node])
        return Origin("body", self.fetched_at[node])

    def _part(
        self, nodes: Sequence[Any], results: Sequence[Any], sources: Mapping[Any, Origin]
    ) -> HostPart:
        """A graph of these nodes. `sources`: of values that are no arguments of the graph."""
        made = torch.fx.Graph()
        copies: dict[Any, Any] = {}
        inputs: list[Origin] = []
        own = set(nodes)

        def need(node: Any) -> Any:
            """What stands for a value that no node of the part makes."""
            if node in copies:
                return copies[node]
            if _is_computed_number(node):
                for each in node.all_input_nodes:
                    need(each)
                copies[node] = made.node_copy(node, copies.__getitem__)
            elif node.op == "get_attr":
                copies[node] = made.node_copy(node, copies.__getitem__)
            else:
                inputs.append(sources.get(node) or Origin("argument", self.place[node]))
                copies[node] = made.placeholder(node.name)
                copies[node].meta["val"] = reading.value(node)
            return copies[node]

        outside = [each for node in nodes for each in node.all_input_nodes if each not in own]
        for each in outside:
            for argument in _arguments_of(each):  # they stand in front of all others
                need(argument)
        for node in nodes:
            for each in node.all_input_nodes:
                if each not in own:
                    need(each)
            copies[node] = made.node_copy(node, copies.__getitem__)
        made.output(tuple(copies[node] for node in results))
        made.lint()
        return HostPart(torch.fx.GraphModule(self.draft.module, made), tuple(inputs))

    def _arguments_of_body(self) -> tuple[dict[Any, Origin], list[Any]]:
        """Where the cells have their values from; and the arguments that the body does not take
        otherwise, in whose places theirs stand."""
        found: dict[Any, Origin] = {}
        in_place: list[Any] = []
        for given, cell in self.draft.staged.items():
            if given.op != "placeholder":
                found[cell] = self._from_front(given)
            elif any(map(self._is_in_body, given.users)):
                found[cell] = Origin("argument", self.place[given])
            else:
                in_place.append(given)
        for node in self.graph.nodes:
            if self.draft.part(node) is Part.FRONT and any(map(self._is_in_body, node.users)):
                plain = self.draft.new_placeholder("front", reading.value(node))
                node.replace_all_uses_with(plain, self._is_in_body)
                found[plain] = self._from_front(node)
        return found, in_place

    def _is_in_body(self, node: Any) -> bool:
        """Whether it computes there, with tensors."""
        return node.op == "call_function" and self.draft.stays(node) and not reading.is_number(node)

    def _take_place(self, given: Any) -> None:
        cell = self.draft.staged[given]
        cell.replace_all_uses_with(given)
        for values in (self.returned, self.handed):
            values[:] = [given if each is cell else each for each in values]
        given.meta["val"] = reading.value(cell)
        self.graph.erase_node(cell)
        self.draft.staged[given] = given

    def _make_body(self, elsewhere: Mapping[int, Origin], gone: set[Any]) -> None:
        node = reading.output(self.graph)
        node.args = ((*self.returned, *self.handed),)
        visible = node.meta.get("user_visible_output_idxs")  # torch/_inductor/compile_fx.py
        if visible is not None:
            node.meta["user_visible_output_idxs"] = [i for i in visible if i not in elsewhere]
        for each in reversed(list(self.graph.nodes)):
            if each in gone:
                self.graph.erase_node(each)
        self.graph.eliminate_dead_code()
        self.graph.lint()
        self.draft.module.recompile()


def _is_computed_number(node: Any) -> bool:
    return node.op == "call_function" and reading.is_number(node)


def _arguments_of(node: Any) -> Iterator[Any]:
    """What a part must be given for a value that it takes: itself, or of a size that follows from
    others, those."""
    if _is_computed_number(node):
        for each in node.all_input_nodes:
            yield from _arguments_of(each)
    elif node.op != "get_attr":
        yield node
