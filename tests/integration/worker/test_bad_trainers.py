"""Whatever a trainer replies, its rollout ends in a failure that names the boundary, and no other rollout suffers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from tests.support.batches import NOWHERE
from tests.support.pool import Pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Exchange, Step, body, close, hang, lost, raw, say, status

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.v1.response import V1Status, to_v1
from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer.endpoint.app import CallbackApp

TRUNCATION = "Invalid conversation state (possible context truncation): "
NETWORK = "Network error communicating with trainer"
INTERNAL = "Internal server error"


def edited(edit: Callable[[dict[str, Any]], None]) -> Step:
    """A right reply, edited."""

    def change(exchange: Exchange) -> None:
        document = exchange.reply
        edit(document)
        exchange.body = orjson.dumps(document)

    return say("8", change=change)


async def trickle(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await exchange.raw(b"1\r\n \r\n")
        # Slower than the worker is willing to wait for the whole, faster than it waits for a byte.
        await asyncio.sleep(0.2)


async def flood(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _megabyte in range(100):
        await exchange.raw(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")


def id_beyond_vocabulary(document: dict[str, Any]) -> None:
    document["token_ids"][0] = TOKENIZER.vocab_size


def prompt_id_beyond_vocabulary(document: dict[str, Any]) -> None:
    document["prompt_token_ids"][-1] = TOKENIZER.vocab_size


def foreign_prompt(document: dict[str, Any]) -> None:
    document["prompt_token_ids"] = TOKENIZER.render_prompt([{"role": "user", "content": "Something else"}])


def message(**changes: Any) -> list[dict[str, Any]]:
    return [{"message": {"role": "assistant", "content": "8", **changes}}]


@dataclass(frozen=True)
class Row:
    """A misdeed and what it must come to."""

    misdeed: Step
    category: Category
    v1_text: str
    """Exact, or the beginning where it ends in a space."""
    boundary: Boundary = Boundary.TRAINER
    http_status: int | None = None
    calls: int = 1
    """On the batch API; protocol v1 never calls twice."""
    retryable: bool | None = False
    """Null where that depends on what the trainer promises."""
    v1_category: str | None = None
    """`extra_fields.error_category` where it is not the record's own; "" where there is none."""
    says: str = ""
    """Part of the message."""


PROTOCOL: dict[str, Any] = {"category": Category.TRAINER_PROTOCOL_ERROR, "v1_text": TRUNCATION, "v1_category": ""}
LOST: dict[str, Any] = {"category": Category.NETWORK_ERROR, "v1_text": NETWORK, "retryable": None}
CLIENT = "Trainer client error (status {}) - check request"
SERVER = "Trainer server error (status {}) - retryable"
AT_ONCE = {"retry_after": "0"}
TOKENIZER = load_tokenizer(str(TINY_TOKENIZER))

ROWS: dict[str, Row] = {
    "not JSON": Row(body(b"<html>502 Bad Gateway</html>"), **PROTOCOL),
    "true for an id": Row(say("8", token_ids=[True], logprobs=[-0.5]), **PROTOCOL, says="token_ids.0"),
    "id beyond the vocabulary": Row(edited(id_beyond_vocabulary), **PROTOCOL),
    "prompt id beyond the vocabulary": Row(
        edited(prompt_id_beyond_vocabulary),
        category=Category.TOKENIZER_MISMATCH,
        boundary=Boundary.TOKENIZER,
        v1_text=f"{INTERNAL}: tokenizer_mismatch: ",
        v1_category="internal_error",
        says="The trainer serves another model",
    ),
    "tool call without id": Row(
        say("8", choices=message(tool_calls=[{"function": {"name": "add", "arguments": "{}"}}])), **PROTOCOL
    ),
    "empty choices": Row(
        say("8", choices=[]),
        category=Category.TRAINER_PROTOCOL_ERROR,
        v1_text=f"{INTERNAL}: trainer_protocol_error: ",
        v1_category="internal_error",
    ),
    "another prompt": Row(
        edited(foreign_prompt),
        category=Category.TOKENIZER_MISMATCH,
        boundary=Boundary.TOKENIZER,
        v1_text=f"{INTERNAL}: tokenizer_mismatch: ",
        v1_category="internal_error",
    ),
    "302": Row(
        status(302, location="/elsewhere"),
        category=Category.TRAINER_ERROR,
        v1_text="Trainer returned error (status 302)",
        http_status=302,
    ),
    "404": Row(status(404), category=Category.TRAINER_CLIENT_ERROR, v1_text=CLIENT.format(404), http_status=404),
    "422": Row(
        status(422),
        category=Category.MASK_REFUSED,
        v1_text=CLIENT.format(422),
        http_status=422,
        v1_category="trainer_client_error",
    ),
    "429": Row(
        status(429, **AT_ONCE),
        category=Category.RATE_LIMITED,
        v1_text="Trainer rate limit exceeded (429)",
        http_status=429,
        calls=3,
        retryable=True,
    ),
    "503": Row(
        status(503, **AT_ONCE),
        category=Category.TRAINER_SERVER_ERROR,
        v1_text=SERVER.format(503),
        http_status=503,
        calls=3,
        retryable=True,
    ),
    # A gateway that timed out does not know whether the policy sampled: asking again is not safe.
    "504": Row(
        status(504, **AT_ONCE),
        category=Category.TRAINER_SERVER_ERROR,
        v1_text=SERVER.format(504),
        http_status=504,
        retryable=False,
    ),
    "hangs": Row(hang(), **LOST),
    "trickles": Row(trickle, **LOST),
    "100 MB": Row(flood, says="larger than 2,000,000 bytes", **PROTOCOL),
    "cut in the body": Row(lost(say("8")), **LOST),
    "cut at once": Row(close(), **LOST),
    "not HTTP": Row(raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), **LOST),
}


