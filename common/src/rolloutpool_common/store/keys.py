"""The name of every key that rolloutpool keeps in Redis; the Lua twin is `scripts/_prelude.lua`.

rp:batch:{b}            hash    one batch: shared spec, counters, labels; exists from commit to deletion
rp:batch:{b}:items      hash    index -> what that rollout overrides of the shared spec (JSON)
rp:batch:{b}:groups     hash    index -> group, only where there is one
rp:batch:{b}:deadlines  hash    index -> deadline in ms, only where there is one
rp:batch:{b}:group_counts  hash  size:{g}, {status}:{g}, verdict:{g}; only with a group policy
rp:batch:{b}:outbox     list    indexes that are accepted and not published to the broker
rp:batch:{b}:done       stream  {i, s} per ended rollout, in the order of ending; {epoch}.{id} is a cursor
rp:rollout:{uid}        hash    state of one rollout; absent = queued for the first time
rp:rollout:{uid}:journal  list  what a running or requeued rollout has done so far; see `protocol/journal.py`
rp:rollout:{uid}:result string  the result record (JSON, zstd above 4 kB)
rp:rollout:{uid}:evidence  string  a quarantined result (coded like results), kept as long as its batch
rp:runs:{priority}      list    runs that have something to publish, in turn
rp:run:{priority}:{run} list    the run's batches whose outbox is not empty, in order
rp:turn:{priority}      string  "{n} {run}": what this run may still take of its turn; expires by itself
rp:published:{priority} zset    uid -> ms when its ticket was published; removed by the claim
rp:deadlines            zset    uid -> ms
rp:delayed              zset    uid -> ms until which a queued rollout waits outside its outbox
rp:suspects             zset    uid -> ms since when it waits to run alone; removed by its claim or end
rp:open                 string  rollouts that are accepted and have not ended
rp:late                 set     "{b} {group}" whose other rollouts are to be cancelled
rp:dead                 list    uids of rollouts that killed their workers (newest first, capped)
rp:preflight:{id}       string  what a worker found out about callback endpoints; expires by itself
rp:finished             stream  {b} per ended rollout, capped: wake-ups only, the truth is in `done`
rp:workers              zset    worker -> ms of its last beat
rp:worker:{w}           hash    what a worker announces
rp:worker:{w}:claims    set     uids that it runs
rp:worker:{w}:stop      set     tokens of the claims that it must stop running
rp:push:due             zset    uid -> ms of the next push attempt
rp:push:attempts        hash    uid -> attempts made
rp:push:dead            list    uids whose push was given up (newest first, capped)
rp:idempotency:{owner}:{key}  hash  batch, digest: a submit that was made before
rp:name:{owner}:{id}    string  caller's rollout_id -> uid
rp:precancels           zset    {owner}:{id} -> ms until when a cancel waits for its submit; capped, expires by itself
rp:precancelled               set     uids that were cancelled before their submit and have not ended
rp:stage:{b}:*          as rp:batch:{b}:*, a submit that is not committed; expires by itself
rp:ended                zset    batch -> ms when its data may be deleted
rp:cancelling           set     batches whose cancellation has begun and not ended
rp:leader               string  the process that reconciles
rp:epoch                hash    n: how often Redis was started, as far as anybody noticed; run: its run_id then
rp:schema               string  version of all this data, see `schema.py`; absent in version 1
rp:totals               hash    what the pool has done since its Redis was made; see `totals.py`
"""

from rolloutpool_common.protocol.batch import Priority

PREFIX = "rp:"

WORKERS = f"{PREFIX}workers"
FINISHED = f"{PREFIX}finished"
DEADLINES = f"{PREFIX}deadlines"
DELAYED = f"{PREFIX}delayed"
SUSPECTS = f"{PREFIX}suspects"
OPEN = f"{PREFIX}open"
LATE = f"{PREFIX}late"
DEAD = f"{PREFIX}dead"
ENDED = f"{PREFIX}ended"
CANCELLING = f"{PREFIX}cancelling"
PRECANCELLED = f"{PREFIX}precancelled"
LEADER = f"{PREFIX}leader"
EPOCH = f"{PREFIX}epoch"
TOTALS = f"{PREFIX}totals"
PUSH_DUE = f"{PREFIX}push:due"
PUSH_ATTEMPTS = f"{PREFIX}push:attempts"
PUSH_DEAD = f"{PREFIX}push:dead"


def batch(batch_id: str, part: str = "") -> str:
    """A key of one batch: the hash itself, or one of its parts."""
    return f"{PREFIX}batch:{batch_id}:{part}" if part else f"{PREFIX}batch:{batch_id}"


def staged(batch_id: str, part: str) -> str:
    """A part of a batch that is not committed yet."""
    return f"{PREFIX}stage:{batch_id}:{part}"


def rollout(uid: str, part: str = "") -> str:
    """A key of one rollout: the hash itself, its journal or its result."""
    return f"{PREFIX}rollout:{uid}:{part}" if part else f"{PREFIX}rollout:{uid}"


def worker(worker_id: str, part: str = "") -> str:
    """A key of one worker process."""
    return f"{PREFIX}worker:{worker_id}:{part}" if part else f"{PREFIX}worker:{worker_id}"


def runs(priority: Priority) -> str:
    """The runs of a priority class that wait for room in the broker."""
    return f"{PREFIX}runs:{priority}"


def run(priority: Priority, name: str) -> str:
    """The batches of one run that wait for room in the broker."""
    return f"{PREFIX}run:{priority}:{name}"


def preflight(request_id: str) -> str:
    """What a worker found out about callback endpoints."""
    return f"{PREFIX}preflight:{request_id}"


def published(priority: Priority) -> str:
    """The tickets of a priority class that no worker has claimed."""
    return f"{PREFIX}published:{priority}"


def idempotency(owner: str, key: str) -> str:
    """What was submitted under this key."""
    return f"{PREFIX}idempotency:{owner}:{key}"


def name(owner: str, rollout_id: str) -> str:
    """The uid of the rollout that its caller named so."""
    return f"{PREFIX}name:{owner}:{rollout_id}"


def uid_of(batch_id: str, index: int) -> str:
    """The uid of a batch's rollout."""
    return f"{batch_id}-{index}"


def split_uid(uid: str) -> tuple[str, int] | None:
    """Batch and index of a uid; None where it is not one."""
    batch_id, dash, index = uid.rpartition("-")
    if not dash or not index.isascii() or not index.isdigit() or len(index) > 6:
        return None
    return batch_id, int(index)
