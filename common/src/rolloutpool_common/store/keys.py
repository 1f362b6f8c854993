"""The name, type and meaning of every key that rolloutpool keeps in Redis. `scripts/_prelude.lua` has the same names.

{b} stands for a batch's id, {index} for a rollout's place in it, {uid} for `{b}-{index}`, {w} for a worker's id,
{owner} for the name of the API key that submitted. "ms" is a time of Redis' clock in milliseconds since 1970.

A batch, from its commit to its deletion:
rp:batch:{b}               hash    what its rollouts share (JSON), its settings, and counters
rp:batch:{b}:items         hash    index -> what this rollout sets itself (JSON)
rp:batch:{b}:groups        hash    index -> group; only rollouts that have one
rp:batch:{b}:deadlines     hash    index -> ms of its deadline; only rollouts that have one
rp:batch:{b}:idempotent    set     trainer URLs that promised that asking a turn again is safe
rp:batch:{b}:waits:{place} zset    index -> ms until which it counts as waiting there (`waits.py`); expires by itself
rp:batch:{b}:group_counts  hash    size:{group}, with a group policy {status}:{group} and verdict:{group}; only with a
                                   group policy, or for a capability that needs it
rp:batch:{b}:names         hash    index -> the caller's name for it; only rollouts that have one, not for protocol v1
rp:batch:{b}:rows          hash    index -> the row of an ended rollout (`protocol/rows.py`); not for protocol v1
rp:batch:{b}:trunk         hash    0 -> a result whose first turns its rollouts begin with (JSON, compressed)
rp:batch:{b}:outbox        list    indexes that are queued and not published to the broker
rp:batch:{b}:needs         hash    index -> what it needs, spelled; only rollouts that need something else than most
rp:batch:{b}:lanes         set     lanes in which some of its rollouts have waited; the next key has those of one
rp:batch:{b}:outbox~{d}    list    the same as `outbox`, of the rollouts whose needs have this digest (`lanes.py`)
rp:batch:{b}:done          stream  index and status of each ended rollout, in order; {epoch}.{id} is a cursor
rp:stage:{b}:{part}        hash    a part of a batch whose submit is not committed yet; expires by itself
rp:ended                   zset    b -> ms when the batch may be deleted
rp:batches                 zset    b -> ms of its commit, of all batches; rp:batches:{owner} has those of one owner
rp:batches_v1              zset    the same for protocol v1's batches of one, and rp:batches_v1:{owner}
rp:open_batches            set     batches that have not ended, for the audit (`strays.py`)
rp:cancelling              set     batches whose cancellation has begun and is not complete
rp:leases                  zset    b -> ms of the served clock at which its lease is over; until its end (`leases.py`)
rp:late                    set     "{b} {group}": groups with a verdict whose other rollouts are to be cancelled
rp:idempotency:{owner}:{key}  hash batch and digest of the submit that used this key

A rollout:
rp:rollout:{uid}           hash    status, attempt, claim (token, worker, uncalled), counters; absent before its first
rp:rollout:{uid}:journal   list    what it has done so far, while it runs or waits (`protocol/journal.py`)
rp:rollout:{uid}:ungraded  string  its result while it is in a stage of a capability (`capability.py`)
rp:rollout:{uid}:attachments  string  what an engine said of its ids besides log-probabilities (`attachments.py`)
rp:rollout:{uid}:history   list    attempts after which it was queued again, the last 50 (`protocol/history.py`)
rp:rollout:{uid}:result    string  its result (JSON, compressed from 4 kB on)
rp:rollout:{uid}:evidence  string  a quarantined result, in the same form; deleted with its batch
rp:name:{owner}:{name}     string  the uid of the rollout to which its caller gave this name
rp:deadlines               zset    uid -> ms of its deadline
rp:delayed                 zset    uid -> ms from which a queued rollout may run again; it is in no outbox meanwhile
rp:suspects                zset    uid -> ms of its first suspicion, while it waits for an isolated worker (`trials.py`)
rp:trials                  zset    w -> ms until which the isolated worker is awaited that w starts for suspects
rp:isolated                set     workers that try suspects
rp:dead                    list    uids that failed as poison, newest first; at most 10,000, of batches that are kept
rp:open                    string  how many rollouts are accepted and have not ended
rp:precancels              zset    {owner}:{name} -> ms until which a cancel waits for its submit; at most 100,000
rp:precancelled            set     uids that were cancelled before their submit and have not ended

From the outboxes to the broker, per priority class (`outbox.py`):
rp:runs:{priority}         list    runs with something to publish, in the order of their turns
rp:run:{priority}:{run}    list    batches of this run with something in their outbox, in order of submission
rp:turn:{priority}         string  "{n} {run}": the rest of a turn that a full window cut short; expires by itself
rp:published:{priority}    zset    uid -> ms when its ticket was published; removed by the claim
rp:lanes:{priority}        list    needs, spelled, of which rollouts wait in a lane; {priority}~{digest} then stands in
                                   the place of {priority} in `runs`, `run` and `turn`
rp:routed:{priority}:{o}   zset    uid -> ms: those of them that went to the queue of offer {o}; may have claimed ones
rp:routes                  set     {priority}:{o} of the queues that such tickets went to
rp:offers                  hash    what live workers have, by its digest (`offers.lua`); read: somebody has looked
rp:paused                  zset    runs that take no turns (`capabilities/runs`)

What owners hold (`usage.py`):
rp:usage                   hash    {what}:{owner} -> n; what: open, weight, bytes, reserved; {what}: is the sum of all
rp:reserve:{owner}/{run}   hash    bytes: reserved for each open rollout; open: how many; learnt: 1, then it expires
rp:room                    hash    slots of all workers; all, largest, held:{owner}: how many may run; expires by itself

Workers (`workers.py`):
rp:workers                 zset    w -> ms of its last beat
rp:worker:{w}              hash    what it announced, and how many rollouts it runs
rp:condemned               zset    w -> ms when it was declared dead; until it announces itself again, or an hour
rp:obituaries              hash    w -> how its process ended, as its parent saw it; taken by the reconciler
rp:worker:{w}:claims       set     uids that it has claimed
rp:worker:{w}:stop         set     tokens of claims that it must stop running; its next beat takes them
rp:life:{w}                (a channel, no key) the process is subscribed while it exists; `sup:{id}` for a supervisor
rp:trainer:{digest}        string  whether a trainer keeps ids or renders again; expires by itself
rp:preflight:{id}          string  what a worker found out about callback endpoints; expires by itself

Vocabularies of tokenizers (`pieces.py`); {sha} is the sha256 of a tokenizer:
rp:pieces:{sha}            string  what each of its ids reads (JSON, gzip); expires when it is not used
rp:pieces                  hash    sha -> bytes of its vocabulary
rp:pieces_writer:{sha}     string  the worker that writes it at the moment; expires by itself
rp:doubts                  hash    shape of deltas -> since when they may be wrong, when that was found (ms), by whom

The pool:
rp:schema                  string  version of all this data (`schema.py`); absent in version 1
rp:older                   string  1 while a worker lives that does not read this version (`offers.lua`)
rp:epoch                   hash    number: rises with each start of Redis; run_id: of the current start (`epoch.lua`);
                                   data: a name of this data, by chance (`capabilities/osmosis`)
rp:nothing                 none    never there: removing it is a write that changes nothing (`why_no_writes`)
rp:leader                  string  the process that reconciles; expires by itself
rp:served                  hash    the clock of leases and pauses (`tick.lua`): clock_ms, of, seen_ms, quiet_ms
rp:finished                stream  the batch of each ended rollout: wakes readers, who then read `done`; capped
rp:totals                  hash    what the pool has done since its Redis was first used (`totals.py`)
rp:measures                hash    sums of what processes measured (`measures.py`); rp:measures:{endpoint}: of one
rp:endpoints               zset    endpoint -> ms of the last report that named it; those that have sums of their own
rp:processes               zset    process -> ms of its last report
rp:process:{p}             hash    number of its last report, what it is now (JSON); expires by itself
"""

