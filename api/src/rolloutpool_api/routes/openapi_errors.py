"""The errors that routes have in common, for the API's OpenAPI description."""

from typing import Any

from rolloutpool_common.protocol.errors import ErrorBody, V1ErrorBody

_TEXTS = {
    400: "Malformed: bad JSON, or a bad cursor",
    401: "No key, or one that this pool does not know",
    403: "The key lacks the scope",
    404: "Unknown, expired, or deleted",
    409: "Contradicts an earlier request, or the state of the batch",
    410: "The batch is being deleted",
    413: "The body is too large",
    415: "The body is not plain JSON",
    422: "Rejected; `faults` lists every reason with its path",
    429: "Too many rollouts are open; submit again after `Retry-After` seconds",
    503: "Redis does not answer or is nearly full, or this process stops; try again after `Retry-After` seconds",
}

Responses = dict[int | str, dict[str, Any]]

V1_UNAVAILABLE: Responses = {
    status: {"model": V1ErrorBody, "description": _TEXTS[status]} for status in (401, 403, 503)
}


def errors(*statuses: int) -> Responses:
    """Makes the `responses` of a route: these errors, and those that every route may answer with."""
    return {status: {"model": ErrorBody, "description": _TEXTS[status]} for status in (401, 403, *statuses, 422, 503)}
