"""The capabilities of this build. No other module of this distribution names one.

The order of the tuple is that of their hooks, and of their parts in scripts. Each class is a base of the wire model
that it names, and has a base per capability: one that is taken out takes its fields along. The wire models import this
module, so nothing that a capability has here does I/O.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rolloutpool_common.capabilities.engines.wire import AttachField, AttachmentsField
from rolloutpool_common.capabilities.forks.origin import ForkedFromField, ForkField
from rolloutpool_common.capabilities.grading.stored import Grading
from rolloutpool_common.capabilities.grading.wire import GradeFields, GraderField, GraderNames, OsmosisGrader
from rolloutpool_common.capabilities.harness.stored import Harness
from rolloutpool_common.capabilities.harness.wire import HarnessField, HarnessReportField
from rolloutpool_common.capabilities.osmosis.stored import StoredOsmosis
from rolloutpool_common.capabilities.runs.stored import StoredRuns
from rolloutpool_common.capabilities.runs.wire import StaleCounts, StalenessLimit, StalenessReport
from rolloutpool_common.capabilities.webhooks.stored import Webhooks
from rolloutpool_common.capabilities.webhooks.wire import DeadPushes, DeliveryCounts, DeliveryField
from rolloutpool_common.capability import StoredCapability

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch import BatchRequest
    from rolloutpool_common.protocol.result import RolloutResult

CAPABILITIES: tuple[StoredCapability, ...] = (
    StoredRuns(),
    Harness(),
    Grading(),
    Webhooks(),
    StoredOsmosis(),
)
"""Those for which the store does something."""

COUNTED = [field for capability in CAPABILITIES for field in capability.counted]
"""Fields of a result whose values are counted, as `{field}:{value}`."""
_SAID = {word: field for capability in CAPABILITIES for word, field in capability.said.items()}


class BatchRequestFields(StalenessLimit, DeliveryField):
    """Of `BatchRequest`."""


class BatchStatusFields(StaleCounts, DeliveryCounts):
    """Of `BatchStatus`."""


class RunOptionsFields(GraderField, HarnessField):
    """Of `RunOptions`: what a batch or a rollout may set, and a worker obeys."""


class RolloutSpecFields(ForkField):
    """Of `RolloutSpec`."""


class RolloutResultFields(StalenessReport, AttachmentsField, GradeFields, HarnessReportField, ForkedFromField):
    """Of `RolloutResult`."""


class EndpointFields(AttachField):
    """Of `EndpointOptions`."""


class WorkerFields(GraderNames):
    """Of `Worker`, and of what it announces."""


class OsmosisOptionsFields(OsmosisGrader):
    """Of `OsmosisOptions`."""


class DeadLettersFields(DeadPushes):
    """Of `DeadLetters`."""


def said_of(result: "RolloutResult") -> dict[str, str]:
    """Returns what capabilities say of a result's end, in a line each, by a word for it."""
    found = {word: getattr(result, field) for word, field in _SAID.items()}
    return {word: said.message for word, said in found.items() if said is not None}


def from_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Makes fields of the result that no worker makes, of a rollout that is ended from outside, out of its options."""
    return {"forked_from": options.get("fork")}


def asks_of(batch: "BatchRequest | None", rollouts: Iterable[Mapping[str, Any]]) -> dict[str, object]:
    """Returns what a batch asks of each capability that it uses, by name (`StoredCapability.asked`)."""
    rollouts = list(rollouts)
    found = {capability.name: capability.asked(batch, rollouts) for capability in CAPABILITIES if capability.mark}
    return {name: asked for name, asked in found.items() if asked is not None}