from rolloutpool_common.protocol.batch import Priority

PREFIX = "rp:"

WORKERS = f"{PREFIX}workers"
OBITUARIES = f"{PREFIX}obituaries"
FINISHED = f"{PREFIX}finished"
ENDS = "~ends"
"""Stands in that stream for a batch where the process of a worker has ended."""
DEADLINES = f"{PREFIX}deadlines"
DELAYED = f"{PREFIX}delayed"
SUSPECTS = f"{PREFIX}suspects"
ISOLATED = f"{PREFIX}isolated"
OPEN = f"{PREFIX}open"
USAGE = f"{PREFIX}usage"
ROOM = f"{PREFIX}room"
OPEN_BATCHES = f"{PREFIX}open_batches"
LATE = f"{PREFIX}late"
DEAD = f"{PREFIX}dead"
ENDED = f"{PREFIX}ended"
CANCELLING = f"{PREFIX}cancelling"
PAUSED = f"{PREFIX}paused"
OFFERS = f"{PREFIX}offers"
ROUTES = f"{PREFIX}routes"
PRECANCELLED = f"{PREFIX}precancelled"
LEADER = f"{PREFIX}leader"
EPOCH = f"{PREFIX}epoch"
TOTALS = f"{PREFIX}totals"
ENDPOINTS = f"{PREFIX}endpoints"
PROCESSES = f"{PREFIX}processes"
OTHER_ENDPOINTS = "other"
"""Stands for all endpoints that have no sums of their own."""
PIECES = f"{PREFIX}pieces"
DOUBTS = f"{PREFIX}doubts"
NOTHING = f"{PREFIX}nothing"
"""Never there."""


