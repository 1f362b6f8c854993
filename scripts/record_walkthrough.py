"""Writes docs/walkthrough.md from a real run: one rollout over the batch API, turn by turn, and one over protocol v1.

    python scripts/record_walkthrough.py [FILE]

Every payload is what went over the wire, with two exceptions, so that two runs write the same file: random ids and
times are replaced by fixed ones, and long lists are cut where they say so. A test compares the committed file with a
new run.
"""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_trainer import LocalPool, callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

__all__ = ["record"]

TARGET = Path(__file__).parents[1] / "docs" / "walkthrough.md"
SHOWN = 8
"""Numbers of a longer list that are shown."""
LINE = 130
"""Characters of JSON on one line."""


@dataclass(frozen=True)
class Call:
    """One model call and its reply."""

    headers: str
    asked: Any
    status: int
    reply_headers: str
    reply: Any

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return len(self.reply["token_ids"])

    @property
    def prefix(self) -> int:
        """Number of the prompt's ids that the reply leaves out."""
        found = re.search(r"X-Echo-Prefix-Length: (\d+)", self.reply_headers)
        return int(found[1]) if found else 0

    @property
    def prompt(self) -> int:
        """Number of tokens that the policy saw."""
        return self.prefix + len(self.reply["prompt_token_ids"])


SHOWN_HEADERS = ("authorization", "idempotency-key", "x-")
"""How the names of the headers begin that the document shows."""

ROLLOUT = {
    "rollout_id": "step12-idx0",
    "messages": [
        {"role": "system", "content": "You are a calculator."},
        {"role": "user", "content": "Calculate (15 + 23) * 4"},
    ],
}
DEFAULTS = {
    "tokenizer_name": "rolloutpool/tiny",
    "sampling_params": {"temperature": 0.7, "max_tokens": 512, "top_k": 50},
    "max_turns": 8,
    "callback_api_key": "trainer-key",
}


