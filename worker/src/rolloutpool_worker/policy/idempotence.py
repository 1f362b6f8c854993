"""Idempotent trainers: of which it is known that the same turn may be asked again.

If a worker dies during a model call, the trainer may have sampled the turn. A trainer that keeps its replies by
`Idempotency-Key` answers the repeated request with the reply of then, so nothing is lost and nothing is sampled twice.
It says so by the header `X-Idempotent-Turns: true`, and `callback_app` does. It counts as said

1. for a batch, once one of its rollouts got a reply with the header (`ModelCalls.note_idempotent`, durable);
2. for a process, until a reply of the same port comes without the header;
3. at last, when a turn is in doubt and nothing is known, by the answer to `GET /health`. So it is also known where a
   worker died during the batch's very first call.

What the rollout's own option says (`idempotent`) comes before all of this.
"""

from collections.abc import Mapping

from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENT

REMEMBERED = 4096
"""Ports, and batches with their ports. Beyond that all are forgotten, because the next reply says it again."""
_HEADER = HEADER_IDEMPOTENT.lower()


def says_idempotent(headers: Mapping[str, str]) -> bool:
    """Whether a trainer's reply says that it may be asked again; names are in lower case."""
    return headers.get(_HEADER, "").lower() == "true"


class IdempotentTrainers:
    """Holds what this process has heard from trainers, by port (`http://host:port`)."""

    def __init__(self) -> None:
        self._said: dict[str, bool] = {}
        self._noted: set[tuple[str, str]] = set()

    def hear(self, origin: str, headers: Mapping[str, str]) -> None:
        """Remembers what the headers of a trainer's answer say."""
        said = headers.get(_HEADER, "").lower() == "true"
        if self._said.get(origin) is not said:
            if len(self._said) >= REMEMBERED:
                self._said.clear()
            self._said[origin] = said

    def said(self, origin: str) -> bool:
        """Whether the last answer of this port said that it is idempotent."""
        return self._said.get(origin, False)

    def is_news(self, batch_id: str, origin: str) -> bool:
        """Whether a port's promise is to be noted with a batch: once in this process."""
        if not self._said.get(origin) or (batch_id, origin) in self._noted:
            return False
        if len(self._noted) >= REMEMBERED:
            self._noted.clear()
        self._noted.add((batch_id, origin))
        return True
