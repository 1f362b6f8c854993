"""Workers and what waits for them: what each announces, as the store keeps it and `GET /v1/workers` shows it."""

from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, Field

from rolloutpool_common.composition import WorkerFields
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.tools import ToolDefinition


class WorkerRole(StrEnum):
    """Says which rollouts a worker process takes."""

    SHARED = "shared"
    """Any rollout but suspects, as many at once as it has slots; Celery messages bring them."""
    ISOLATED = "isolated"
    """Suspects, at most 64 at once. A shared worker starts such a process, and no message reaches it."""


class WorkerState(StrEnum):
    """Says what is known of a worker process."""

    ALIVE = "alive"
    """It sent a heartbeat in the last five seconds."""
    STALLED = "stalled"
    """It sends none, and its process exists: it is starved, paused, or busy in one long call. It keeps its rollouts."""
    SILENT = "silent"
    """It sends none, and its process is not seen. The reconciler is about to declare it dead."""


class Worker(WorkerFields, Answer):
    """One worker process."""

    model_config = ConfigDict(frozen=True)

    worker_id: str
    wire: int = 0
    """Version of its announcement. A worker of a release that announced none (0) gets what every worker can run."""
    role: WorkerRole = WorkerRole.SHARED
    host: str
    pid: int
    alive: bool
    """Whether its process exists, as far as can be seen: its state is not `silent`. A dead worker disappears once its
    rollouts are back in the queue."""
    state: WorkerState = WorkerState.ALIVE
    lifeline: bool = False
    """Whether its end would be seen at once. If not (an ACL or a proxy hides its lifeline), it is declared dead after
    30 seconds without a heartbeat."""
    slots: int
    """Rollouts that it runs at once."""
    running: int
    """Rollouts that it runs now."""
    tools: list[str]
    """Names of its tools."""
    agents: list[str]
    termination_strategies: list[str]
    environments: list[str] = Field(default_factory=list)
    """Names of its environments."""
    reads: int = 2
    """The newest schema of the data in Redis that it reads; workers of release 0.2 and before do not say."""
    tokenizers: dict[str, dict[str, str]]
    """Tokenizers that it has loaded: name to fingerprint."""
    own_tokenizers: list[str] | None = None
    """Those that it was started with (`ROLLOUTPOOL_TOKENIZERS`); a worker of an earlier release does not say."""
    loading: list[str] = Field(default_factory=list)
    """Tokenizers that it is loading; rollouts that need one of them wait before their claim."""
    unloaded: list[str] = Field(default_factory=list)
    """Tokenizers that wait for a place to be loaded: it loads a few at once, and owners take turns."""
    draining: bool = False
    """Whether it shuts down: it takes no more rollouts, and ends or gives back those that it has."""
    versions: dict[str, str]
    """Distribution to version, and the `commit` that the worker was built from; older versions do not say that one."""
    started_at: datetime
    last_beat_age_s: float
    """Seconds since its last heartbeat, on Redis' clock."""
    tool_definitions: list[ToolDefinition] = Field(default_factory=list, exclude=True)
    """Its tools in full. `GET /tools` merges them over all workers; this model does not put them on the wire."""


class UnreadableWorker(Answer):
    """A worker process whose announcement this API cannot read. It is counted nowhere, and may take plain rollouts."""

    model_config = ConfigDict(frozen=True)

    worker_id: str
    why: str
    """What of its announcement cannot be read."""
    last_beat_age_s: float
    """Seconds since its last heartbeat, on Redis' clock."""


class Queue(Answer):
    """How many rollouts of one priority class wait for a worker."""

    model_config = ConfigDict(frozen=True)

    outbox: int
    """Accepted, but not in the broker yet."""
    published: int
    """In the broker."""


class WorkersResponse(Answer):
    """`GET /v1/workers`."""

    workers: list[Worker]
    """Oldest first."""
    unreadable: list[UnreadableWorker] = Field(default_factory=list)
    """Workers of another build, whose announcements cannot be read."""
    queues: dict[Priority, Queue] = Field(default_factory=dict)
