"""FairPlaces: a few places that many owners share, so that one who wants many of them holds up nobody else.

1. Who wants a place waits in the line of its owner.
2. A free place goes to the owner that has fewest; of several, to the one whose turn it is.
3. No owner has more than its share. So a place is left for others, also while all of its own take long.
"""

import asyncio
from collections import Counter, OrderedDict, deque


class FairPlaces:
    """Places of one event loop."""

    def __init__(self, places: int, share: int) -> None:
        """Makes so many places, of which one owner has at most `share`."""
        self._free = places
        self._share = share
        self._taken: Counter[str] = Counter()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Those who wait, by owner; the owner whose turn it is comes first."""

    async def take(self, owner: str) -> None:
        """Waits for a place; who has one gives it back by `give`."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append(mine)
        self._serve()
        try:
            await mine
        except asyncio.CancelledError:
            # Cancelled in the very moment in which it was served.
            if mine.done() and not mine.cancelled():
                self.give(owner)
            raise

    def give(self, owner: str) -> None:
        """Gives a place back."""
        self._free += 1
        self._taken -= Counter([owner])
        self._serve()

    def _serve(self) -> None:
        while self._free:
            for owner, line in list(self._lines.items()):
                # Those who were cancelled while they waited.
                while line and line[0].done():
                    line.popleft()
                if not line:
                    del self._lines[owner]
            served = min(self._lines, key=lambda owner: self._taken[owner], default=None)
            if served is None or self._taken[served] >= self._share:
                return
            self._free -= 1
            self._taken[served] += 1
            self._lines[served].popleft().set_result(None)
            self._lines.move_to_end(served)
