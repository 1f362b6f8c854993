"""Other wires: what a capability has on the paths of protocol v1, beside routes of its own.

1. A body of `POST /rollout` is v1's, unless a wire `takes` it. Each body of a wire has one of its `marks` in it, so
   that v1's bodies are not looked at twice.
2. A caller with a key gets the `health` of a wire at `GET /health`, because v1's trainers have no keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fastapi import Response

from rolloutpool_api.access import Principal
from rolloutpool_api.services import ApiServices
from rolloutpool_common.protocol.health import Health


class OtherWire:
    """A wire of a capability."""

    marks: ClassVar[Sequence[bytes]]
    answers: ClassVar[Mapping[int | str, dict[str, Any]]]
    """What `POST /rollout` answers on it, for the API's description."""
    health_model: ClassVar[type[Health]]

    def takes(self, document: Any) -> bool:
        """Whether a parsed body is of this wire, or too close to it to be taken for v1's."""
        raise NotImplementedError

    async def accept(self, services: ApiServices, document: Any, caller: Principal) -> Response:
        """Answers a body that it takes."""
        raise NotImplementedError

    async def health(self, services: ApiServices, owner: str) -> Health | None:
        """Says more of the pool's health; None where that is not known."""
        raise NotImplementedError
