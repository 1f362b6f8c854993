"""A policy that leads the agents that people ship: it calls their shell and their sub-agents, and then is done.

It does what the prompt says, which the test has given to the agent: `do 3 rounds` runs three commands, each of which
writes a line into `rounds.txt`; `with a sub-agent` has another agent do them. It looks at nothing else than the prompt,
so it is the same over a callback and over an engine.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.support.imitated_engine import Answer, logprob_of

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

SHELLS = ("Bash", "bash", "exec_command", "run_shell_command")
_ROUNDS = re.compile(r"do (\d+) rounds")
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_OBSERVATION = re.compile(r"<\|im_start\|>user\n(Observation:.*?)<\|im_end\|>", re.DOTALL)
_NAME = re.compile(r'"name": "(\w+)"')
_AGENT_ID = re.compile(r'agent_id\\*"\s*:\s*\\*"([0-9a-f-]+)')
SUB_AGENT = "with a sub-agent"
SUMMARY = "Here is the summary"
"""Codex says so after a compaction."""


class AgentPolicy:
    """Leads agents, and keeps what it has sampled."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.sampled: list[list[int]] = []
        """The ids of each turn."""

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        """Answers an endpoint of ours."""
        messages = params.messages
        said = "\n".join(_text(one) for one in messages if one["role"] != "tool")
        # Smolagents' user says what a tool has said.
        results = [text for one in messages if (text := _text(one)) and _is_result(one["role"], text)]
        names = [tool["function"]["name"] for tool in params.tools or []]
        ids = self._ids(self.next(said, results, names))
        return Generation(token_ids=ids, logprobs=[-0.25] * len(ids))

    async def sample(self, _: str, prompt: list[int], most: int) -> Answer:
        """Answers an imitated engine."""
        text = self._tokenizer.decode(prompt)
        said = _RESULT.sub("", text)
        results = [*_RESULT.findall(text), *_OBSERVATION.findall(text)]
        ids = self._ids(self.next(said, results, set(_NAME.findall(text))))[:most]
        spans = [{"version": "default", "start": 0, "end": len(ids)}]
        return Answer(ids, "stop", spans, [logprob_of(one) for one in ids])

    def _ids(self, text: str) -> list[int]:
        assert self._tokenizer.close_id is not None
        ids = [*self._tokenizer.encode(text), self._tokenizer.close_id]
        self.sampled.append(ids)
        return ids

    def next(self, said: str, results: Sequence[str], names: Collection[str]) -> str:
        """Says what comes next."""
        shell = next((name for name in SHELLS if name in names), None)
        asked = _ROUNDS.findall(said)
        if shell is None or not asked:
            return "Some words."
        if SUMMARY in said:
            return "Finished, by the summary."
        if SUB_AGENT in said:
            return self._with_sub_agent(int(asked[-1]), results, names)
        done = len(results)
        if done >= int(asked[-1]):
            words = f"Finished after {done}."
            return _call("final_answer", {"answer": words}) if "final_answer" in names else words
        return _call(shell, _shell(shell, f"echo round-{done} >> rounds.txt; echo made {done}"))

    def _with_sub_agent(self, rounds: int, results: Sequence[str], names: Collection[str]) -> str:
        task = f"do {rounds} rounds"
        if "Agent" in names and not results:
            arguments = {"description": "makes rounds", "prompt": task, "subagent_type": "general-purpose"}
            return _call("Agent", {**arguments, "run_in_background": False})
        if "multi_agent_v1__spawn_agent" in names:
            if not results:
                return _call("multi_agent_v1__spawn_agent", {"message": task})
            found = _AGENT_ID.search(results[0])
            if len(results) == 1 and found:
                return _call("multi_agent_v1__wait_agent", {"targets": [found[1]], "timeout_ms": 60_000})
        return "The other agent has finished."


def _is_result(role: str, text: str) -> bool:
    return role == "tool" or (role == "user" and text.startswith("Observation:"))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _shell(name: str, command: str) -> dict[str, Any]:
    if name == "exec_command":
        return {"cmd": command}
    if name == "run_shell_command":
        return {"command": command, "is_background": False}
    if name == "bash":
        return {"command": command}
    return {"command": command, "description": "makes a round"}


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    # Compact, as no template prints it: what comes back is the policy's own text.
    return (
        "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, separators=(",", ":")) + "\n</tool_call>"
    )
