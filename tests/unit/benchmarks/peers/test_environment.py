"""Environments for peers: made once, kept, and a reason where they are not to be had. Nothing is installed here."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.peers import environment
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.environment import NotToBeHad, find_python, prepare

PEER = PEERS[0]
Commands = list[list[str]]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """What would have been run; it all succeeds."""
    ran: Commands = []

    def run(command: list[str], failure: str) -> None:
        ran.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir()

    monkeypatch.setattr(environment, "_run", run)
    monkeypatch.setattr(environment, "find_python", lambda least: f"python{least}")
    return ran


def test_each_peer_has_pinned_requirements() -> None:
    for peer in PEERS:
        lines = (environment.REQUIREMENTS / f"{peer.environment}.txt").read_text(encoding="utf-8").split()
        assert lines
        assert all("==" in line and "/" not in line for line in lines)


def test_it_is_made_by_pip_alone_and_then_kept(tmp_path: Path, commands: Commands) -> None:
    folder = tmp_path / "peers" / PEER.environment
    made = prepare(PEER, tmp_path / "peers")
    venv, pip = commands
    assert venv == [f"python{PEER.least_python}", "-m", "venv", str(folder)]
    assert pip[:4] == [made.python, "-m", "pip", "install"]


def test_it_is_made_again_only_when_its_requirements_change(tmp_path: Path, commands: Commands) -> None:
    folder = tmp_path / PEER.environment
    folder.mkdir()
    wanted = (environment.REQUIREMENTS / f"{PEER.environment}.txt").read_bytes()
    (folder / "requirements.txt").write_bytes(wanted)
    assert prepare(PEER, tmp_path).folder == folder
    assert commands == []
    (folder / "requirements.txt").write_bytes(wanted + b"more==1\n")
    prepare(PEER, tmp_path)
    assert len(commands) == 2
    assert (folder / "requirements.txt").read_bytes() == wanted


def test_a_python_that_is_new_enough_is_found() -> None:
    assert find_python((3, 11))
    with pytest.raises(NotToBeHad, match=r"needs Python 3\.99, and there is none here"):
        find_python((3, 99))


def test_what_is_on_the_path_and_runs_nothing_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PEERS_PYTHON", str(shim))
    assert find_python((3, 11)) == sys.executable


def test_what_pip_says_last_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Looking in indexes: https://host/simple\nERROR: it is not there\nERROR: No matching distribution\nhint\n"
    refused = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refused)
    monkeypatch.setattr(environment, "find_python", lambda _: "python")
    with pytest.raises(NotToBeHad) as raised:
        prepare(replace(PEER, environment="nemo-gym"), tmp_path)
    assert str(raised.value) == "a venv cannot be made: No matching distribution"
