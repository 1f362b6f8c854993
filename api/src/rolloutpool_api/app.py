"""The application: its routes, the shape of its errors, its background work and its description.

Whatever a request contains, the response is JSON. An error is `{"detail": …}` on protocol v1's paths, as its clients
know it, and `{"error": {"message": …, …}}` on all others.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request, Response, Security
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match

from rolloutpool_api import synchronous
from rolloutpool_api.access import AuthMiddleware
from rolloutpool_api.audit import Audit
from rolloutpool_api.body import BodyLimit
from rolloutpool_api.composition import BODIES, routers
from rolloutpool_api.errors import ApiError, Rejected, answer, answer_error, answer_store_error, has_v1_shape
from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.hot_routes import HotRoutes
from rolloutpool_api.large_bodies import LargeBodies
from rolloutpool_api.request_metrics import RequestMetrics
from rolloutpool_api.routes import (
    batch_list,
    batches,
    health,
    metrics,
    operations,
    pages,
    rollouts,
    tokenizers,
    tools,
)
from rolloutpool_api.routes.known_query import check_query
from rolloutpool_api.services import ApiServices
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.errors import SecretUnreadable
from rolloutpool_common.protocol.batch import BatchRequest
from rolloutpool_common.store import StoreError

_log = structlog.stdlib.get_logger(__name__)

_DESCRIPTION = """
Rollouts for agentic RL: a trainer submits conversations, workers run them against the trainer's own model, and each
comes back as token ids with an exact mask.

Errors of the pool's own API have one shape, `{"error": {"message": ..., ...}}`; protocol v1's paths answer
`{"detail": ...}`. A 503 carries `Retry-After`.
"""


class _DescribedApp(FastAPI):
    """Describes also the requests that no route declares, because their bodies are validated by the route itself."""

    def openapi(self) -> dict[str, Any]:
        """Returns the description; it is made once."""
        if self.openapi_schema is None:
            schemas = super().openapi()["components"]["schemas"]
            bodies: tuple[type[BaseModel], ...] = (BatchRequest, *BODIES)
            _, models = models_json_schema(
                [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
            )
            for name, schema in models["$defs"].items():
                schemas.setdefault(name, schema)
        return super().openapi()


def create_app(settings: ApiSettings) -> FastAPI:
    """Makes the API of one process. It needs no Redis to start. `app.state.services` is its `ApiServices`."""
    services = ApiServices(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with services.running():
            yield

    app = _application(services, lifespan)
    app.state.run_v1 = synchronous.run
    max_bytes = settings.max_body_mb * 1_000_000
    app.add_middleware(HotRoutes)
    app.add_middleware(LargeBodies, services=services, max_bytes=max_bytes)
    # The body's limit is inside the check of the key, so a caller without a key can't make the API read a body.
    app.add_middleware(BodyLimit, max_bytes=max_bytes, min_rate=settings.min_upload_kb * 1000)
    app.add_middleware(Audit)
    # The middleware that is added last is the first that a request meets.
    app.add_middleware(AuthMiddleware, settings=settings, keys=services.keys)
    app.add_middleware(RequestMetrics)
    return app


def create_reader_app(services: ApiServices) -> FastAPI:
    """Makes the application of the process that reads large bodies: requests come checked, complete and one by one."""
    app = _application(services, None)
    app.state.run_v1 = synchronous.submit_only
    return app


def _application(
    services: ApiServices, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None
) -> FastAPI:
    app = _DescribedApp(
        title="rolloutpool",
        description=_DESCRIPTION,
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # FastAPI's own looks for exporters in each request, and would export what bodies hold.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.services = services
    app.router.routes.extend(_routes())
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(StoreError, _store_error)
    app.add_exception_handler(SecretUnreadable, _unreadable)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(ClientDisconnect, _caller_left)
    app.add_exception_handler(Exception, _unforeseen)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Puts the routes together, once for all applications of the process.

    FastAPI makes an included route when it is first looked for, and all of them take it a tenth of a second.
    """
    root = APIRouter()
    described = Security(HTTPBearer(auto_error=False, description="A key of this pool; see `docs/security.md`"))
    of_all = [described, Depends(check_query)]
    # First what each rollout goes through: a route is looked for in one router after the other.
    root.include_router(rollouts.posted, dependencies=of_all)
    modules = (batches, batch_list, operations)
    # An id may have slashes, so `rollouts` answers any path below a rollout: what has a path there comes before it.
    last = (rollouts, tokenizers, tools, metrics)
    for router in (*(one.router for one in modules), *routers(), *(one.router for one in last)):
        root.include_router(router, dependencies=of_all)
    root.include_router(health.router)
    root.include_router(pages.router)
    return tuple(root.routes)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return answer_error(request.url.path, error)


async def _store_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    return answer_store_error(request.url.path, error)


async def _unreadable(request: Request, error: Exception) -> Response:
    assert isinstance(error, SecretUnreadable)
    return answer(request.url.path, 409, error.message)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404 and not has_v1_shape(request.url.path):
        message = "there is nothing at this path; `/docs` lists what there is"
    if error.status_code == 405:
        # Starlette names the methods of the first route of this path only.
        headers = {"Allow": ", ".join(filter(partial(_takes, request), ("DELETE", "GET", "POST", "PUT")))}
        message = f"this path does not take {request.method}; it takes {headers['Allow']}"
        return answer(request.url.path, 405, message, headers=headers)
    return answer(request.url.path, error.status_code, message, headers=error.headers)


def _takes(request: Request, method: str) -> bool:
    return any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)


async def _validation_error(request: Request, error: Exception) -> Response:
    """Protocol v1's 422 is FastAPI's own; elsewhere the faults of a query or header are listed as those of a body."""
    assert isinstance(error, RequestValidationError)
    if has_v1_shape(request.url.path):
        # A body of another content type is echoed as it came, and need not be text.
        detail = jsonable_encoder(error.errors(), custom_encoder={bytes: lambda raw: raw.decode(errors="replace")})
        return JSONResponse({"detail": detail}, status_code=422)
    faults = FaultList()
    for item in error.errors():
        # FastAPI gives what is not called JSON to the model as text.
        is_text = item["loc"] == ("body",) and isinstance(item["input"], str | bytes)
        faults.add(path(*item["loc"]), "send JSON, with `Content-Type: application/json`" if is_text else item["msg"])
    return await _api_error(request, Rejected(faults.listed, faults.total))


async def _caller_left(request: Request, _: Exception) -> Response:
    # Nobody reads it: the connection is closed, and `BodyLimit` has logged that.
    return answer(request.url.path, 400, "the connection was closed before the body was whole")


async def _unforeseen(request: Request, error: Exception) -> Response:
    # Starlette raises the error again once this is sent, so the server logs where it came from.
    _log.error("unforeseen error", method=request.method, path=request.url.path, error=type(error).__name__)
    return answer(request.url.path, 500, "an error that should not be possible; please report it with the API's log")