class Recorder:
    """An app that passes calls to the trainer's app and keeps each with its reply."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.calls: list[Call] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on unchanged."""
        asked, answered = bytearray(), bytearray()
        start: Message = {}

        async def receive_too() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def send_too(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            answered.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receive_too, send_too)
        if scope["type"] == "http" and scope["path"] == "/v1/chat/completions":
            heads = _headers(scope["headers"]), start["status"], _headers(start["headers"])
            self.calls.append(Call(heads[0], json.loads(asked), *heads[1:], json.loads(answered)))


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the lines of the headers that the document shows."""
    found = {name.decode().lower(): value.decode() for name, value in raw}
    return "\n".join(f"{name.title()}: {found[name]}" for name in sorted(found) if name.startswith(SHOWN_HEADERS))


def record() -> str:
    """Runs both rollouts on a pool of their own; returns the document."""
    tokenizer = load_tokenizer("rolloutpool/tiny")
    with LocalPool(workers=1, flower=False) as pool, httpx.Client(base_url=pool.url, trust_env=False) as http:
        app = callback_app(
            ScriptedPolicy(tokenizer),
            tokenizer=tokenizer,
            tools=pool.url,
            api_key="trainer-key",
            policy_version="step-12",
        )
        recorder = Recorder(app)
        with serve_callback(recorder, ports=[0]) as trainer:
            tools = http.get("/tools").json()
            batch = {"rollouts": [ROLLOUT], "defaults": DEFAULTS, "trainer": {"server_urls": [trainer.url]}}
            accepted = http.post("/v1/batches", json=batch, headers={"Idempotency-Key": "job7-step12"})
            location = accepted.headers["location"]
            page = http.get(f"{location}/results", params={"wait": 30}, timeout=60).json()
            status = http.get(location).json()
            turns = list(recorder.calls)
            v1 = {
                **ROLLOUT,
                **DEFAULTS,
                "rollout_id": "step12-idx1",
                "server_url": trainer.url,
                "metadata": {"debug_trace": True},
            }
            answer = http.post("/rollout", json=v1, timeout=60).json()
    text = "\n".join(
        [
            *_opening(tools, batch, accepted),
            *(line for number in range(1, len(turns) + 1) for line in _turn(number, turns[:number], tokenizer)),
            *_result(page, status, tokenizer),
            *_v1(v1, answer),
        ]
    )
    return _steady(text, trainer.url)


def _opening(tools: Any, batch: Any, accepted: httpx.Response) -> list[str]:
    return [
        "# A rollout, turn by turn",
        "",
        "Every request and reply of one rollout: what your trainer sends, what it must answer, and what it gets back.",
        "[protocol.md](protocol.md) explains each field, [masks.md](masks.md) the mask.",
        "",
        "`python scripts/record_walkthrough.py` writes this page from a real run of Redis, the API, one worker and a",
        "trainer endpoint, which `callback_app` makes from the scripted policy. Random ids and times are replaced by",
        f"fixed ones. Fractions have three digits. Long lists show their first {SHOWN} values and count the rest.",
        "Everything else is what went over the wire.",
        "",
        "## Before: the trainer learns the tools",
        "",
        "The trainer asks for the tools once, at its start, and puts them into its prompts. The worker does not render",
        "the first prompt; it takes the ids that the trainer reports.",
        "",
        *_block("GET /tools", {"tools": [tools["tools"][0], f"… {len(tools['tools']) - 1} more"]}),
        "",
        "## The batch is submitted",
        "",
        *_block("POST /v1/batches\nIdempotency-Key: job7-step12", batch),
        "",
        *_block(
            f"{accepted.status_code} {accepted.reason_phrase}\nLocation: {accepted.headers['location']}",
            accepted.json(),
        ),
        "",
        "The batch is on disk when this answer is sent. A ticket, which holds only ids, goes through Celery to a",
        "worker. The worker claims the rollout and begins.",
        "",
    ]


def _turn(number: int, calls: list[Call], tokenizer: ChatTokenizer) -> list[str]:
    """The section of one turn; `calls` ends with its own."""
    call = calls[-1]
    if number == 1:
        about = [
            "`response_mask` is null, because nothing is between the prompt and the first sample. The trainer renders",
            f"the prompt with its tools ({call.prompt} tokens), samples {call.sampled} tokens, and returns both. The",
            f"worker's ledger begins with these {call.prompt} ids. The worker appends the {call.sampled} sampled ids",
            "unchanged, with mask 1.",
        ]
    else:
        about = _later_turn(calls[-2], call, tokenizer)
    return [
        f"## Turn {number}",
        "",
        *about,
        "",
        *_block(f"POST /v1/chat/completions\n{call.headers}", call.asked),
        "",
        *_block(f"{call.status}\n{call.reply_headers}", call.reply),
        "",
    ]


def _later_turn(last: Call, call: Call, tokenizer: ChatTokenizer) -> list[str]:
    held, zeros = last.prompt + last.sampled, len(call.asked["response_mask"])
    about = [
        f"The tool has run. Its result and the template around it are {zeros} tokens. The worker renders only these,",
        f"and appends them with mask 0; so the request has {zeros} zeros. The prompt that the trainer echoes must be",
        f"the {held} ids that the worker has and these {zeros}: {held} + {zeros} = {call.prompt}. The worker compares",
        "all of them before it accepts the turn.",
    ]
    if call.prefix:
        about += [
            "",
            f"The first {call.prefix} ids have the same digest at worker and trainer, so the reply leaves them out.",
        ]
    counted = (
        len(tokenizer.render_prompt(call.asked["messages"]))
        - len(tokenizer.render_prompt(last.asked["messages"]))
        - last.sampled
    )
    if counted != zeros:
        about += [
            "",
            "In the turn before, the policy sampled the call as",
            f"`{_call_text(tokenizer.decode(last.reply['token_ids']))}`. The parsed message no longer shows how the",
            f"turn was written. Rendering the history again and subtracting lengths would give {counted} zeros",
            f"instead of {zeros}.",
        ]
    return about


def _call_text(text: str) -> str:
    return text.partition("<tool_call>")[2].partition("</tool_call>")[0].strip()


def _result(page: Any, status: Any, tokenizer: ChatTokenizer) -> list[str]:
    (sample,) = page["items"][0]["result"]["samples"]
    rows = []
    for segment in sample["segments"]:
        ids = sample["response_ids"][segment["start"] : segment["start"] + segment["n"]]
        mask = int(segment["kind"] == "sampled")
        text = json.dumps(tokenizer.decode(ids))
        rows.append(f"mask {mask}  turn {segment['turn']}  {segment['n']:3} tokens  {text}")
    return [
        "## The result",
        "",
        "The last turn called no tool, so the rollout is `completed`. Train on `samples`.",
        "",
        *_block("GET …/results?wait=30", page),
        "",
        "This is the response, segment by segment, decoded:",
        "",
        "```",
        *rows,
        "```",
        "",
        "This is the state of the whole batch:",
        "",
        *_block(f"GET /v1/batches/{status['batch_id']}", status),
        "",
    ]


def _v1(asked: Any, answer: Any) -> list[str]:
    return [
        "## The same over protocol v1",
        "",
        "There is one request, which is answered when the rollout has ended, with 200 for every outcome. v1 does not",
        "know `top_k` and drops it. `debug_trace` asks for the trace. The answer holds no ids: on v1 they are in the",
        "trainer's own session.",
        "",
        *_block("POST /rollout", asked),
        "",
        *_block("200 OK", answer),
        "",
    ]


def _block(head: str, body: Any) -> list[str]:
    return ["```", *head.splitlines(), "", *_lines(_short(body)), "```"]


def _lines(value: Any) -> list[str]:
    """Formats JSON; a line is broken only if it would be too long."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) <= LINE or not isinstance(value, dict | list):
        return [flat]
    inner: list[str] = []
    parts = (
        [(f"{json.dumps(k)}: ", v) for k, v in value.items()] if isinstance(value, dict) else [("", v) for v in value]
    )
    for position, (name, part) in enumerate(parts, 1):
        first, *rest = _lines(part)
        lines = [name + first, *rest]
        lines[-1] += "," * (position < len(parts))
        inner += [f"  {line}" for line in lines]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return [opening, *inner, closing]


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    if isinstance(value, list):
        if len(value) > SHOWN and all(isinstance(item, int | float) for item in value):
            return [*(_short(item) for item in value[:SHOWN]), f"… {len(value) - SHOWN} more"]
        return [_short(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value


def _steady(text: str, trainer_url: str) -> str:
    """Replaces what differs from run to run."""
    text = text.replace(trainer_url, "http://trainer:8081")
    calls: dict[str, str] = {}
    call_id = re.compile(r'(?<=id": ")[0-9a-f]{9}(?=")')
    text = call_id.sub(lambda found: calls.setdefault(found[0], f"{len(calls) + 1:09d}"), text)
    for pattern, fixed in (
        (r"\bb[0-9a-f]{32}\b", "b" + "0" * 31 + "1"),
        (r"chatcmpl-[0-9a-f]{32}", "chatcmpl-" + "0" * 31 + "1"),
        (r"(X-(?:Request|Echo-Prefix)-Digest: )[0-9a-f]{32}", r"\g<1>" + "0" * 31 + "1"),
        (r"(X-Tokenizer-Fingerprint: )\S+", r"\g<1>… sha256 of tokenizer / of template / version of transformers"),
        (r'("created": )\d+', r"\g<1>1790000000"),
        (r'("(?:\w+_)?ms": )[\d.]+', r"\g<1>1.0"),
        (r'("\w+_per_second": )[\d.]+', r"\g<1>1.0"),
        (r'("(?:created|finished)_at": )"[^"]+"', r'\g<1>"2026-10-01T12:00:00Z"'),
        (r'("worker": )"[^"]+"', r'\g<1>"worker-host-4711-0a1b2c3d"'),
        (r'("\w*cursor": )"\d+\.\d+-\d+"', r'\g<1>"1.1790000000000-0"'),
        (r'("(?:tokenizer|template)_sha256": )"[0-9a-f]{64}"', r'\g<1>"… 64 hex digits"'),
        (r'("transformers_version": )"[^"]+"', r'\g<1>"5.x"'),
        # Digests of messages, in which the ids of calls are random.
        (r'"[0-9a-f]{16}"(?=[,\]])', '"0000000000000001"'),
    ):
        text = re.sub(pattern, fixed, text)
    return text


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET).write_text(record(), encoding="utf-8")
