"""Refuses what a query says beyond the parameters of its route: `?limt=5` would be left out without a word."""

from collections.abc import Callable
from functools import cache
from typing import Any, get_args, get_type_hints

from fastapi import Request
from fastapi.params import Query
from pydantic import BaseModel

from rolloutpool_api.errors import Rejected
from rolloutpool_api.fault_list import FaultList, path


async def check_query(request: Request) -> None:
    """Refuses what the route does not take. Probes, scrapers and protocol v1's clients may send what they like."""
    if not request.url.path.startswith("/v1/"):
        return
    known = _parameters(request.scope["endpoint"])
    faults = FaultList()
    for name in dict.fromkeys(request.query_params):
        if name not in known:
            faults.add(path("query", name), f"is no parameter of this path; it takes {', '.join(known) or 'none'}")
    if faults.total:
        raise Rejected(faults.listed, faults.total)


@cache
def _parameters(endpoint: Callable[..., Any]) -> tuple[str, ...]:
    """Names the parameters of a query that a route's function takes, one by one or as the fields of a model."""
    found: list[str] = []
    for name, hint in get_type_hints(endpoint, include_extras=True).items():
        kind, *said = get_args(hint) or (hint,)
        if any(isinstance(one, Query) for one in said):
            is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
            found += kind.model_fields if is_model else [name]
    return tuple(found)
