"""A door as a process, a policy that programs can lead, and a program that calls it in any of the three dialects.

The policy counts what it has sampled, so that samples are compared with what was really sampled, and with nothing that
the pool says of itself. The program shares no code with the door: it writes and reads each dialect by hand.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
from tests.support.forked_worker import ForkedWorker, forked
from tests.support.imitated_engine import Answer, logprob_of
from tests.support.inside_api import NO_TLS
from tests.support.ports import free_port
from tests.support.secrets import secrets_file

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

Dialect = Literal["chat", "responses", "messages"]
SHELL = {
    "name": "shell",
    "description": "Runs a command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
_ROUNDS = re.compile(r"do (\d+)")


class LedPolicy:
    """Makes as many tool calls as the last user's message says (`do 3`), then answers."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.sampled: list[list[int]] = []
        """The ids of each turn that it was asked for."""

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        messages = params.messages
        last = max(place for place, one in enumerate(messages) if one["role"] == "user")
        asked = _ROUNDS.search(str(messages[last]["content"]))
        done = sum(one["role"] == "tool" for one in messages[last:])
        if asked and done < int(asked[1]) and params.tools:
            name = params.tools[0]["function"]["name"]
            # Compact, as no template prints it: the trainer's own text is what comes back.
            call = json.dumps({"name": name, "arguments": {"command": f"echo {done}"}}, separators=(",", ":"))
            text = f"<tool_call>\n{call}\n</tool_call>"
        else:
            text = f"Said after {done}: {str(messages[-1]['content'])[-20:]}"
        ids = self._tokenizer.encode(text)
        assert self._tokenizer.close_id is not None
        ids.append(self._tokenizer.close_id)
        self.sampled.append(ids)
        return Generation(token_ids=ids, logprobs=[-0.25] * len(ids))


class LedEngine:
    """The same for an imitated engine: it reads what the prompt says, and waits for its gate."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.gate = asyncio.Event()
        self.gate.set()
        self.sampled: list[list[int]] = []

    async def sample(self, _: str, prompt: list[int], most: int) -> Answer:
        """Continues a prompt."""
        text = self._tokenizer.decode(prompt)
        # Numbered, so that a turn that is asked again is another one.
        number = len(self.sampled)
        rounds = int(_ROUNDS.findall(text)[-1])
        call = json.dumps({"name": "shell", "arguments": {"command": f"echo {number}"}}, separators=(",", ":"))
        calls = text.count("<tool_response>") < rounds
        said = f"<tool_call>\n{call}\n</tool_call>" if calls else f"Answer {number}."
        assert self._tokenizer.close_id is not None
        ids = [*self._tokenizer.encode(said), self._tokenizer.close_id][:most]
        self.sampled.append(ids)
        await self.gate.wait()
        spans = [{"version": "default", "start": 0, "end": len(ids)}]
        return Answer(ids, "stop", spans, [logprob_of(one) for one in ids])


@dataclass
class DoorProcess:
    """A door that runs."""

    url: str
    process: ForkedWorker

    def kill(self) -> None:
        """Ends it without warning."""
        self.process.kill()
        self.process.wait()


def sampled(result: RolloutResult) -> list[list[int]]:
    """Each turn's ids that are trained, over all samples."""
    found = []
    for sample in result.samples:
        for segment in sample.segments:
            if segment.kind == "sampled":
                at = slice(segment.start, segment.start + segment.n)
                assert set(sample.response_mask[at]) == {1}
                found.append(sample.response_ids[at])
    return found


def assert_all_once(result: RolloutResult, turns: Sequence[list[int]]) -> None:
    """Each sampled turn is in exactly one sample."""
    assert sorted(sampled(result)) == sorted(turns)


@contextlib.contextmanager
def running_door(redis_url: str, *, port: int = 0, **env: str) -> Iterator[DoorProcess]:
    """A door that answers, and does not outlive the block."""
    port = port or free_port()
    usual = {**_pool_of(redis_url), "ROLLOUTPOOL_DOOR_PORT": str(port)}
    with forked("rolloutpool_api.capabilities.harness.__main__", **{**usual, **env}) as (process, log):
        door = DoorProcess(f"http://127.0.0.1:{port}", process)
        _await(door, log)
        yield door


@contextlib.contextmanager
def running_runner(redis_url: str, door: DoorProcess, **env: str) -> Iterator[ForkedWorker]:
    """A runner that starts programs with its own rights."""
    usual = {**_pool_of(redis_url), "ROLLOUTPOOL_DOOR_URL": door.url, "ROLLOUTPOOL_RUNNER_PROCESS": "unsafe"}
    with forked("rolloutpool_worker.capabilities.harness.__main__", **{**usual, **env}) as (process, _):
        yield process


def _pool_of(redis_url: str) -> dict[str, str]:
    return {"ROLLOUTPOOL_REDIS_URL": redis_url, "ROLLOUTPOOL_SECRETS_FILE": str(secrets_file())}


