"""A process offers its plug-ins, under the names that it announces; and it has what every build has."""

import pytest

from rolloutpool_common.protocol.offers import BUILT_IN, RELEASE, digest_of, spell
from rolloutpool_worker.agents.termination import TERMINATION
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.graders import GRADERS
from rolloutpool_worker.rollout.own_offer import own_digest, own_offer
from rolloutpool_worker.tools import TOOLS

TOOLS.load_entry_points()


def test_every_worker_has_what_counts_as_built_in() -> None:
    names = {"agent": AGENTS.names(), "strategy": TERMINATION.names(), "tool": TOOLS.names()}
    for one in BUILT_IN:
        kind, _, name = one.partition(":")
        assert name in names[kind]


def test_plug_ins_are_offered_and_name_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRADERS, "names", lambda: ["judge"])
    assert "grader:judge" in own_offer()
    assert RELEASE in own_offer()
    assert not BUILT_IN.intersection(own_offer())
    assert own_digest() == digest_of(spell(own_offer()))
