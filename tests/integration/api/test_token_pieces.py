"""`GET /v1/tokenizers/{sha}/pieces`: for those who know the hash, compressed or not, and to be kept for ever."""

import gzip

import httpx
from tests.support.api_callers import auth, shared_api
from tests.support.inside_api import client_of, running_api

from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_common.store import Store

SHA = "ab" * 32
PIECES = TokenPieces(tokenizer_sha256=SHA, pieces=["Hi", None, None], partial={1: "e5ad", 2: "97"})
WRITTEN = gzip.compress(PIECES.model_dump_json().encode())
URL = f"/v1/tokenizers/{SHA}/pieces"


async def test_it_is_sent_as_the_caller_takes_it(client: httpx.AsyncClient, store: Store) -> None:
    for accepts, compressed in [
        ("gzip, deflate, br", True),
        ("br, GZIP;q=0.5", True),
        ("identity", False),
        ("", False),
        ("gzip;q=0, *", False),
        ("gzip; q=0.0", False),
    ]:
        await store.pieces.keep(SHA, WRITTEN, max_bytes=10**6)
        answer = await client.get(URL, headers={"Accept-Encoding": accepts})
        assert answer.status_code == 200
        assert answer.headers.get("content-encoding") == ("gzip" if compressed else None)
        assert TokenPieces.model_validate_json(answer.content) == PIECES
        # Nobody but this caller may keep it, and they may for ever.
        assert "private" in answer.headers["cache-control"]
        assert "immutable" in answer.headers["cache-control"]
        again = await client.get(URL, headers={"If-None-Match": f'W/"x", {answer.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")


async def test_who_knows_the_hash_and_may_read_at_all_reads_it(redis_url: str, store: Store) -> None:
    await store.pieces.keep(SHA, WRITTEN, max_bytes=10**6)
    async with shared_api(redis_url) as client:
        for name in ("ann", "ann-read", "bob", "boss"):
            assert (await client.get(URL, headers=auth(name))).status_code == 200
        assert (await client.get(URL)).status_code == 401
        # A browser that has it in its cache is asked for its key all the same.
        assert (await client.get(URL, headers={"If-None-Match": f'"{SHA}"'})).status_code == 401


async def test_a_setting_turns_it_off(redis_url: str, store: Store) -> None:
    await store.pieces.keep(SHA, WRITTEN, max_bytes=10**6)
    async with running_api(redis_url, token_pieces_mb=0) as api, client_of(api) as client:
        assert (await client.get(URL)).status_code == 404


async def test_nonsense_is_unknown(client: httpx.AsyncClient) -> None:
    for sha in ["x", "AB" * 32, "ab" * 31, "ab" * 33, "%2e%2e", "ab" * 5000, "*", "ab" * 31 + "%0a"]:
        answer = await client.get(f"/v1/tokenizers/{sha}/pieces")
        assert answer.status_code == 404
        assert len(answer.text) < 1000
