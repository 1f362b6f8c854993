"""Staleness: how far a rollout's first turn was behind the newest policy version that this worker has seen."""

from collections.abc import Iterable

from cachetools import LRUCache

REMEMBERED = 256
"""Endpoints."""
LONGEST = 18
"""Digits of a version that is taken for a number; a longer one is a digest."""


class PolicyVersions:
    """The newest version of each endpoint, where versions are whole numbers."""

    def __init__(self) -> None:
        self._newest: LRUCache[str, int] = LRUCache(REMEMBERED)

    def lag(self, endpoint: str, versions: Iterable[str | None]) -> int | None:
        """Takes note of a rollout's versions."""
        numbers: list[int] = []
        for version in versions:
            if version is None or not (version.isascii() and version.isdigit()) or len(version) > LONGEST:
                return None
            numbers.append(int(version))
        if not numbers:
            return None
        newest = max(*numbers, self._newest.get(endpoint, 0))
        self._newest[endpoint] = newest
        return newest - numbers[0]
