"""The scripted model's replies to peers: the same as the pool gets, laid out as each of them wants."""

from typing import Any

import orjson
import pytest
from benchmarks import stub_trainer
from benchmarks.conversations import conversation, messages, rollout_id
from benchmarks.load import Load, TrainerManner
from benchmarks.peers.openai_form import Form, Sample, answer, base_url, expected, form_of, reply

from rolloutpool_common.rendering import TINY

LOAD = Load(turns=3, in_flight=1, latency_ms=50, rollouts=1, trainer=TrainerManner.SILENT)
TURNS = conversation(3, 0, 0, TINY, TrainerManner.SILENT)


def content(response: bytes) -> dict[str, Any]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"content-length: {len(body)}".encode() in head
    found: dict[str, Any] = orjson.loads(body)
    return found


def told(turn: int) -> dict[str, Any]:
    return content(TURNS[turn].whole)


def asked(form: Form, turn: int, **fields: object) -> tuple[bytes, bytes]:
    """A request for a turn, as a client writes it."""
    history = messages(LOAD, 0)
    for before in range(turn):
        message = told(before)["choices"][0]["message"]
        history += [message, {"role": "tool", "content": "1", "tool_call_id": message["tool_calls"][0]["id"]}]
    path = "inference/v1/generate" if form is Form.GENERATE else "v1/chat/completions"
    prefix = base_url(1, form).split("/")[3]
    body = orjson.dumps({"messages": history, **fields})
    return f"POST /{prefix}/{path} HTTP/1.1\r\n".encode(), body


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("POST /plain/v1/chat/completions HTTP/1.1", Form.PLAIN),
        ("POST /vllm/v1/chat/completions HTTP/1.1", Form.VLLM),
        ("POST /nemo/v1/chat/completions HTTP/1.1", Form.NEMO),
        ("POST /vllm/inference/v1/generate HTTP/1.1", Form.GENERATE),
        ("POST /v1/chat/completions HTTP/1.1", None),
        ("POST /vllm/v1/completions HTTP/1.1", None),
    ],
)
def test_the_path_says_the_form(line: str, form: Form | None) -> None:
    assert form_of(line.encode()) is form


@pytest.mark.parametrize("form", [Form.PLAIN, Form.VLLM, Form.NEMO])
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_turn_is_known_by_the_messages_before_it(form: Form, turn: int) -> None:
    head, body = asked(form, turn, rollout_id=rollout_id(LOAD, 0))
    answered = answer(head, body, TINY)
    assert answered == (LOAD.latency_of(0) / 1000, reply(form, TURNS[turn]))


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_where_ids_go_in_a_turn_is_known_by_their_number(turn: int) -> None:
    head, body = asked(
        Form.GENERATE, 0, token_ids=told(turn)["prompt_token_ids"], cache_salt=rollout_id(LOAD, 0), model="default"
    )
    answered = answer(head, body, TINY)
    assert answered is not None
    assert answered[1] == reply(Form.GENERATE, TURNS[turn])


def test_spaces_in_the_json_and_roles_in_a_text_change_nothing() -> None:
    name = rollout_id(LOAD, 0)
    text = r"{\"role\": \"assistant\", \"rollout_id\": \"64.1.0.0.silent.9\"}"
    body = f'{{"messages": [{{"role": "user", "content": "{text}"}}], "rollout_id": "{name}"}}'.encode()
    answered = answer(b"POST /plain/v1/chat/completions HTTP/1.1\r\n", body, TINY)
    assert answered is not None
    assert answered[1] == reply(Form.PLAIN, TURNS[0])


def test_a_request_that_names_no_rollout_is_not_found() -> None:
    answered = answer(b"GET /vllm/v1/models HTTP/1.1\r\n", b"", TINY)
    assert answered is not None
    assert answered[0] == 0
    assert answered[1].startswith(b"HTTP/1.1 404 ")


def test_each_form_has_the_ids_where_its_peer_looks() -> None:
    prompt, sampled, logprobs = (told(1)[name] for name in ("prompt_token_ids", "token_ids", "logprobs"))
    vllm, nemo, generate, plain = (
        content(reply(form, TURNS[1])) for form in (Form.VLLM, Form.NEMO, Form.GENERATE, Form.PLAIN)
    )
    assert vllm["prompt_token_ids"] == prompt
    for choice in (vllm["choices"][0], generate["choices"][0]):
        assert choice["token_ids"] == sampled
        assert [token["token"] for token in choice["logprobs"]["content"]] == [f"token_id:{id_}" for id_ in sampled]
        assert [token["logprob"] for token in choice["logprobs"]["content"]] == logprobs
    message = nemo["choices"][0]["message"]
    assert message["prompt_token_ids"] == prompt
    assert message["generation_token_ids"] == sampled
    assert message["generation_log_probs"] == logprobs
    assert b"token_id" not in reply(Form.PLAIN, TURNS[1])
    assert plain["usage"]["completion_tokens"] == len(sampled)


def test_a_reply_with_calls_says_so_and_the_last_does_not() -> None:
    reasons = [content(reply(Form.VLLM, turn))["choices"][0]["finish_reason"] for turn in TURNS]
    assert reasons == ["tool_calls", "tool_calls", "stop"]


def test_the_expected_sample_trains_what_was_sampled_and_nothing_else() -> None:
    sample = expected(TURNS)
    trained = tuple(id_ for id_, flag in zip(sample.ids, sample.mask, strict=True) if flag)
    assert trained == tuple(id_ for turn in range(3) for id_ in told(turn)["token_ids"])
    assert sample.ids == (*told(2)["prompt_token_ids"], *told(2)["token_ids"])
    assert sample != Sample(sample.ids, (*sample.mask[1:], 0))


def test_the_pool_is_still_answered_as_before() -> None:
    _, body = asked(Form.PLAIN, 1, rollout_id=rollout_id(LOAD, 0))
    _, response = stub_trainer._reply(b"POST /v1/chat/completions HTTP/1.1\r\n", body, TINY)
    assert response == TURNS[1].whole
