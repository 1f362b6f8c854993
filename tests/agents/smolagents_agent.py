"""An agent on smolagents, as its documentation has it: `smolagents_agent.py PROMPT`, where it is installed."""

import os
import subprocess
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool  # type: ignore[untyped-decorator]  # it is not installed where this is checked
def bash(command: str) -> str:
    """Runs a command.

    Args:
        command: What to run.
    """
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False).stdout


url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
model = OpenAIServerModel(model_id="policy", api_base=url, api_key=key)
print(ToolCallingAgent(tools=[bash], model=model).run(sys.argv[1]))
