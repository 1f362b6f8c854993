"""Foreign replies: answers that say themselves that they belong to another request.

A proxy or server that loses count of its answers gives one request the reply of another. With equal prompts, as in a
group of rollouts, nothing in such a reply looks wrong. So a request has a name, and who answers repeats it:

| who answers | the request's name | comes back as |
| --- | --- | --- |
| a callback | header `Idempotency-Key` | header `X-Turn-Key`, exactly |
| vLLM | `request_id` | `id` or `request_id`, with something before it: `cmpl-NAME`, `generate-tokens-NAME` |
| SGLang | `rid` | `meta_info.id` |

Whether the own request was answered is then as unknown as if the connection had broken, and it is treated like that.
The connection is closed, because whatever comes by it next may be foreign as well. A reply without a name is accepted:
not everybody repeats it. What engines repeat is read by `capabilities.engines.reply`.
"""

from collections.abc import Mapping

import httpx

from rolloutpool_common.protocol.turn_headers import HEADER_TURN_KEY, names_another_turn

TURN_KEY = HEADER_TURN_KEY.lower()


class ForeignReply(httpx.RemoteProtocolError):
    """The reply that came belongs to another request."""

    def __init__(self) -> None:
        """The message is what the rollout's failure says."""
        super().__init__("the reply names another turn: a proxy or server between mixes answers")


def check_turn(headers: Mapping[str, str], key: str | None) -> None:
    """Compares the name that a callback's reply gives back."""
    said = headers.get(TURN_KEY)
    # A second one, of a proxy that adds what was there already, is no contradiction.
    if said is not None and said != key and names_another_turn(said.split(", "), key):
        raise ForeignReply()
