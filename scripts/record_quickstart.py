"""Writes the recorded part of docs/quickstart.md from a real run: one rollout over the batch API, turn by turn.

    python scripts/record_quickstart.py [FILE]

FILE is a copy of the page; without it, the page itself is written. Every payload is what went over the wire, with three
exceptions, so that two runs write the same: random ids and times are replaced by fixed ones, long lists are cut where
they say so, and what was shown before is left out where that is said. A test compares the committed page with a run.
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

TARGET = Path(__file__).parents[1] / "docs" / "quickstart.md"
RECORDED = re.compile(r"(<!-- recorded -->\n).*(<!-- end -->)", re.DOTALL)
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
    def prompt(self) -> int:
        """Number of tokens that the policy saw."""
        return len(self.reply["prompt_token_ids"])


SHOWN_HEADERS = ("authorization", "idempotency-key", "x-")
"""How the names of the headers begin that the page shows."""
SHOWN_FIELDS = ("uid", "status", "finish_reason", "alignment", "samples")
"""Fields of a result that it shows."""

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


def recorded(page: str) -> str:
    """Returns a page with its recorded part as a new run says it."""
    part = record()
    return RECORDED.sub(lambda found: f"{found[1]}{part}\n{found[2]}", page)


def record() -> str:
    """Runs a rollout on a pool of its own; returns what went over the wire, with words between."""
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
            batch = {"rollouts": [ROLLOUT], "defaults": DEFAULTS, "trainer": {"server_urls": [trainer.url]}}
            accepted = http.post("/v1/batches", json=batch, headers={"Idempotency-Key": "job7-step12"})
            location = accepted.headers["location"]
            page = http.get(f"{location}/results", params={"wait": 30}, timeout=60).json()
    first, second, *_ = recorder.calls
    lines = [
        *_block("POST /v1/batches\nIdempotency-Key: job7-step12", batch),
        "",
        *_block(f"{accepted.status_code} {accepted.reason_phrase}\nLocation: {location}", accepted.json()),
        "",
        "The batch is on disk when this answer is sent. A worker claims the rollout and asks for turn 1. The mask is",
        "null, because nothing was added before the first sample. The trainer renders the prompt with its tools",
        f"({first.prompt} tokens), samples {first.sampled} tokens, and returns both. The worker appends the sampled",
        "ids unchanged, with mask 1.",
        "",
        *_block(f"POST /v1/chat/completions\n{first.headers}", first.asked),
        "",
        *_block(f"{first.status}\n{first.reply_headers}", first.reply),
        "",
        *_second_turn(first, second, tokenizer),
        "",
        *_result(page, tokenizer),
    ]
    return _steady("\n".join(lines), trainer.url)


def _second_turn(first: Call, second: Call, tokenizer: ChatTokenizer) -> list[str]:
    held, zeros = first.prompt + first.sampled, len(second.asked["response_mask"])
    counted = (
        len(tokenizer.render_prompt(second.asked["messages"]))
        - len(tokenizer.render_prompt(first.asked["messages"]))
        - first.sampled
    )
    shown = len(first.asked["messages"])
    asked = {
        "messages": [f"… the {shown} of turn 1", *second.asked["messages"][shown:]],
        "response_mask": second.asked["response_mask"],
    }
    return [
        f"The tool runs. Its result and the template around it are {zeros} tokens, so turn 2 has {zeros} zeros. The",
        f"prompt that the trainer reports must be the {held} ids that the worker has and these {zeros}, id by id:",
        f"{second.prompt} in all. The policy had sampled its call as",
        f"`{_call_text(tokenizer.decode(first.reply['token_ids']))}`.",
        f"Rendering the parsed call again and subtracting lengths would give {counted} zeros.",
        "",
        *_block(f"POST /v1/chat/completions\n{second.headers}", asked),
        "",
        "The other keys are those of turn 1.",
    ]


def _call_text(text: str) -> str:
    return text.partition("<tool_call>")[2].partition("</tool_call>")[0].strip()


def _result(page: Any, tokenizer: ChatTokenizer) -> list[str]:
    result = page["items"][0]["result"]
    (sample,) = result["samples"]
    rows = []
    for segment in sample["segments"]:
        ids = sample["response_ids"][segment["start"] : segment["start"] + segment["n"]]
        mask = int(segment["kind"] == "sampled")
        text = json.dumps(tokenizer.decode(ids))
        rows.append(f"mask {mask}  turn {segment['turn']}  {segment['n']:3} tokens  {text}")
    item = {"cursor": page["items"][0]["cursor"], "result": {name: result[name] for name in SHOWN_FIELDS}}
    return [
        "Turn 3 calls no tool, so the rollout is `completed`. These are some of the fields of its result:",
        "",
        *_block("GET …/results?wait=30", {**page, "items": [item]}),
        "",
        "The response, segment by segment, decoded:",
        "",
        "```",
        *rows,
        "```",
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
        (r'("\w*cursor": )"\d+\.\d+-\d+"', r'\g<1>"1.1790000000000-0"'),
    ):
        text = re.sub(pattern, fixed, text)
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    page.write_text(recorded(page.read_text(encoding="utf-8")), encoding="utf-8")
