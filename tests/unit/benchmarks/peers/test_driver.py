"""The parent of an adapter, and the adapter's side of it, with a peer that is a few lines long."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.conversations import conversation
from benchmarks.load import Load, TrainerManner
from benchmarks.peers import driver
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.driver import PeerFailed, PeerUnderLoad, right_samples, running_peer
from benchmarks.peers.environment import Environment
from benchmarks.peers.openai_form import expected
from benchmarks.processes import ROOT

from rolloutpool_common.rendering import TINY

LOAD = Load(turns=3, in_flight=2, latency_ms=0, rollouts=10, trainer=TrainerManner.SILENT)
ADAPTER = """
import os, time
from benchmarks.peers.adapters.commands import add, serve

class Tiny:
    packages = ("pytest", "not-installed")
    async def start(self, options):
        return [os.getpid()] if options["servers"] else []
    def prepare(self, load):
        self.load = load
        time.sleep(0.01)
    async def run(self):
        print("noise of a library")
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        assert add('{"a": 2, "b": 3}') == add({"a": 2, "b": 3}) == "5"
    def finished(self):
        return len(self.load["rollouts"]) - self.load["turns"] // 64
    def samples(self, count):
        return [None] * count
    async def stop(self):
        pass

serve(Tiny())
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[PeerUnderLoad]:
    script = tmp_path / "adapter.py"
    script.write_text(ADAPTER, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield PeerUnderLoad(process, tmp_path / "log", TINY)
    process.kill()
    process.communicate()


def test_a_run_has_its_cpu_time_and_no_samples_where_none_come_back(peer: PeerUnderLoad) -> None:
    peer.start({"servers": False})
    assert set(peer.versions) == {"python", "pytest"}
    run = peer.measure(LOAD)
    assert run.rollouts == 10
    # 10, but /proc counts in hundredths of a second, of which a busy machine may lose some.
    assert 5 <= run.cpu_ms < 100
    assert (run.client_ms, run.right) == (None, None)


def test_a_server_of_its_own_makes_the_adapter_the_client(peer: PeerUnderLoad) -> None:
    peer.start({"servers": True})
    run = peer.measure(LOAD)
    assert run.client_ms is not None
    assert run.cpu_ms == pytest.approx(2 * run.client_ms, rel=0.3)


def test_a_rollout_that_did_not_end_fails_the_peer(peer: PeerUnderLoad) -> None:
    peer.start({"servers": False})
    with pytest.raises(PeerFailed, match="9 of 10 rollouts ended with an answer"):
        peer.measure(Load(turns=64, in_flight=2, latency_ms=0, rollouts=10))


def test_an_adapter_that_hangs_does_not_hang_the_comparison(
    peer: PeerUnderLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.start({"servers": False})
    monkeypatch.setattr(driver, "ANSWERS_WITHIN_SECONDS", 0.001)
    with pytest.raises(PeerFailed, match="it said nothing for 0 s"):
        peer.measure(LOAD)


def test_a_server_that_ended_fails_the_peer(peer: PeerUnderLoad) -> None:
    peer.start({"servers": False})
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    peer._servers.append(ended.pid)
    with pytest.raises(PeerFailed, match="one of its processes ended"):
        peer.measure(LOAD)


def test_an_adapter_that_cannot_start_says_where_its_log_is(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    environment = Environment(tmp_path / "venv")
    # An interpreter without packages: the import of the peer fails.
    Path(environment.python).write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    Path(environment.python).chmod(0o755)
    with (
        pytest.raises(PeerFailed, match=r"it ended with exit code 1, see .*\.log"),
        running_peer(PEERS[0], environment, port=1, tokenizer=TINY),
    ):
        pass


def test_only_the_very_ids_and_mask_are_right() -> None:
    want = [expected(conversation(3, variant, 0, TINY, TrainerManner.SILENT)) for variant in range(3)]
    good = [[list(sample.ids), list(sample.mask)] for sample in want]
    assert right_samples([*good], LOAD, TINY) == 3
    shifted = [good[0][0], [0, *good[0][1][:-1]]]
    assert right_samples([shifted, good[1], None], LOAD, TINY) == 1
    assert right_samples([None, None], LOAD, TINY) is None
