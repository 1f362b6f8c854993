"""Staleness: how far a rollout's first turn was behind the newest policy version that this worker has seen."""

from collections.abc import Iterable

from cachetools import LRUCache

from rolloutpool_common.tokens.versions import whole_version

REMEMBERED = 256
"""Endpoints."""


class PolicyVersions:
    """The newest version of each endpoint, where versions are whole numbers."""

    def __init__(self) -> None:
        self._newest: LRUCache[str, int] = LRUCache(REMEMBERED)

    def lag(self, endpoint: str, versions: Iterable[str | None]) -> int | None:
        """Takes note of a rollout's versions."""
        numbers = []
        for version in versions:
            if (number := whole_version(version)) is None:
                return None
            numbers.append(number)
        if not numbers:
            return None
        newest = max(*numbers, self._newest.get(endpoint, 0))
        self._newest[endpoint] = newest
        return newest - numbers[0]
