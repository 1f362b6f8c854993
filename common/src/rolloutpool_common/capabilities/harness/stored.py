"""Says what sessions keep in Redis. What happens to their calls is in `sessions`.

rp:rollout:{uid}:session   hash    place, lease (token of the runner that has the place), reuse (0: a new place gets no
                                   replies of older ones), deaths, losses, calls, open, replied, bytes, over (JSON, its
                                   end), idle (since when, ms); of each call n: held:{n} (who holds its connection, or
                                   `cut`), id:{n}, place:{n} (of the program that made it last); asked:{digest}: calls
rp:rollout:{uid}:calls     list    the calls in their order: how many replies there were, the digests of what was said
                                   for the first time (with commas), then the call (JSON)
rp:rollout:{uid}:said      hash    digest -> a message or a list of tools (JSON), each stored once
rp:rollout:{uid}:replies   hash    n -> its place among the replies, then the reply (JSON)
rp:places:wanted           zset    uid -> ms since when it wants a runner to open a place for its program
rp:places:held             zset    uid -> ms until which its runner has the place
rp:places:heard            hash    when a runner was last heard of: ms, and the start of Redis (`rp:epoch`);
                                   started: since when that start is known, ms; 0 of the first one
rp:door:{address}          string  the present start of the door at this address; expires by itself
rp:door:{address}:ready    (a channel, no key) "{uid} {n} {reply}" of calls that were answered
rp:worker:{w}:calls        (a channel, no key) uids of sessions here that have something new, and short calls

The field `harness` of a batch's hash holds the secret of its keys. Three keys of a rollout go with its end; of
`session`, place, lease, calls and over stay until its batch is deleted.
"""

from collections.abc import Iterable, Mapping
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from rolloutpool_common.capability import Encryption, Gauge, StoredCapability

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch import BatchRequest


PLACES = "rp:places"


class Harness(StoredCapability):
    """Sessions of harnesses, as the store sees them."""

    name = "harness"
    mark = "harness"
    rollout_parts = ("session", "calls", "said", "replies")
    gauges = (
        Gauge("places_wanted", "Sessions that wait for a runner to start their program.", f"{PLACES}:wanted"),
        Gauge("places_held", "Programs that runners have started and not ended.", f"{PLACES}:held"),
    )

    def asked(self, batch: "BatchRequest | None", rollouts: Iterable[Mapping[str, Any]]) -> bool | None:
        """Whether any of its rollouts is led by a harness."""
        return any(options.get("harness") is not None for options in rollouts) or None

    def kept(self, asked: Any, secrets: Encryption) -> Mapping[str, str]:
        """A secret for the keys of this batch, encrypted."""
        return {self.mark: secrets.encrypt(token_hex(32))}

    def forget(self, pipe: Any, uid: str) -> None:
        """Takes a rollout off the places."""
        pipe.zrem(f"{PLACES}:wanted", uid)
        pipe.zrem(f"{PLACES}:held", uid)
