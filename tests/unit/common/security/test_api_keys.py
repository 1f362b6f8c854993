"""What an entry says is what a key may do, and no error shows a key."""

import hashlib
from datetime import UTC, datetime

import pytest

from rolloutpool_common.security.api_keys import KeyQuota, KeyScope, find_key, make_key, parse_keys

DIGEST = hashlib.sha256(b"k").hexdigest()


def test_an_entry_is_its_key() -> None:
    key, made = make_key("job-7.a", [KeyScope.SUBMIT, KeyScope.READ])
    assert parse_keys(made.entry()) == (made,)
    assert find_key([made], key) == made
    assert len(key) > 40


def test_keys_are_found_among_others_and_by_nothing_but_themselves() -> None:
    made = [make_key(f"job{i}", [KeyScope.READ]) for i in range(3)]
    entries = [entry for _, entry in made]
    assert [find_key(entries, key) for key, _ in made] == entries
    key, entry = made[0]
    for wrong in ("", key[:-1], key + "x", key.upper(), entry.digest.hex(), "\udcff", entry.entry()):
        assert find_key(entries, wrong) is None
    assert find_key([], "") is None


def test_two_keys_of_one_name_are_both_good() -> None:
    (old, first), (new, second) = (make_key("job", [KeyScope.READ]) for _ in range(2))
    keys = parse_keys(f"{first.entry()} {second.entry()}")
    assert {found.name for found in (find_key(keys, key) for key in (old, new)) if found} == {"job"}


def test_entries_are_separated_by_anything_that_separates() -> None:
    text = f"\n a:read:{DIGEST},b:submit+admin:{DIGEST.upper()}  c:read:{DIGEST} # d:read:{DIGEST}\n# all of it\n"
    assert [key.name for key in parse_keys(text)] == ["a", "b", "c"]
    assert parse_keys(" \n,") == ()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("SECRET", "must be name:scopes:sha256"),
        ("SECRET:", "must be name:scopes:sha256"),
        (f":read:{DIGEST}", "must be name:scopes:sha256"),
        (f"{'x' * 65}:read:{DIGEST}", "must be name:scopes:sha256"),
        (f"public:read:{DIGEST}", "no key may be named 'public'"),
        (f"job::{DIGEST}", "key 'job': its scopes must be some of submit+read+metrics+admin"),
        (f"job:read+root:{DIGEST}", "key 'job': its scopes"),
        ("job:read:SECRET", "key 'job': the last part must be the SHA-256"),
        (f"job:read:{DIGEST}:SECRET", "key 'job': the last part"),
        (f"job:read:{DIGEST[:-1]}é", "key 'job': the last part"),
        (f"job:read:{DIGEST};limit=5", "key 'job': 'limit' is no option"),
        (f"job:read:{DIGEST};open=0", "key 'job': open= needs a whole number above 0"),
        (f"job:read:{DIGEST};open=5kb", "key 'job': open= needs a whole number"),
        (f"job:read:{DIGEST};bytes=lots", "key 'job': bytes= needs"),
        (f"job:read:{DIGEST};weight=", "key 'job': weight= needs"),
        (f"job:read:{DIGEST};open=1;open=2", "key 'job': open= comes twice"),
        (f"job:read:{DIGEST};expires=2026-12-01;expires=2027-12-01", "key 'job': expires= comes twice"),
        (f"job:read:{DIGEST};expires=soon", "key 'job': expires= needs a time in UTC"),
    ],
)
def test_a_bad_entry_is_named_without_what_may_be_a_key(entry: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("+", r"\+")) as raised:
        parse_keys(f"good:read:{DIGEST} {entry}")
    assert "SECRET" not in str(raised.value)
    assert DIGEST not in str(raised.value)


def test_the_representation_holds_no_hash() -> None:
    _, made = make_key("job", [KeyScope.READ])
    assert made.digest.hex() not in repr(made)
    assert str(made.digest) not in repr(made)


def test_an_entry_carries_quota_and_end() -> None:
    quota, end = KeyQuota(open=5000, bytes=2 * 1024**3, weight=8), datetime(2026, 12, 1, tzinfo=UTC)
    _, made = make_key("job7", [KeyScope.SUBMIT], quota=quota, expires=end)
    assert made.entry().endswith(";open=5000;bytes=2147483648;weight=8;expires=2026-12-01T00:00:00Z")
    assert parse_keys(made.entry()) == (made,)
    (read,) = parse_keys(f"job7:submit:{DIGEST};bytes=2GB;expires=2026-12-01T02:00:00+02:00")
    assert (read.quota, read.expires) == (KeyQuota(bytes=2 * 1024**3), end)


def test_a_key_ends_at_its_time() -> None:
    _, made = make_key("job7", [KeyScope.READ], expires=datetime(2026, 12, 1, tzinfo=UTC))
    assert not made.is_expired(datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC))
    assert made.is_expired(datetime(2026, 12, 1, tzinfo=UTC))
    assert not make_key("job7", [KeyScope.READ])[1].is_expired(datetime.max.replace(tzinfo=UTC))