def batch(batch_id: str, part: str = "") -> str:
    """A key of one batch: the hash itself, or one of its parts."""
    return f"{PREFIX}batch:{batch_id}:{part}" if part else f"{PREFIX}batch:{batch_id}"


def batches(owner: str | None, *, v1: bool) -> str:
    """The batches of one owner, or of all, by the time of their commit; those of protocol v1 apart."""
    kind = f"{PREFIX}batches_v1" if v1 else f"{PREFIX}batches"
    return kind if owner is None else f"{kind}:{owner}"


def staged(batch_id: str, part: str) -> str:
    """A part of a batch whose submit is not committed yet."""
    return f"{PREFIX}stage:{batch_id}:{part}"


def rollout(uid: str, part: str = "") -> str:
    """A key of one rollout: the hash itself, its journal or its result."""
    return f"{PREFIX}rollout:{uid}:{part}" if part else f"{PREFIX}rollout:{uid}"


def worker(worker_id: str, part: str = "") -> str:
    """A key of one worker process."""
    return f"{PREFIX}worker:{worker_id}:{part}" if part else f"{PREFIX}worker:{worker_id}"


def life(name: str) -> str:
    """The channel to which a process is subscribed while it exists (`lifeline.py`)."""
    return f"{PREFIX}life:{name}"


def runs(lane: str) -> str:
    """The runs with something to publish in a lane, which is a priority class or a part of one."""
    return f"{PREFIX}runs:{lane}"


def run(lane: str, name: str) -> str:
    """The batches of one run with something to publish in a lane."""
    return f"{PREFIX}run:{lane}:{name}"


def lanes(priority: Priority) -> str:
    """The needs whose rollouts wait in lanes of a priority class."""
    return f"{PREFIX}lanes:{priority}"


def outbox(batch_id: str, lane: str) -> str:
    """Returns what waits of a batch in a lane."""
    _, tilde, digest = lane.partition("~")
    return batch(batch_id, f"outbox{tilde}{digest}")


def routed(priority: str, offer: str) -> str:
    """The tickets that went to the queue of an offer."""
    return f"{PREFIX}routed:{priority}:{offer}"


def run_key(owner: str, name: str) -> str:
    """Returns the name of a run that no other owner's has, as keys and the batch's field `run` have it."""
    # Names of keys have no slash, so this is not ambiguous; and a batch's own id, which stands for no run, has none.
    return f"{owner}/{name}"


def preflight(request_id: str) -> str:
    """Returns what a worker found out about callback endpoints."""
    return f"{PREFIX}preflight:{request_id}"


def trainer(name: str) -> str:
    """Returns what workers have learned of a trainer; `name` stands for its endpoint, tokenizer and template."""
    return f"{PREFIX}trainer:{name}"


def measures(endpoint: str) -> str:
    """Sums of what processes measured with this endpoint; "" stands for what has none."""
    return f"{PREFIX}measures:{endpoint}" if endpoint else f"{PREFIX}measures"


def process(name: str) -> str:
    """Returns what a process is at this moment."""
    return f"{PREFIX}process:{name}"


def pieces(tokenizer_sha256: str) -> str:
    """The vocabulary of a tokenizer."""
    return f"{PREFIX}pieces:{tokenizer_sha256}"


def pieces_writer(tokenizer_sha256: str) -> str:
    """The worker that writes a vocabulary at the moment."""
    return f"{PREFIX}pieces_writer:{tokenizer_sha256}"


def published(priority: Priority) -> str:
    """The tickets of a priority class that no worker has claimed."""
    return f"{PREFIX}published:{priority}"


def idempotency(owner: str, key: str) -> str:
    """The submit that used this key."""
    return f"{PREFIX}idempotency:{owner}:{key}"


def name(owner: str, rollout_id: str) -> str:
    """The uid of the rollout to which its caller gave this name."""
    return f"{PREFIX}name:{owner}:{rollout_id}"


def uid_of(batch_id: str, index: int) -> str:
    """Makes the uid of a batch's rollout."""
    return f"{batch_id}-{index}"


def split_uid(uid: str) -> tuple[str, int] | None:
    """Splits a uid into its batch's id and its index; None where the text is no uid."""
    batch_id, dash, index = uid.rpartition("-")
    if not dash or not index.isascii() or not index.isdigit() or len(index) > 6:
        return None
    # A rollout has one uid: `-00` would be read as the first of its batch, by some routes and not by others.
    return None if index.startswith("0") and index != "0" else (batch_id, int(index))
