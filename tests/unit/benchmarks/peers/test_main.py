"""The comparison goes on without a peer that is not to be had, that does not start, or that fails later."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pytest
from benchmarks.load import Load
from benchmarks.peers import __main__ as comparison
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.driver import PeerFailed, Run
from benchmarks.peers.environment import NotToBeHad

NAMES = [peer.name for peer in PEERS]
LOAD = Load(turns=3, in_flight=1, latency_ms=0, rollouts=1)


class Fake:
    """A peer that runs until it is told to fail."""

    def __init__(self) -> None:
        self.versions = {"python": "3.12.1"}
        self.fails = False
        self.stopped = False

    def measure(self, load: Load) -> Run:
        if self.fails:
            raise PeerFailed("it ended with exit code 1, see x.log")
        return Run(rollouts=load.rollouts, seconds=1.0, cpu_ms=1.0)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    """Peers by name; the first cannot be installed, the second does not start."""
    started: dict[str, Fake] = {}

    def prepare(peer: Peer) -> None:
        if peer.name == NAMES[0]:
            raise NotToBeHad("it needs Python 3.99")

    @contextmanager
    def running(peer: Peer, *_: object, **__: object) -> Iterator[Fake]:
        if peer.name == NAMES[1]:
            raise PeerFailed("it ended with exit code 1")
        started[peer.name] = Fake()
        yield started[peer.name]
        started[peer.name].stopped = True

    monkeypatch.setattr(comparison, "prepare", prepare)
    monkeypatch.setattr(comparison, "running_peer", running)
    return started


def test_what_is_not_to_be_had_is_left_out_with_its_reason(fakes: dict[str, Fake]) -> None:
    with ExitStack() as stack:
        peers = comparison.Comparison(stack, 1)
        peers.start_peers([])
        assert list(peers.running) == NAMES[2:]
        facts = {fact.name: fact for fact in peers.facts()}
    assert facts[NAMES[0]].missing == "it needs Python 3.99"
    assert facts[NAMES[1]].missing == "it ended with exit code 1"
    assert facts[NAMES[2]].missing is None
    assert facts[NAMES[2]].versions == {"python": "3.12.1"}
    assert all(fake.stopped for fake in fakes.values())


def test_one_that_fails_later_is_stopped_and_the_others_go_on(fakes: dict[str, Fake]) -> None:
    with ExitStack() as stack:
        peers = comparison.Comparison(stack, 1)
        peers.start_peers([])
        fakes[NAMES[2]].fails = True
        found = cast(Any, peers)._measure_peers(LOAD)
        assert list(found) == NAMES[3:]
        assert fakes[NAMES[2]].stopped
        assert not fakes[NAMES[3]].stopped
        assert "exit code 1" in peers.missing[NAMES[2]]


def test_only_those_that_are_named_are_started(fakes: dict[str, Fake]) -> None:
    with ExitStack() as stack:
        peers = comparison.Comparison(stack, 1)
        peers.start_peers([NAMES[3]])
        assert list(peers.running) == [NAMES[3]]
        assert peers.missing == {}
