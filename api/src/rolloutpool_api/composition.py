"""The capabilities' parts of this API. No other module here names one.

Routes stand above what checks a batch, and checks below, so those of one capability are imported only when the
application asks for them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import BaseModel

from rolloutpool_api.capabilities.grading.checks import GraderCheck
from rolloutpool_api.capabilities.harness.checks import HarnessCheck
from rolloutpool_api.capabilities.runs.checks import staleness_checks
from rolloutpool_api.checks import Check
from rolloutpool_common.capabilities.grading.annotating import AnnotationRequest
from rolloutpool_common.capabilities.grading.annotations import scalars
from rolloutpool_common.capabilities.grading.metrics import GRADER_CALLS
from rolloutpool_common.capabilities.runs.metrics import RUNNING_LAG, STALENESS
from rolloutpool_common.process.metrics import Histogram, Largest
from rolloutpool_common.protocol.batch import BatchRequest
from rolloutpool_common.store import Store

if TYPE_CHECKING:
    from rolloutpool_api.other_wire import OtherWire

Figures = Mapping[str, Mapping[int, float]]
"""Further columns of a table: by name, then by the rollout's index."""
MEASURES: tuple[Histogram | Largest, ...] = (GRADER_CALLS, STALENESS, RUNNING_LAG)
"""What workers measure of capabilities: a process shows what it has declared, so it has to import the declarations."""
CHECKS: tuple[Callable[[], Check], ...] = (HarnessCheck, GraderCheck)
"""What makes the checks of a batch's document, for each document anew."""
BATCH_CHECKS: tuple[Callable[[BatchRequest], Sequence[Check]], ...] = (staleness_checks,)
"""What makes those that look at a batch whose model is valid."""
BODIES: tuple[type[BaseModel], ...] = (AnnotationRequest,)
"""The models of bodies that routes read by themselves, for the API's description."""
COLUMNS: Mapping[str, Callable[[Store, str], Awaitable[Figures]]] = {"annotations": scalars}
"""Reads further columns of a batch's table, by the word that stands before their names and a dot."""


def routers() -> tuple[APIRouter, ...]:
    """Returns the routes, for the application."""
    from rolloutpool_api.capabilities.engines import routes as engines
    from rolloutpool_api.capabilities.forks import routes as forks
    from rolloutpool_api.capabilities.grading import routes as grading
    from rolloutpool_api.capabilities.harness import routes as harness
    from rolloutpool_api.capabilities.osmosis import routes as osmosis
    from rolloutpool_api.capabilities.overview import routes as overview
    from rolloutpool_api.capabilities.runs import routes as runs
    from rolloutpool_api.capabilities.tables import routes as tables
    from rolloutpool_api.capabilities.webhooks import routes as webhooks

    return tuple(one.router for one in (engines, runs, harness, webhooks, osmosis, overview, forks, tables, grading))


@cache
def wires() -> "tuple[OtherWire, ...]":
    """Returns what speaks on the paths of protocol v1, for the application."""
    from rolloutpool_api.capabilities.osmosis.calls import OsmosisWire

    return (OsmosisWire(),)
