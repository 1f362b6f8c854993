"""What each command prints with `--json`: a model per command, from which `docs/schemas` is made (`make generate`).

A command that prints one thing after the other (`watch`, `results`, `logs`) prints one document a line.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from rolloutpool_common.protocol.batch import BatchPurged, BatchStatus
from rolloutpool_common.protocol.batch_list import BatchSummary
from rolloutpool_common.protocol.operations import DeadLetters, EndpointCheck
from rolloutpool_common.protocol.replay import ReplayReport
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.protocol.workers import UnreadableWorker, Worker
from rolloutpool_trainer import composition
from rolloutpool_trainer.cli.findings import DoctorFinding
from rolloutpool_trainer.client.results import FinishedRollout


class SubmitDocument(BaseModel):
    """`submit`: the accepted batch; with `--wait`, printed when it has ended."""

    batch_id: str
    rollouts: list[str]
    """Uids, in the order of the lines."""
    ended: int | None = None
    """How many have ended; null without `--wait`."""
    completed: int | None = None
    """How many of these have completed."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """Why others did not complete, each with a number."""


class StatusDocument(BatchStatus):
    """`status`: the batch's state."""

    reasons: dict[str, int] = Field(default_factory=dict)
    """Why rollouts failed or expired: each category with its commonest message, and how many; the commonest first."""


class BatchesDocument(BaseModel):
    """`batches`: the newest first."""

    batches: list[BatchSummary]


class CancelDocument(BaseModel):
    """`cancel`."""

    id: str
    submitted: bool
    """False: no rollout has this id yet; if one comes within 10 minutes, it is cancelled."""


class PurgeOwnerDocument(BaseModel):
    """`purge-owner`."""

    owner: str
    purged: int
    """Batches that are deleted."""
    left: list[str]
    """Batches that are cancelled and have not ended in time."""
    new: list[str]
    """Batches that came meanwhile."""


class DoctorDocument(BaseModel):
    """`doctor`."""

    ok: bool
    """No check has failed; some may not have been made."""
    findings: list[DoctorFinding]


class WorkersDocument(BaseModel):
    """`workers`: the oldest first."""

    workers: list[Worker]
    unreadable: list[UnreadableWorker] = Field(default_factory=list)
    """Workers of another build, whose announcements the API cannot read."""


class PreflightDocument(BaseModel):
    """`preflight`: one check per URL, in their order."""

    ok: bool
    """Whether a worker reached all of them."""
    endpoints: list[EndpointCheck]


class BatchDocument(BaseModel):
    """`requeue`: the new batch."""

    batch_id: str


class ReplayDocument(BaseModel):
    """`replay`."""

    same: bool
    """Whether everything came out as it was recorded."""
    reports: list[ReplayReport]
    """In the order of the file."""


class OpenDocument(BaseModel):
    """`open`."""

    address: str
    opened: bool
    """Whether a browser was told to show it."""


class ViewDocument(BaseModel):
    """`view`: printed once it answers."""

    address: str
    """With a secret part; who knows it can look."""


class LogLine(BaseModel):
    """`logs`, one a line."""

    process: str
    """The file's name without `.log`."""
    text: str
    """The line as it was written."""
    entry: dict[str, Any] | None = None
    """What it holds, where it is a JSON object."""


class ActorLogLine(BaseModel, extra="allow"):
    """A line of log on standard error, all that `api`, `worker` and `flower` print; many have further fields."""

    event: str
    level: str
    timestamp: str


class UpDocument(BaseModel):
    """`up`: where everything is, once it runs."""

    api: str
    docs: str
    viewer: str
    flower: str | None
    flower_auth_file: str | None
    door: str | None
    workers: int
    redis_url_file: str | None
    """Null where `--redis` named one."""
    secrets_file: str
    state: str
    logs: str


class DemoWorker(BaseModel):
    """One worker of the demo."""

    worker: str
    rollouts: int


class DemoDocument(BaseModel):
    """`demo`: printed when its batch has ended, also with `--keep`."""

    rollouts: int
    completed: int
    seconds: float
    """From the submission to the last result."""
    compared_tokens: int
    """Tokens that the trainer compared with its own: id, mask, log-probability."""
    mismatches: int
    workers: list[DemoWorker]
    viewer: str | None
    """Null without `--keep`: nothing is left running."""


class MockTrainerDocument(BaseModel):
    """`mock-trainer`: printed once it listens."""

    urls: list[str]


class KeyDocument(BaseModel):
    """`make-key`."""

    key: str
    """For the callers; kept nowhere."""
    entry: str
    """For the API."""


class SecretsKeyDocument(BaseModel):
    """`make-secrets-key`."""

    key: str


class CaseOutcome(BaseModel):
    """One golden case."""

    name: str
    faults: list[str]


class ConformanceDocument(BaseModel):
    """`conformance`."""

    passed: int
    failed: int
    cases: list[CaseOutcome]


DOCUMENTS: dict[str, type[BaseModel]] = {
    "submit": SubmitDocument,
    "status": StatusDocument,
    "watch": BatchStatus,
    "results": FinishedRollout,
    "batches": BatchesDocument,
    "purge": BatchPurged,
    "purge-owner": PurgeOwnerDocument,
    "show": RolloutView,
    "replay": ReplayDocument,
    "cancel": CancelDocument,
    "open": OpenDocument,
    "view": ViewDocument,
    "logs": LogLine,
    "doctor": DoctorDocument,
    "workers": WorkersDocument,
    "preflight": PreflightDocument,
    "dead-letters": DeadLetters,
    "requeue": BatchDocument,
    **{command: composition.by_place(place) for command, place in composition.DOCUMENTS.items()},
    "conformance": ConformanceDocument,
    "up": UpDocument,
    "demo": DemoDocument,
    "mock-trainer": MockTrainerDocument,
    "make-key": KeyDocument,
    "make-secrets-key": SecretsKeyDocument,
}
"""By command. `check-tokenizer` has its own in `tokenizer_report`, which needs the libraries that render."""
LOG_LINES: Literal["actor-logs"] = "actor-logs"
"""The schema of what `api`, `worker` and `flower` print with `--json`."""


def json_schemas() -> dict[str, dict[str, Any]]:
    """Returns the JSON schema of each command's document, by the name of its file without `.json`."""
    models: dict[str, type[BaseModel]] = {**DOCUMENTS, LOG_LINES: ActorLogLine}
    return {name: model.model_json_schema(mode="serialization") for name, model in models.items()}