def _await(door: DoorProcess, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert door.process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{door.url}/livez").is_success:
                return
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@dataclass
class Program:
    """A program of few lines: it calls the model, runs its tool, and calls again until there is nothing to run."""

    url: str
    key: str
    dialect: Dialect = "chat"
    stream: bool = False
    system: str = "You are a program."
    tools: bool = True
    history: list[dict[str, Any]] = field(default_factory=list)
    """Items as its dialect has them."""
    headers: dict[str, str] = field(default_factory=dict)
    timeout: float = 60.0

    def say(self, text: str) -> None:
        """Adds what a user says."""
        self.history.append({"role": "user", "content": text})

    async def run(self, text: str) -> str:
        """Says something, and goes on until the model calls no tool."""
        self.say(text)
        while True:
            said, calls = await self.call()
            if not calls:
                return said
            self.answer(calls)

    async def call(self) -> tuple[str, list[tuple[str, str]]]:
        """Calls the model with its whole history; returns the text, and its calls: id and command."""
        path, body = self.request()
        async with httpx.AsyncClient(timeout=self.timeout, trust_env=False, verify=NO_TLS) as client:
            reply = await client.post(f"{self.url}{path}", json=body, headers=self._headers())
        reply.raise_for_status()
        return self.take(_events(reply.text) if self.stream else [reply.json()])

    def _headers(self) -> dict[str, str]:
        if self.dialect == "messages":
            return {"x-api-key": self.key, "anthropic-version": "2023-06-01", **self.headers}
        return {"authorization": f"Bearer {self.key}", **self.headers}

    def request(self) -> tuple[str, dict[str, Any]]:
        """Writes its next request."""
        body: dict[str, Any] = {"model": "any", "stream": self.stream}
        if self.dialect == "chat":
            body["messages"] = [{"role": "system", "content": self.system}, *self.history]
            if self.tools:
                body["tools"] = [{"type": "function", "function": SHELL}]
            return "/v1/chat/completions", body
        if self.dialect == "responses":
            body |= {"instructions": self.system, "input": self.history, "store": False}
            if self.tools:
                body["tools"] = [{"type": "function", **SHELL}]
            return "/v1/responses", body
        body |= {"system": [{"type": "text", "text": self.system}], "messages": self.history, "max_tokens": 512}
        if self.tools:
            schema = SHELL["parameters"]
            body["tools"] = [{"name": SHELL["name"], "description": SHELL["description"], "input_schema": schema}]
        return "/v1/messages", body

    def take(self, reply: list[dict[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
        """Reads a reply, and adds it to the history as it came."""
        reader = {"chat": self._take_chat, "responses": self._take_responses, "messages": self._take_messages}
        return reader[self.dialect](reply)

    def _take_chat(self, reply: list[dict[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
        if self.stream:
            deltas = [choice["delta"] for chunk in reply for choice in chunk["choices"]]
            text = "".join(delta.get("content") or "" for delta in deltas)
            calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
            calls = [{key: value for key, value in call.items() if key != "index"} for call in calls]
        else:
            message = reply[0]["choices"][0]["message"]
            text, calls = message["content"] or "", message.get("tool_calls") or []
        said: dict[str, Any] = {"role": "assistant", "content": text or None}
        self.history.append({**said, "tool_calls": calls} if calls else said)
        return text, [(call["id"], json.loads(call["function"]["arguments"])["command"]) for call in calls]

    def _take_responses(self, reply: list[dict[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
        ended = reply[-1]["response"] if self.stream else reply[0]
        if self.stream:
            assert reply[-1]["type"] == "response.completed", reply[-1]
            done = [one["item"] for one in reply if one["type"] == "response.output_item.done"]
            assert done == ended["output"]
        self.history += ended["output"]
        items = ended["output"]
        text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
        calls = [item for item in items if item["type"] == "function_call"]
        return text, [(call["call_id"], json.loads(call["arguments"])["command"]) for call in calls]

    def _take_messages(self, reply: list[dict[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
        blocks: list[dict[str, Any]] = []
        if self.stream:
            for one in reply:
                if one["type"] == "content_block_start":
                    blocks.append({**one["content_block"], "_parts": ""})
                elif one["type"] == "content_block_delta":
                    delta = one["delta"]
                    blocks[-1]["_parts"] += delta.get("text") or delta.get("partial_json") or ""
            for block in blocks:
                parts = block.pop("_parts")
                block["text" if block["type"] == "text" else "input"] = (
                    parts if block["type"] == "text" else json.loads(parts)
                )
        else:
            blocks = reply[0]["content"]
        self.history.append({"role": "assistant", "content": blocks})
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        return text, [(b["id"], b["input"]["command"]) for b in blocks if b["type"] == "tool_use"]

    def answer(self, calls: list[tuple[str, str]]) -> None:
        """Adds what the tool printed."""
        results = [(id, command.removeprefix("echo ")) for id, command in calls]
        if self.dialect == "chat":
            self.history += [{"role": "tool", "tool_call_id": id, "content": text} for id, text in results]
        elif self.dialect == "responses":
            self.history += [{"type": "function_call_output", "call_id": id, "output": text} for id, text in results]
        else:
            blocks = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in results]
            self.history.append({"role": "user", "content": blocks})


def _events(text: str) -> list[dict[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        data = "".join(line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: "))
        if data and data != "[DONE]":
            found.append(json.loads(data))
    return found


@contextlib.asynccontextmanager
async def client(url: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client with a session's key."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as opened:
        yield opened
