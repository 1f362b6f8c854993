"""`/docs` and every other page of ours load nothing from another host."""

import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest

from rolloutpool_api.open_files import DOCS_PATHS

ROOT = Path(__file__).parents[3]
VENDORED = ROOT / "api" / "src" / "rolloutpool_api" / "pages" / "swagger_ui"
PAGES = [
    path
    for distribution in ("api", "trainer", "common", "worker")
    for path in sorted((ROOT / distribution / "src").rglob("*"))
    if path.suffix in (".html", ".js", ".css", ".svg") and VENDORED not in path.parents
]


async def test_the_page_and_its_parts(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {f"/{part}" for part in parts if part != "data:,"} | {"/docs"} == DOCS_PATHS
    for path in DOCS_PATHS:
        answer = await client.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "http" not in policy
    assert "<script>" not in page.text
    for gone in ("/redoc", "/docs/oauth2-redirect", "/docs/nothing", "/docs/..%2fapp.py"):
        assert (await client.get(gone)).status_code in (401, 404), gone


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_page_of_ours_names_another_host(page: Path) -> None:
    text = page.read_text().replace("http://www.w3.org/", "")
    assert re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z0-9.-]+", text) == []


def test_there_are_pages() -> None:
    assert {"docs.html", "start.js", "rollout.html"} <= {page.name for page in PAGES}


def test_what_was_copied_in_is_what_the_record_says() -> None:
    record = json.loads((VENDORED / "vendored.json").read_text())
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDORED.iterdir()
        if path.name != "vendored.json"
    }
    assert found == record["sha256"]
    assert (record["license"], record["version"]) == ("Apache-2.0", "5.35.0")
    assert "LICENSE" in found
