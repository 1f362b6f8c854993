"""The vocabularies of tokenizers, for the browser, which has no tokenizer.

A result has the hash of the tokenizer that made it, and whoever knows the hash may read what its ids stand for.
"""

import asyncio
import gzip
import re
from typing import Annotated

from fastapi import APIRouter, Header, Path, Response

from rolloutpool_api.access import Reader
from rolloutpool_api.errors import ResourceUnknown
from rolloutpool_api.routes.openapi_errors import errors
from rolloutpool_api.services import ServicesDep
from rolloutpool_common.protocol.token_pieces import TokenPieces

router = APIRouter(prefix="/v1/tokenizers", tags=["rollouts"])

_SHA256 = re.compile(r"[0-9a-f]{64}")


@router.get(
    "/{tokenizer_sha256}/pieces",
    summary="What each token id reads",
    response_model=TokenPieces,
    responses={304: {"description": "As in the caller's cache"}, **errors(404)},
)
async def token_pieces(
    tokenizer_sha256: Annotated[str, Path(description="As in a result's `tokenizer`")],
    services: ServicesDep,
    _: Reader,
    accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
    if_none_match: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Workers write a vocabulary once, a second or two after they have loaded its tokenizer. It never changes."""
    written = None
    if services.settings.token_pieces_mb and _SHA256.fullmatch(tokenizer_sha256):
        written = await services.store.pieces.read(tokenizer_sha256)
    if written is None:
        raise ResourceUnknown(f"the vocabulary of tokenizer {tokenizer_sha256[:64]!r} is not kept")
    headers = {
        "ETag": f'"{tokenizer_sha256}"',
        # A proxy must not give it to others.
        "Cache-Control": "private, max-age=31536000, immutable",
        "Vary": "Accept-Encoding, Authorization",
    }
    if headers["ETag"] in if_none_match:
        return Response(status_code=304, headers=headers)
    if _takes_gzip(accept_encoding):
        return Response(written, media_type="application/json", headers={**headers, "Content-Encoding": "gzip"})
    # Megabytes, so not on the event loop.
    plain = await asyncio.to_thread(gzip.decompress, written)
    return Response(plain, media_type="application/json", headers=headers)


def _takes_gzip(accept_encoding: str) -> bool:
    for part in accept_encoding.lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "").rstrip("0.") != "q="
    return False
