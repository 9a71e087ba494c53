"""What holds for all tests."""

from __future__ import annotations

import pytest

from pygraph.frontends.compile.options import Options


@pytest.fixture(autouse=True)
def graphs_serve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU as on the twin a proven graph serves, unless a test is about that: else some calls
    of each would run without, and which would follow from clocks."""
    if request.node.get_closest_marker("measured") is None:
        selects = property(lambda self: "always" if self.select == "measure" else self.select)
        monkeypatch.setattr(Options, "selects", selects)
