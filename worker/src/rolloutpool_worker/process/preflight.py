"""Preflight: whether this worker reaches a trainer's callback ports. A trainer asks before its first batch.

Any HTTP answer shows that the port can be reached. What the endpoint answers to `GET /health` does not matter; whether
the answer names its request (`X-Turn-Key`) is told.
"""

import asyncio
import time
from contextlib import aclosing

import httpx

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.operations import EndpointCheck, Preflight
from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENCY, HEADER_TURN_KEY
from rolloutpool_worker.rollout.services import Services

AT_ONCE = 32
"""Endpoints that are tried at the same time."""
SECONDS = 5.0
"""For one endpoint."""
TRIAL_KEY = "preflight/1"
"""Names no turn of any rollout."""


async def try_endpoints(services: Services, request_id: str, urls: list[str]) -> None:
    """Tries each endpoint once, and stores what was found for the API process that asked."""
    places = asyncio.Semaphore(AT_ONCE)

    async def limited(url: str) -> EndpointCheck:
        async with places:
            return await _try(services, url)

    found = await asyncio.gather(*(limited(url) for url in urls))
    await services.store.preflights.answer(request_id, Preflight(worker=services.worker_id, endpoints=found))


async def _try(services: Services, url: str) -> EndpointCheck:
    start = time.perf_counter()
    try:
        request = httpx.Request("GET", f"{url}/health", headers={HEADER_IDEMPOTENCY: TRIAL_KEY})
        async with (
            asyncio.timeout(SECONDS),
            aclosing(await services.transport.handle_async_request(request)) as response,
        ):
            named = response.headers.get(HEADER_TURN_KEY) == TRIAL_KEY
            ok, detail = True, f"answered {response.status_code}{'' if named else f', without {HEADER_TURN_KEY}'}"
    except TimeoutError:
        ok, detail = False, f"no answer within {SECONDS:.0f} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, OverflowError, UnicodeError) as error:
        ok, detail = False, type(error).__name__
    except RolloutPoolError as refused:
        ok, detail = False, refused.message
    return EndpointCheck(server_url=url, ok=ok, detail=detail, ms=(time.perf_counter() - start) * 1000)
