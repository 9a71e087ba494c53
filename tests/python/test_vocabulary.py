"""One word per thing, one thing per word: the vocabulary in docs/design.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "docs/design.md").read_text().partition("\n## Vocabulary\n")[2]
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", DESIGN.partition("\n## ")[0], re.M)
WORDS = [row for row in ROWS if row[0] not in ("word", "---")]
#: Types that stand in Python and in C++ because both sides speak of the same thing.
MIRRORED = {"Entry", "Lifted", "Place", "Bypass", "Device", "Operation", "Permit"}
#: Words that were given up for others, as parts of names: in their place stand pending launch, call
#: lock, entry point, bypass, call shape, training pair.
GIVEN_UP = {"flight", "turnstile", "gateway", "resting", "ahead"}

SOURCES = [
    *(ROOT / "python/pygraph").rglob("*.py"),
    *(path for path in (ROOT / "src").rglob("*") if path.suffix in (".h", ".cpp")),
    *(ROOT / "include").rglob("*.h"),
]


def types() -> Iterator[tuple[str, Path]]:
    """Every type that other files can see: of modules, and of headers."""
    for path in SOURCES:
        if path.suffix == ".py":
            pattern = r"^class ([A-Za-z]\w*)"
        elif path.suffix == ".h":
            pattern = r"^(?:class|struct|enum class) (\w+)(?: final)?(?: : [^;{]*)? \{"
        else:
            continue
        for name in re.findall(pattern, path.read_text(), re.M):
            yield name, path.relative_to(ROOT)


def parts(name: str) -> Iterator[str]:
    """The words of a name: PendingLaunch and pending_launch are pending and launch."""
    for part in name.split("_"):
        yield from (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part))


def test_a_word_stands_once_in_the_vocabulary() -> None:
    words = [word.strip() for row in WORDS for word in row[0].split(", ")]
    assert len(words) > 50
    assert len(words) == len(set(words)), sorted(word for word in words if words.count(word) > 1)


def test_the_vocabulary_says_where_each_thing_is() -> None:
    known = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("[!.]*/**/*")]
    for word, _, where in WORDS:
        for place in re.findall(r"`([^`]+)`", where):
            found = any(path == place or path.endswith("/" + place) for path in known)
            assert found, f"{word} is said to be in {place}"


def test_a_type_is_called_like_no_other() -> None:
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for name, path in types():
        places[name].append(path)
    assert len(places) > 200
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert set(twice) <= MIRRORED, {n: found for n, found in twice.items() if n not in MIRRORED}


def test_words_that_were_given_up_do_not_come_back() -> None:
    for path in SOURCES:
        for name in set(re.findall(r"\b[A-Za-z_]\w*\b", path.read_text())):
            if "_" in name or any(letter.isupper() for letter in name[1:]):
                assert not GIVEN_UP & set(parts(name)), f"{path}: {name}"
