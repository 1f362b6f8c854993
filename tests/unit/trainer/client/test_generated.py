"""The blocking client is generated from the one for asyncio, and is current."""

from scripts.generate_sync_client import SYNC, generated


def test_the_blocking_client_is_what_the_generator_makes() -> None:
    assert SYNC.read_text() == generated(), "run `make generate`"


def test_nothing_asynchronous_is_left_in_it() -> None:
    text = SYNC.read_text().lower()
    assert not [word for word in ("async", "await") if word in text]
