"""The viewer at `/ui`: static files that anybody may read. What it shows it asks of the API, with the reader's own key.

The key is typed once, stays in that tab (`sessionStorage`) and travels in a header, never in an address.
"""

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from rolloutpool_api.open_files import UI_FILES
from rolloutpool_common.viewer.assets import PAGE, POLICY

router = APIRouter(include_in_schema=False)

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Page and modules belong together: after an update a browser must not mix two releases.
    "Cache-Control": "no-cache",
}


@router.get("/ui")
@router.get("/ui/{part:path}")
async def ui(part: str = PAGE) -> Response:
    """Answers with the page, or with a part of it."""
    if part == "":
        return RedirectResponse("../ui")
    found = UI_FILES.get(part)
    if found is None:
        return Response(status_code=404)
    content, kind = found
    return Response(content, media_type=kind, headers=_HEADERS)
