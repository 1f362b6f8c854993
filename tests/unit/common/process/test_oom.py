"""Which SIGKILL was the kernel's, told by the counter of the process's cgroup."""

from pathlib import Path

import pytest

from rolloutpool_common.process.oom import RECENT_SECONDS, OomKills, count_oom_kills

EVENTS = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.mark.parametrize(
    ("cgroup", "file", "text", "count"),
    [
        ("0::/jobs/worker\n", "jobs/worker/memory.events", EVENTS, 3),
        # In a container: its own files are at the root, whatever path the host knows.
        ("0::/\n", "memory.events", EVENTS, 3),
        ("0::/kubepods/pod1\n", "memory.events", EVENTS, 3),
        ("5:cpu:/x\n4:memory:/docker/1\n0::/\n", "memory/docker/1/memory.oom_control", CONTROL, 5),
        ("4:memory:/docker/1\n", "memory/memory.oom_control", CONTROL, 5),
        # Kernels before 4.13 do not count.
        ("4:memory:/\n", "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", None),
        ("1:name=systemd:/\n", "memory.events", EVENTS, None),
        ("0::/\n", "elsewhere", EVENTS, None),
        ("", "memory.events", EVENTS, None),
    ],
)
def test_the_counter_of_either_version(tmp_path: Path, cgroup: str, file: str, text: str, count: int | None) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    path = tmp_path / "sys" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert count_oom_kills(tmp_path / "cgroup", tmp_path / "sys") == count


def test_a_system_without_cgroups_has_no_counter(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path / "cgroup", tmp_path) is None


def test_each_rise_explains_one_kill_shortly_after() -> None:
    now, count = 0.0, 7
    kills = OomKills(lambda: count, lambda: now)
    assert not kills.take()
    count = 9
    assert kills.take()
    assert kills.take()
    assert not kills.take()
    # A tool's own process was killed. The worker that is killed much later was not.
    count = 10
    kills.look()
    now += RECENT_SECONDS + 1
    assert not kills.take()


def test_without_a_counter_no_kill_is_for_memory() -> None:
    kills = OomKills(lambda: None)
    kills.look()
    assert not kills.take()
