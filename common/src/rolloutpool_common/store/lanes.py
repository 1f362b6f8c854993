"""Lanes: how rollouts that only some workers can run wait, without holding up the others.

In a pool whose workers are alike there are three lanes, one for each priority class. Where some workers lack what a
rollout names (`protocol/offers.py`), it goes as follows:

1. Each batch knows what its rollouts need (`needs.py`), and each worker's record what it offers. Once a second somebody
   notes what the live workers offer (`offers.py`).
2. `reserve.lua` takes a rollout out of its batch's outbox, and finds that not every worker is suited. It puts the
   rollout into the lane of its needs, `default~{digest}`: an outbox of the batch's own, beside the first one, with
   turns of its own. What waits after it in the first outbox goes on at once.
3. From a lane, tickets go to the queues of suited offers. A worker reads, besides the three ordinary queues, those of
   its own offer. Each such queue has as much of the window as its workers.
4. While nobody is suited, the lane waits, and the batch's state says what is missing (`pool_waits.py`).
5. Once every worker is suited, the lane goes back into the ordinary outboxes.

A worker that gets a ticket which it is not suited for gives it back unclaimed (`claim.lua`): the rollout goes into its
lane. So a worker that starts while tickets are on their way does no harm.

A worker of an earlier release reads the ordinary queues alone, and its claims look at no needs. It gets what every live
worker has, and nothing else.
"""

from typing import Any

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.offers import digest_of
from rolloutpool_common.store import keys


async def lanes_of(redis: Any, priority: Priority) -> list[str]:
    """Returns the lanes of a priority class: the class itself, and its parts in which something may wait."""
    needs = await redis.lrange(keys.lanes(priority), 0, -1)
    return [str(priority), *(f"{priority}~{digest_of(one.decode())}" for one in needs)]
