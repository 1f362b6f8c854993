"""A worker writes the vocabularies of its tokenizers once, and nothing that goes wrong there reaches its rollouts."""

import gzip
import logging

import pytest

from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store import Store, StoreUnavailable
from rolloutpool_common.store.pieces import Pieces, Wanted
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_worker.process import vocabularies
from rolloutpool_worker.process.vocabularies import AGAIN_SECONDS, SOON_SECONDS, VocabularyWriter


@pytest.fixture
def cache(tokenizers: TokenizerCache) -> TokenizerCache:
    """With one tokenizer."""
    made = TokenizerCache(2)
    made.load(str(TINY_TOKENIZER))
    return made


def writer(cache: TokenizerCache, store: Store, worker: str = "w1", max_bytes: int = 10**6) -> VocabularyWriter:
    return VocabularyWriter(cache, store, worker, max_bytes)


class Clock:
    """A clock that a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(vocabularies, "monotonic", lambda: self.now)

    def forward(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_a_loaded_tokenizer_is_written_once_for_all(
    cache: TokenizerCache, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = tokenizer.fingerprint.tokenizer_sha256
    await writer(cache, store).look()
    written = await store.pieces.read(sha)
    assert written is not None
    ids = tokenizer.encode("Calculate 15 + 23")
    assert TokenPieces.model_validate_json(gzip.decompress(written)).read(ids) == "Calculate 15 + 23"

    def refuse(_: ChatTokenizer) -> bytes:
        raise AssertionError("it is kept already")

    monkeypatch.setattr(vocabularies, "write_pieces", refuse)
    await writer(cache, store, "w2").look()


async def test_redis_is_asked_now_and_then(
    cache: TokenizerCache, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answers = iter([Wanted.AWAITED, Wanted.KEPT, Wanted.KEPT])

    async def wanted(self: Pieces, sha: str, worker_id: str) -> Wanted:
        asked.append(worker_id)
        return next(answers)

    monkeypatch.setattr(Pieces, "wanted", wanted)
    made = writer(cache, store)
    for seconds, times in [(0, 1), (SOON_SECONDS - 5, 1), (10, 2), (AGAIN_SECONDS - 5, 2), (10, 3)]:
        clock.forward(seconds)
        await made.look()
        assert len(asked) == times, seconds


async def test_one_without_room_is_named_once(
    cache: TokenizerCache, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    made = writer(cache, store, max_bytes=100)
    for seconds in (0, AGAIN_SECONDS + 1, AGAIN_SECONDS + 1):
        clock.forward(seconds)
        await made.look()
    (record,) = (record for record in caplog.records if record.message == "vocabulary not kept")
    assert "ROLLOUTPOOL_TOKEN_PIECES_MB" in vars(record)["event_fields"]["why"]


async def test_no_error_ends_it(
    cache: TokenizerCache,
    store: Store,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = writer(cache, store)

    async def down(self: Pieces, sha: str, worker_id: str) -> Wanted:
        raise StoreUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(Pieces, "wanted", down)
        await made.look()

    def broken(_: ChatTokenizer) -> bytes:
        raise RuntimeError("of a kind that nobody foresaw")

    monkeypatch.setattr(vocabularies, "write_pieces", broken)
    clock.forward(SOON_SECONDS + 1)
    with caplog.at_level(logging.ERROR):
        await made.look()
    assert "can't be written" in caplog.text
    caplog.clear()
    # It would fail again.
    clock.forward(10 * AGAIN_SECONDS)
    await made.look()
    assert caplog.text == ""


async def test_a_monstrous_vocabulary_is_left_alone(
    cache: TokenizerCache, store: Store, monkeypatch: pytest.MonkeyPatch, tokenizer: ChatTokenizer
) -> None:
    monkeypatch.setattr(vocabularies, "MOST_IDS", 100)
    await writer(cache, store).look()
    assert await store.pieces.read(tokenizer.fingerprint.tokenizer_sha256) is None
