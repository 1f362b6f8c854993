"""The answer of a turn leaves out the prompt ids that the pool proves to have."""

import json
from dataclasses import replace

import pytest

from rolloutpool_common.protocol.turn_headers import Echo
from rolloutpool_common.tokens.arrays import id_digest
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_trainer.endpoint.reply import TurnReply, TurnTokens, turn_reply
from rolloutpool_trainer.endpoint.request import parse_request

REQUEST = parse_request({}, b'{"messages": [{"role": "user", "content": "x"}], "rollout_id": "a"}')
TOKENS = TurnTokens([10, 20, 30, 2**32 - 1], [40], [-1.0])


def answer(echo: tuple[int, str] | None) -> TurnReply:
    return turn_reply({"id": "head"}, TOKENS, "7", replace(REQUEST, echo=echo and Echo(*echo)))


def prompt_ids(reply: TurnReply) -> list[int]:
    found: list[int] = json.loads(reply.body)["prompt_token_ids"]
    return found


def test_all_tokens_are_sent_where_nothing_is_known() -> None:
    reply = answer(None)
    assert json.loads(reply.body) == {
        "id": "head",
        "token_ids": [40],
        "logprobs": [-1.0],
        "prompt_token_ids": TOKENS.prompt_ids,
    }
    assert reply.headers == {"X-Policy-Version": "7"}


def test_a_proved_prefix_is_left_out() -> None:
    reply = answer((3, id_digest([10, 20, 30])))
    assert prompt_ids(reply) == [2**32 - 1]
    assert reply.headers["X-Echo-Prefix-Length"] == "3"


@pytest.mark.parametrize("echo", [(3, id_digest([10, 20])), (5, id_digest(TOKENS.prompt_ids)), (0, id_digest([]))])
def test_a_prefix_that_is_not_ours_is_ignored(echo: tuple[int, str]) -> None:
    reply = answer(echo)
    assert prompt_ids(reply) == TOKENS.prompt_ids
    assert "X-Echo-Prefix-Length" not in reply.headers


def test_the_digest_is_the_ledgers() -> None:
    ledger = TokenLedger()
    ledger.seed(TOKENS.prompt_ids)
    assert ledger.digest.hex() == id_digest(TOKENS.prompt_ids)
