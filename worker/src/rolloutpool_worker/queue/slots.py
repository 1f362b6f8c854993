"""Slots: how many rollouts this process may still take.

Each rollout holds one slot, so that a slow rollout keeps no other's place. A message may bring several rollouts. It is
reserved as soon as one slot is free; the rest of its rollouts waits in this process for the next slots. Otherwise slots
would idle until there is room for a whole message (docs/decisions/0005).

Example: 16 slots, 2 rollouts per message. Eight messages fill them. When one rollout has ended, a message comes: one of
its rollouts begins, and the other one when the next rollout has ended. Until then nothing more is reserved.
"""

from collections.abc import Callable


class Slots:
    """Counts the slots that are taken. One thread may take while another gives back."""

    def __init__(self, total: int) -> None:
        """Starts with all slots free."""
        self._total = total
        # Two counters, each written by one thread only: Celery's takes, the event loop's gives back.
        self._taken = self._given = 0
        self.on_room: Callable[[], object] = lambda: None
        """Called in the event loop's thread when a message may come again."""

    @property
    def in_use(self) -> int:
        """Slots that are taken, and rollouts that wait for one."""
        return self._taken - self._given

    @property
    def has_room(self) -> bool:
        """Whether a slot is free, and nothing here waits for it."""
        return self.in_use < self._total

    def take(self, count: int) -> None:
        """Takes slots for the rollouts of a message; called in Celery's thread."""
        # All at once, although the rollouts begin one by one: else the hub would reserve the next message too soon.
        self._taken += count

    def give(self) -> None:
        """Gives one slot back, and calls `on_room` if a message may come again; in the event loop's thread."""
        had_room = self.has_room
        self._given += 1
        # Celery's thread may take slots meanwhile. Then the hub is woken for nothing, and asks `has_room` itself.
        if self.has_room and not had_room:
            self.on_room()
