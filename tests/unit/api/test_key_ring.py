"""The keys' file is read again when it changes; a slip in it locks nobody out and lets nobody in."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rolloutpool_api.key_ring import KeyRing
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.security.api_keys import GUEST, ApiKey, KeyQuota, KeyScope, make_key

READ = [KeyScope.READ]
BEGIN = 2_000_000_000.0


class Clock:
    """Unix time that the test moves."""

    now = BEGIN

    def __call__(self) -> float:
        return self.now


class Keys:
    """A keys' file, and the ring over it."""

    def __init__(self, path: Path, *first: ApiKey, **settings: object) -> None:
        self.path, self.clock = path / "keys", Clock()
        self.write(entry.entry() for entry in first)
        self.ring = KeyRing(
            ApiSettings(redis_url="redis://nowhere", api_keys_file=self.path, **settings),  # type: ignore[arg-type]
            clock=self.clock,
        )

    def write(self, lines: Iterable[str]) -> None:
        """Replaces the file, at the clock's time."""
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines))
        os.utime(new, (self.clock.now, self.clock.now))
        new.rename(self.path)

    def later(self, seconds: float = 2.0) -> None:
        self.clock.now += seconds


def test_keys_come_and_go_with_their_lines(tmp_path: Path) -> None:
    (old, first), (new, second) = make_key("ann", READ), make_key("bob", READ)
    keys = Keys(tmp_path, first)
    assert keys.ring.find(old) == first
    assert keys.ring.find(new) is None
    keys.write([second.entry()])
    with capture_logs() as logs:
        keys.later()
        assert keys.ring.find(new) == second
        assert keys.ring.find(old) is None
        assert not keys.ring.holds(first)
        assert keys.ring.holds(second)
    (told,) = (line for line in logs if line["event"] == "admin_action")
    assert (told["action"], told["outcome"], told["added"], told["removed"]) == ("reload_keys", "ok", ["bob"], ["ann"])
    assert first.digest.hex() not in str(logs)
    assert keys.ring.owners == ["bob", GUEST]


@pytest.mark.parametrize("slip", ["good:read", "\udcff", None])
def test_a_file_that_cannot_be_read_changes_nothing_and_says_so(tmp_path: Path, slip: str | None) -> None:
    (key, entry), (other, second) = make_key("ann", READ), make_key("bob", READ)
    keys = Keys(tmp_path, entry)
    keys.later()
    if slip is None:
        keys.path.unlink()
    else:
        keys.path.write_bytes(slip.encode("utf-8", "surrogateescape"))
        os.utime(keys.path, (keys.clock.now, keys.clock.now))
    keys.later()
    with capture_logs() as logs:
        assert keys.ring.find(key) == entry
    assert keys.ring.fault is not None
    assert "ROLLOUTPOOL_API_KEYS_FILE" in keys.ring.fault
    assert [line["outcome"] for line in logs if line["event"] == "admin_action"] == ["refused"]
    # Told once, not at each look.
    with capture_logs() as logs:
        keys.later()
        keys.ring.find(key)
    assert logs == []
    keys.write([second.entry()])
    keys.later()
    assert keys.ring.find(other) == second
    assert keys.ring.fault is None


def test_a_file_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    (key, entry), (_, second) = make_key("ann", READ), make_key("bob", READ)
    keys = Keys(tmp_path, entry)
    keys.later()
    keys.path.write_text("")
    os.utime(keys.path, (keys.clock.now, keys.clock.now))
    keys.later(0.6)
    assert keys.ring.find(key) == entry
    keys.write([entry.entry(), second.entry()])
    keys.later()
    assert keys.ring.find(key) == entry
    assert keys.ring.owners == ["ann", "bob", GUEST]


def test_without_its_last_key_an_api_lets_nobody_in(tmp_path: Path) -> None:
    key, entry = make_key("ann", READ)
    keys = Keys(tmp_path, entry)
    keys.write(["# nobody"])
    keys.later()
    assert keys.ring.find(key) is None
    assert keys.ring.required


def test_an_api_without_keys_closes_when_it_gets_one(tmp_path: Path) -> None:
    _, entry = make_key("ann", READ)
    keys = Keys(tmp_path)
    assert not keys.ring.required
    keys.write([entry.entry()])
    keys.later()
    assert keys.ring.required


def test_the_file_is_looked_at_now_and_then_and_not_at_each_request(tmp_path: Path) -> None:
    key, entry = make_key("ann", READ)
    keys = Keys(tmp_path, entry)
    keys.path.unlink()
    keys.later(0.4)
    keys.ring.find(key)
    assert keys.ring.fault is None
    keys.later(0.2)
    keys.ring.find(key)
    assert keys.ring.fault is not None


def test_a_change_of_quota_ends_no_request_and_holds_from_then_on(tmp_path: Path) -> None:
    _, entry = make_key("ann", READ, quota=KeyQuota(open=5))
    keys = Keys(tmp_path, entry, guest_quota_text="open=3,bytes=1kb")
    assert keys.ring.quota("ann") == KeyQuota(open=5)
    assert keys.ring.quota(GUEST) == KeyQuota(open=3, bytes=1024)
    assert keys.ring.quota("nobody") == KeyQuota()
    _, newer = make_key("ann", READ, quota=KeyQuota(open=50))
    keys.write([entry.entry(), newer.entry()])
    keys.later()
    assert keys.ring.quota("ann") == KeyQuota(open=50)
    keys.write([entry.entry().replace("open=5", "open=7")])
    keys.later()
    assert keys.ring.holds(entry)
    keys.write([entry.entry().replace(":read:", ":submit:")])
    keys.later()
    assert not keys.ring.holds(entry)


def test_who_waits_with_a_key_does_not_outstay_it(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    _, over = make_key("ann", READ, expires=now - timedelta(seconds=1))
    _, holds = make_key("bob", READ, expires=now + timedelta(hours=1))
    keys = Keys(tmp_path, over, holds)
    assert not keys.ring.holds(over)
    assert keys.ring.holds(holds)


def test_what_is_written_between_the_start_and_the_first_request_is_read(tmp_path: Path) -> None:
    (old, first), (new, second) = make_key("ann", READ), make_key("bob", READ)
    keys = Keys(tmp_path, first)
    settings = ApiSettings(redis_url="redis://nowhere", api_keys_file=keys.path)
    # Settings read the file as soon as they are made.
    keys.write([second.entry()])
    ring = KeyRing(settings, clock=keys.clock)
    keys.later()
    assert ring.find(new) == second
    assert ring.find(old) is None
