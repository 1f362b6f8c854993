"""verifiers' way to run a loop in the caller's process: a harness whose `launch` asks the endpoint it is given.

verifiers finds it by its module's name, so this folder has to be on the path. It asks with the openai client, as the
programs of verifiers' own harnesses do, but it starts no process for each rollout as they do.
"""

from typing import Any

import verifiers.v1 as vf
from benchmarks.peers.adapters.commands import add
from openai import AsyncOpenAI

tools: list[dict[str, Any]] = []
"""What the policy may call; set before a run."""
_client = AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0, timeout=600)


class RolloutData(vf.TaskData):
    """A task that knows which scripted rollout it is."""

    rollout_id: str
    turns: int


class InProcessHarness(vf.Harness[vf.HarnessConfig]):
    """A loop that calls the calculator until the policy answers in words."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = False
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace[Any],
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Runs one rollout."""
        assert isinstance(data, RolloutData)
        assert isinstance(data.prompt, list)
        client = _client.with_options(base_url=endpoint, api_key=secret)
        history: list[Any] = [message.model_dump(exclude_none=True) for message in data.prompt]
        for _ in range(data.turns):
            reply = await client.chat.completions.create(
                model=ctx.model, messages=history, tools=tools, extra_body={"rollout_id": data.rollout_id}
            )
            message = reply.choices[0].message
            history.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            history += [
                {"role": "tool", "tool_call_id": call.id, "content": add(call.function.arguments)}
                for call in message.tool_calls
            ]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
