"""The keys of webhooks in Redis, for those in `store/keys.py` beside them.

rp:push:due                zset    uid -> ms of the next attempt
rp:push:attempts           hash    uid -> attempts made
rp:push:dead               list    uids whose push was given up, newest first; at most 10,000
rp:push:down:{receiver}    hash    of a receiver that is down: failures, next_ms; expires by itself
rp:batch:{b}:undelivered   set     indexes of its rollouts whose push was given up

Fields of a batch's hash: `push` (where its results go, JSON, its secret encrypted), `push:{state}` (counts),
`held_for_pushes`, `pushed_to`.
"""

PUSH_DUE = "rp:push:due"
PUSH_ATTEMPTS = "rp:push:attempts"
PUSH_DEAD = "rp:push:dead"


def undelivered(batch_id: str) -> str:
    """Returns the rollouts of a batch whose push was given up."""
    return f"rp:batch:{batch_id}:undelivered"
