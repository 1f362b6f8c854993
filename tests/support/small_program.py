"""A program of few lines on the standard library alone, as somebody would have it before they knew of any pool.

It calls the model, runs the command that the model asks for, and calls again. With a number and a file behind its
prompt, it ends itself by SIGKILL after so many calls, unless the file exists, which it makes first.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def ask(request: urllib.request.Request) -> Any:
    """Asks, and asks again as SDKs do: twice, after half a second and after one."""
    for attempt, pause in enumerate((0.5, 1.0, 0.0)):
        request.add_header("x-stainless-retry-count", str(attempt))
        try:
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)
        except (OSError, http.client.HTTPException):
            if not pause:
                raise
        time.sleep(pause)
    raise AssertionError


def main(prompt: str, die: int = 0, once: str = "") -> None:
    """Works on a prompt until the model calls no tool."""
    messages: list[dict[str, object]] = [{"role": "user", "content": prompt}]
    calls = 0
    while True:
        body = {"model": "any", "messages": messages, "tools": [TOOL]}
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            json.dumps(body).encode(),
            {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
        )
        message = ask(request)["choices"][0]["message"]
        calls += 1
        if die and calls == die and not Path(once).exists():
            Path(once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        messages.append(message)
        if not message.get("tool_calls"):
            print(message["content"])
            return
        for call in message["tool_calls"]:
            command = json.loads(call["function"]["arguments"])["command"]
            ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout})


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1])
