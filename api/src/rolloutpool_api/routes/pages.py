"""The files that anybody may read: the page `/docs`, which shows the API's description, and the viewer at `/ui`.

`/docs` is a copy of Swagger UI that is part of this package. It loads nothing from another host, so it works on a
machine without a network, and no foreign script runs beside the API's keys; its policy (CSP) forbids the browser to ask
anything else. `pages/swagger_ui/vendored.json` records which release the copy is, with the hash of each file.

What the viewer shows it asks of the API, with the reader's own key. The key is typed once, stays in that tab
(`sessionStorage`) and travels in a header, never in an address.
"""

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from rolloutpool_api.open_files import DOCS_FILES, UI_FILES
from rolloutpool_common.viewer.assets import PAGE, POLICY

router = APIRouter(include_in_schema=False)

_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_OF_DOCS = _HEADERS | {
    # Swagger UI sets styles of elements, and its pictures are in its style sheet.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "public, max-age=3600",
}
# Page and modules of the viewer belong together: after an update a browser must not mix two releases.
_OF_UI = _HEADERS | {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}


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
    return Response(_read(file), media_type=kind, headers=_OF_DOCS)


@router.get("/ui")
@router.get("/ui/{part:path}")
async def ui(part: str = PAGE) -> Response:
    """Answers with the viewer, or with a part of it."""
    if part == "":
        return RedirectResponse("../ui")
    found = UI_FILES.get(part)
    if found is None:
        return Response(status_code=404)
    content, kind = found
    return Response(content, media_type=kind, headers=_OF_UI)
