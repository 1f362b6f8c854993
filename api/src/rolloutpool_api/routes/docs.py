"""The page `/docs`: the API's description, shown by a copy of Swagger UI that is part of this package.

The page loads nothing from another host, so it works on a machine without a network, and no foreign script runs beside
the API's keys. Its policy (CSP) forbids the browser to ask anything else. `pages/swagger_ui/vendored.json` records
which release the copy is, with the hash of each file.
"""

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Response

from rolloutpool_api.open_files import DOCS_FILES

router = APIRouter(include_in_schema=False)

_HEADERS = {
    # Swagger UI sets styles of elements, and its pictures are in its style sheet.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "public, max-age=3600",
}


@cache
def _read(name: str) -> bytes:
    return files("rolloutpool_api").joinpath("pages", name).read_bytes()


@router.get("/docs")
@router.get("/docs/{part}")
async def docs(part: str | None = None) -> Response:
    """Answers with the page, or with a part of it."""
    found = DOCS_FILES.get("/docs" if part is None else f"/docs/{part}")
    if found is None:
        return Response(status_code=404)
    file, kind = found
    return Response(_read(file), media_type=kind, headers=_HEADERS)