def check(result: RolloutResult, row: Row) -> None:
    assert (result.status, result.finish_reason) == (RolloutStatus.FAILED, FinishReason.ERROR)
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.boundary, failure.category) == (FailureKind.INFRA, row.boundary, row.category)
    assert (failure.http_status, failure.turn) == (row.http_status, 1)
    assert row.retryable in (None, failure.retryable)
    assert row.says in failure.message
    assert "Calculate" not in failure.message
    # Nothing that could be taken for data.
    assert result.samples == []
    assert result.alignment is None


def check_v1(result: RolloutResult, row: Row) -> None:
    answer = to_v1(result, tokenizer_name="rolloutpool/tiny", timeout_seconds=600.0)
    assert (answer.status, answer.finish_reason, answer.final_messages) == (V1Status.ERROR, None, [])
    assert answer.error_message is not None
    if row.v1_text.endswith(" "):
        assert answer.error_message.startswith(row.v1_text)
    else:
        assert answer.error_message == row.v1_text
    expected: dict[str, Any] = {"error_category": row.v1_category or row.category.value}
    if row.v1_category == "":
        expected = {}
    if row.http_status is not None:
        expected["http_status"] = row.http_status
    assert answer.extra_fields == expected
    assert answer.metrics is not None
    assert (answer.metrics.num_llm_calls, answer.metrics.max_context_tokens) == (0, 0)
    assert answer.metrics.total_latency_ms > 0


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
async def test_a_bad_reply_ends_its_own_rollout_and_no_other(
    row: Row, pool: Pool, tokenizer: ChatTokenizer, policy: CallbackApp, trainer: str
) -> None:
    async with scripted_trainer(tokenizer, row.misdeed, tells=False) as bad:
        uids = await pool.submit(
            [{"server_url": bad.url}, {"server_url": bad.url, "v1": True}, {"server_url": trainer}]
        )
        batch, v1, healthy = [await pool.result(uid) for uid in uids]
        calls = [len(bad.of(uid)) for uid in uids]
    check(batch, row)
    check_v1(v1, row)
    assert calls == [row.calls, 1, 0]
    assert (healthy.status, healthy.alignment) == (RolloutStatus.COMPLETED, "exact")
    assert list(policy.get_session(healthy.rollout_id).response_ids) == healthy.samples[0].response_ids


async def test_a_reply_without_prompt_ids_proves_nothing(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, say("8", prompt_token_ids=None), tells=False) as bad:
        strict, v1, lenient = await pool.run(
            [{}, {"v1": True}, {"allow_unverified": True}], shared={"server_url": bad.url}
        )
    assert strict.failure is not None
    assert (strict.failure.boundary, strict.failure.category) == (Boundary.TOKENS, Category.UNVERIFIED)
    assert v1.failure is not None
    assert v1.failure.category is Category.TRAINER_PROTOCOL_ERROR
    assert (lenient.status, lenient.alignment) == (RolloutStatus.COMPLETED, "unverified")


@pytest.mark.parametrize(
    "url",
    [
        NOWHERE,
        "http://127.0.0.1:99999",
        "http://no-such-host.invalid",
        "http://" + "a" * 300,
        "http://[::1",
        "http://",
        "https://127.0.0.1:9",
    ],
)
async def test_an_unreachable_trainer_is_a_network_error(pool: Pool, url: str) -> None:
    # One after the other: together their calls without a connection can open the port's breaker between two calls of
    # the first, which then waits for the trainer instead of failing.
    (batch,) = await pool.run(shared={"server_url": url})
    (v1,) = await pool.run([{"v1": True}], shared={"server_url": url})
    for result in (batch, v1):
        assert result.failure is not None
        assert (result.failure.boundary, result.failure.category) == (Boundary.TRAINER, Category.NETWORK_ERROR)
        assert result.failure.retryable or url != NOWHERE
    answer = to_v1(v1, tokenizer_name="t", timeout_seconds=600.0)
    assert (answer.error_message, answer.extra_fields) == (NETWORK, {"error_category": "network_error"})


async def test_an_unknown_tokenizer_is_the_request_s_fault(pool: Pool, trainer: str) -> None:
    batch, v1, healthy = await pool.run(
        [{"tokenizer_name": "no/such-tokenizer"}, {"tokenizer_name": "no/such-tokenizer", "v1": True}, {}],
        shared={"server_url": trainer},
    )
    assert batch.failure is not None
    assert (batch.failure.kind, batch.failure.boundary) == (FailureKind.REQUEST, Boundary.TOKENIZER)
    assert (batch.failure.category, batch.failure.retryable) == (Category.TOKENIZER_ERROR, False)
    answer = to_v1(v1, tokenizer_name="no/such-tokenizer", timeout_seconds=600.0)
    assert answer.error_message is not None
    assert answer.error_message.startswith("Failed to load tokenizer: no/such-tokenizer: ")
    assert batch.failure.message.endswith(
        answer.error_message.removeprefix("Failed to load tokenizer: no/such-tokenizer: ")
    )
    assert answer.extra_fields == {"error_category": "tokenizer_error"}
    assert answer.metrics is not None
    numbers = answer.metrics.model_dump()
    assert numbers.pop("total_latency_ms") > 0
    assert set(numbers.values()) == {0}
    assert healthy.status is RolloutStatus.COMPLETED
