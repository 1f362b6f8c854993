"""The answer of a turn leaves out the prompt ids that the pool proves to have."""

import json
from dataclasses import replace

from rolloutpool_common.protocol.turn_headers import Echo
from rolloutpool_common.tokens.arrays import id_digest
from rolloutpool_trainer.endpoint.reply import TurnReply, TurnTokens, turn_reply
from rolloutpool_trainer.endpoint.request import parse_request

REQUEST = parse_request({}, b'{"messages": [{"role": "user", "content": "x"}], "rollout_id": "a"}')
TOKENS = TurnTokens([10, 20, 30, 2**32 - 1], [40], [-1.0])


def answer(echo: tuple[int, str] | None) -> TurnReply:
    return turn_reply({"id": "head"}, TOKENS, "7", replace(REQUEST, echo=echo and Echo(*echo)))


def prompt_ids(reply: TurnReply) -> list[int]:
    found: list[int] = json.loads(reply.body)["prompt_token_ids"]
    return found


def test_a_proved_prefix_is_left_out() -> None:
    reply = answer((3, id_digest([10, 20, 30])))
    assert prompt_ids(reply) == [2**32 - 1]
    assert reply.headers["X-Echo-Prefix-Length"] == "3"
