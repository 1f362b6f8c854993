"""The record in a result: small, without secrets, and left out where nobody wants it."""

import orjson
from tests.support.inside_worker import InsideWorker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.secrets import SECRETS
from tests.support.trainer_script import ADD, say

from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_worker.rollout.record import KEPT_OPTIONS

KEY = "a very secret key"
OPTIONS = {"max_turns": 64, "max_tokens_total": 100_000, "sampling_params": {"temperature": 0.7, "top_k": 5}}


async def rollout(inside: InsideWorker, tokenizer: ChatTokenizer, turns: int, **options: object) -> RolloutResult:
    async with scripted_trainer(tokenizer, *[say(ADD)] * (turns - 1), say()) as trainer:
        return await inside.run_one(server_url=trainer.url, **OPTIONS, **options)


def growth(result: RolloutResult) -> int:
    """Bytes that the record takes."""
    return len(encode_result(result)) - len(encode_result(result.model_copy(update={"replay": None})))


async def test_it_takes_little(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    three, many = [await rollout(inside, tokenizer, turns) for turns in (3, 64)]
    assert [len(result.turns) for result in (three, many)] == [3, 64]
    assert growth(three) < 400
    # A digest for each turn.
    assert growth(many) - growth(three) <= 61 * 20
    assert growth(many) < 0.02 * len(encode_result(many))
    assert orjson.loads(encode_result(three))["replay"].keys() == {
        "options",
        "given",
        "tools_digest",
        "turns",
        "samples",
    }


async def test_it_keeps_what_differs_from_the_defaults(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    result = await rollout(inside, tokenizer, 2)
    assert result.replay is not None
    assert result.replay.options == {
        **OPTIONS,
        "tokenizer_name": "rolloutpool/tiny",
        "sampling_params": OPTIONS["sampling_params"],
    }
    assert (result.replay.given, result.replay.opened, len(result.replay.turns)) == (1, 0, 2)


async def test_neither_key_nor_endpoint_is_in_it(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    sealed = SECRETS.encrypt(KEY)
    result = await rollout(inside, tokenizer, 2, callback_api_key=sealed)
    text = encode_result(result).decode()
    assert result.replay is not None
    assert not any(part in text for part in (KEY, sealed, "callback_api_key", "127.0.0.1"))
    assert not KEPT_OPTIONS & {"callback_api_key", "server_url"}


async def test_it_can_be_left_out(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    result = await rollout(inside, tokenizer, 2, replay_record=False)
    assert result.replay is None
    assert result.messages
