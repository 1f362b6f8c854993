"""An agent on OpenAI's Agents SDK, as its documentation has it: `sdk_agent.py PROMPT`, where the SDK is installed."""

import asyncio
import subprocess
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
set_default_openai_api("chat_completions")


@function_tool  # type: ignore[untyped-decorator]  # the SDK is not installed where this is checked
def bash(command: str) -> str:
    """Runs a command."""
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False).stdout


agent = Agent(name="worker", instructions="You work with a shell.", model="policy", tools=[bash])
print(asyncio.run(Runner.run(agent, sys.argv[1])).final_output)
