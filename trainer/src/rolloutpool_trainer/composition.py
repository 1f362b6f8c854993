"""Says what capabilities add to the client and to the commands. No other module here names one; none is slow to import.

A *place* is a module and a name in it, with a colon between; it is imported when it is needed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rolloutpool_trainer.capabilities.engines.aio_client import AsyncEngineClient
from rolloutpool_trainer.capabilities.engines.sync_client import SyncEngineClient
from rolloutpool_trainer.capabilities.forks.aio_client import AsyncForkingClient
from rolloutpool_trainer.capabilities.forks.sync_client import SyncForkingClient
from rolloutpool_trainer.capabilities.grading.aio import AsyncGradedBatch, AsyncGradedClient, AsyncGradedGroup
from rolloutpool_trainer.capabilities.grading.sync import SyncGradedBatch, SyncGradedClient, SyncGradedGroup
from rolloutpool_trainer.capabilities.harness.aio_batch import AsyncHarnessBatch
from rolloutpool_trainer.capabilities.harness.sync_batch import SyncHarnessBatch
from rolloutpool_trainer.capabilities.runs.aio_client import AsyncRunsClient
from rolloutpool_trainer.capabilities.runs.submitted import LimitedSubmit
from rolloutpool_trainer.capabilities.runs.sync_client import SyncRunsClient
from rolloutpool_trainer.capabilities.webhooks.aio_batch import AsyncPushedBatch
from rolloutpool_trainer.capabilities.webhooks.submitted import PushedSubmit
from rolloutpool_trainer.capabilities.webhooks.sync_batch import SyncPushedBatch

if TYPE_CHECKING:
    from rolloutpool_trainer.capabilities.webhooks.receiving import SignatureInvalid, verify_push

__all__ = ["SignatureInvalid", "verify_push"]


class AsyncBatchParts(AsyncHarnessBatch, AsyncGradedBatch, AsyncPushedBatch):
    """Methods of a batch, for asyncio."""


class SyncBatchParts(SyncHarnessBatch, SyncGradedBatch, SyncPushedBatch):
    """Methods of a batch that block."""


class AsyncGroupParts(AsyncGradedGroup):
    """Methods of a group, for asyncio."""

    __slots__ = ()


class SyncGroupParts(SyncGradedGroup):
    """Methods of a group that block."""

    __slots__ = ()


class AsyncClientParts(AsyncEngineClient, AsyncGradedClient, AsyncForkingClient, AsyncRunsClient):
    """Methods of a client, for asyncio."""


class SyncClientParts(SyncEngineClient, SyncGradedClient, SyncForkingClient, SyncRunsClient):
    """Methods of a client that block."""


class SubmitOptions(LimitedSubmit, PushedSubmit):
    """Keyword arguments of `submit`."""


COMMANDS = (
    "rolloutpool_trainer.capabilities.forks.commands:fork",
    "rolloutpool_trainer.capabilities.grading.commands:groups",
    "rolloutpool_trainer.capabilities.grading.commands:regrade",
    "rolloutpool_trainer.capabilities.harness.commands:agent",
    "rolloutpool_trainer.capabilities.harness.commands:door",
    "rolloutpool_trainer.capabilities.harness.commands:runner",
    "rolloutpool_trainer.capabilities.runs.commands:run",
    "rolloutpool_trainer.capabilities.runs.commands:announce",
    "rolloutpool_trainer.capabilities.runs.commands:pause",
    "rolloutpool_trainer.capabilities.runs.commands:resume",
)
"""Commands of `rolloutpool`, by their places."""
DOCUMENTS = {
    "agent": "rolloutpool_common.protocol.result:RolloutResult",
    "fork": "rolloutpool_trainer.cli.documents:SubmitDocument",
    "groups": "rolloutpool_trainer.capabilities.grading.documents:GroupsDocument",
    "regrade": "rolloutpool_common.capabilities.grading.annotating:Regrade",
    "run": "rolloutpool_common.capabilities.runs.wire:RunState",
    "announce": "rolloutpool_common.capabilities.runs.wire:RunState",
    "pause": "rolloutpool_common.capabilities.runs.wire:RunState",
    "resume": "rolloutpool_common.capabilities.runs.wire:RunState",
}
"""What they print with `--json`: by command, the place of its model."""
COUNTS = {"pushes": "delivery"}
"""What the state of a batch shows: by the word that stands there, the field of `BatchStatus`."""
LETTERS = {"push": "pushes"}
"""What is among the dead letters: by the word in front of a uid, the field of `DeadLetters`."""
HOMES = {
    "SignatureInvalid": "rolloutpool_trainer.capabilities.webhooks.receiving",
    "verify_push": "rolloutpool_trainer.capabilities.webhooks.receiving",
}
"""Names that can be imported from `rolloutpool_trainer`, and their modules."""


def by_place(place: str) -> Any:
    """Imports what is at a place."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
