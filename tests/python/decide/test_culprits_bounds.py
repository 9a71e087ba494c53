"""How often, and for how many operators, it is worth compiling once more."""

from __future__ import annotations

from pygraph.decide import culprits


def test_what_was_learned_is_found_among_operators() -> None:
    known = culprits.Culprits()
    assert known.among(["a::a"]) == ()
    known.learn("a::a")
    known.learn("b::b")
    assert known.among(["b::b", "c::c", "a::a"]) == ("a::a", "b::b")
    known.clear()
    assert known.among(["a::a"]) == ()


def test_few_are_outside_of_one_graph() -> None:
    known = culprits.Culprits()
    names = [f"a::{n}" for n in range(culprits.MOST_PER_GRAPH + 1)]
    for name in names:
        known.learn(name)
    assert known.among(names) == tuple(names[:-1])
    assert known.worth_compiling(names[:-1]) and not known.worth_compiling(names)


def test_few_compilations_and_few_names() -> None:
    known = culprits.Culprits()
    for _ in range(culprits.MOST_COMPILATIONS):
        assert known.worth_compiling(["a::a"])
        known.count_compilation()
    assert not known.worth_compiling(["a::a"])
    for n in range(culprits.MOST_REMEMBERED + 1):
        known.learn(f"a::{n}")
    assert known.among([f"a::{culprits.MOST_REMEMBERED}"]) == ()
