"""Slots: how many rollouts this process may still take.

Each rollout holds one slot, so that a slow rollout keeps no other's place. A message may bring several rollouts; the
worker reserves one only while there is room for the most that a message may bring.

Example: 16 slots, 4 rollouts per message. Three messages take 12 slots, and a fourth may still come. After it, nothing
is reserved until four rollouts have ended.
"""

from collections.abc import Callable

__all__ = ["Slots"]


class Slots:
    """Counts the slots that are taken. One thread may take while another gives back."""

    def __init__(self, total: int, per_message: int) -> None:
        """Starts with all slots free.

        Args:
            total: rollouts that may run at once.
            per_message: rollouts that one message may bring.
        """
        self._total = total
        self._per_message = per_message
        # Two counters, each written by one thread only: Celery's takes, the event loop's gives back.
        self._taken = self._given = 0
        self.on_room: Callable[[], object] = lambda: None
        """Called in the event loop's thread when there is room for a message again."""

    @property
    def in_use(self) -> int:
        """Slots that are taken."""
        return self._taken - self._given

    @property
    def has_room(self) -> bool:
        """Whether a whole message may come."""
        return self.in_use + self._per_message <= self._total

    def take(self, count: int) -> None:
        """Takes slots for the rollouts of a message; called in Celery's thread.

        Args:
            count: Rollouts in the message. They may be more than are free; then nothing is reserved until enough end.
        """
        # All at once, although the rollouts begin one by one: else the hub would reserve the next message too soon.
        self._taken += count

    def give(self) -> None:
        """Gives one slot back, and calls `on_room` if a whole message may come again; in the event loop's thread."""
        had_room = self.has_room
        self._given += 1
        # Celery's thread may take slots meanwhile. Then the hub is woken for nothing, and asks `has_room` itself.
        if self.has_room and not had_room:
            self.on_room()
