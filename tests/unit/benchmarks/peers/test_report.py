"""Rows and the page of the comparison with peers."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks.peers.catalogue import BATCHES, OURS, PEERS, UNFAIR
from benchmarks.peers.driver import Run
from benchmarks.peers.report import PeerFacts, PeersReport, Point, page, rows
from benchmarks.report import Row, emit

POINT = Point(3, 100, 1000, 300)
HAND, MESSAGES, IDS, NEMO = (peer.name for peer in PEERS)


def run(cpu_ms: float, seconds: float, **fields: float) -> Run:
    return Run(rollouts=300, cpu_ms=cpu_ms, seconds=seconds, **fields)  # type: ignore[arg-type]


ROUNDS: list[Mapping[str, Run]] = [
    {BATCHES: run(2.0, 1.0, client_ms=0.5), HAND: run(8.0, 2.0, right=8)},
    {BATCHES: run(4.0, 2.0, client_ms=0.7), HAND: run(8.0, 2.0, right=7)},
    {BATCHES: run(2.0, 1.0, client_ms=0.6), HAND: run(6.0, 4.0, right=8)},
]


def measured() -> dict[str, Row]:
    return {str(row["system"]): row for row in rows(POINT, ROUNDS, {NEMO: "it needs Python 3.12"})}


def test_a_factor_is_of_one_round() -> None:
    hand = measured()[HAND]
    assert hand["CPU / batches"] == 3.0, "4, 2 and 3: not the ratio of the medians"
    assert hand["CPU / batches ±"] == 1.0
    assert hand["rate / batches"] == 0.5
    assert hand["CPU ms"] == 8.0
    assert hand["right samples"] == "7 of 8, 8 of 8", "a round with a wrong mask shows"


def test_our_batches_are_the_measure() -> None:
    batches = measured()[BATCHES]
    assert (batches["CPU / batches"], batches["CPU / batches ±"]) == (1.0, 0.0)
    assert batches["of these the client"] == 0.6
    assert batches["right samples"] is None


def test_a_peer_that_is_not_to_be_had_has_a_row_that_says_so() -> None:
    found = measured()
    assert found[NEMO]["note"] == "it needs Python 3.12"
    assert "CPU ms" not in found[NEMO]
    assert found[IDS]["note"] == "no run"
    assert list(found) == [system.name for system in (*OURS, *PEERS)]


def test_a_peer_that_failed_later_keeps_what_it_did() -> None:
    (row,) = [row for row in rows(POINT, ROUNDS, {HAND: "it ended"}) if row["system"] == HAND]
    assert row["rounds"] == 3
    assert row["note"] == "it ended"


def whole(tmp_path: Path, *, quick: bool) -> PeersReport:
    options = argparse.Namespace(quick=quick, out=tmp_path / "peers.json")
    made = emit("peers", rows(POINT, ROUNDS, {NEMO: "none"}), options, title="T", measures="M", leaves_out="L")
    peers = [PeerFacts(name=HAND, versions={"openai": "3.54.0"}), PeerFacts(name=NEMO, missing="it needs Python 3.12")]
    return PeersReport(**made.model_dump(), peers=peers)


def test_the_page_has_factors_versions_reasons_and_what_was_unfair(tmp_path: Path) -> None:
    text = page(whole(tmp_path, quick=False))
    assert f"| {HAND} | 3 ± 1 |" in text
    assert f"| {NEMO} | - |" in text
    assert "openai 3.54.0" in text
    assert "it needs Python 3.12" in text
    assert "quick run" not in text
    for sentences in UNFAIR.values():
        assert all(f"- {sentence}\n" in text for sentence in sentences)
    for system in (*OURS, *PEERS):
        assert f"| {system.name} |" in text


def test_a_quick_run_says_so_on_its_page(tmp_path: Path) -> None:
    assert "From a quick run" in page(whole(tmp_path, quick=True))


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = whole(tmp_path, quick=False)
    assert PeersReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize(("latency_ms", "name"), [(0, "3 turns, model 0 s"), (1000, "3 turns, model 1 s")])
def test_a_point_has_a_name(latency_ms: int, name: str) -> None:
    assert Point(3, 100, latency_ms, 1).name == name
