"""`/ui` is served without a key, with a strict policy, and nothing else is."""

import httpx
from tests.support.api_callers import auth, shared_api

from rolloutpool_api.open_files import UI_PATHS
from rolloutpool_common.viewer.assets import POLICY, viewer_files


async def test_the_page_and_its_parts(client: httpx.AsyncClient) -> None:
    kinds = {f"/ui/{name}": kind for name, (_, kind) in viewer_files().items()} | {"/ui": "text/html"}
    for path in UI_PATHS - {"/ui/"}:
        answer = await client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"].partition(";")[0] == kinds[path]
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    moved = await client.get("/ui/")
    assert (moved.status_code, moved.headers["location"]) == (307, "../ui")
    for gone in ("/ui/nothing", "/ui/..%2fassets.py", "/ui/vendor/vendored.json", "/ui/vendor/../../assets.py"):
        assert (await client.get(gone)).status_code == 404, gone


async def test_the_page_needs_no_key_and_what_it_asks_for_does(redis_url: str) -> None:
    async with shared_api(redis_url) as client:
        for path in UI_PATHS:
            assert (await client.get(path)).status_code in (200, 307), path
        assert (await client.get("/ui/nothing")).status_code == 401
        assert (await client.get("/v1/batches")).status_code == 401
        assert (await client.get("/v1/batches", headers=auth("ann"))).status_code == 200
        # A key in an address counts for nothing.
        key = auth("ann")["Authorization"].removeprefix("Bearer ")
        assert (await client.get("/v1/batches", params={"key": key, "token": key})).status_code == 401
