"""A tool in a process of its own: whatever the code does, the policy reads a message and the worker goes on.

    python examples/isolated_tool.py

The policy is scripted: it runs code that works, spins, takes 2 GB and crashes, one after the other.
"""

import json
from pathlib import Path

from rolloutpool_worker.tools import Isolated, ToolContext, tool

CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
PROGRAMS = [
    "result = sum(range(100))",
    "while True: pass",
    "result = len(bytearray(2 * 2**30))",
    "import ctypes; ctypes.string_at(0)",
    "import os; os._exit(3)",
    "result = 'still here'",
]


@tool("run_python", "Runs Python code", CODE, isolated=Isolated(memory_mb=256, seconds=2))
async def run_python(context: ToolContext, code: str) -> object:
    """Runs the code, which puts its answer into `result`."""
    names: dict[str, object] = {}
    exec(code, names)
    return names.get("result")


def main() -> None:
    """Runs one rollout and prints what its policy read."""
    # Here, because the child processes of the tool import this file too.
    from rolloutpool_common.rendering import load_tokenizer
    from rolloutpool_trainer import LocalPool, callback_app, serve_callback
    from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

    tokenizer = load_tokenizer("rolloutpool/tiny")

    async def policy(prompt_ids: list[int], params: GenerateParams) -> Generation:
        text = "done"
        if params.turn <= len(PROGRAMS):
            call = {"name": "run_python", "arguments": {"code": PROGRAMS[params.turn - 1]}}
            text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        ids = [*tokenizer.encode(text), *([tokenizer.close_id] if tokenizer.close_id is not None else [])]
        return Generation(token_ids=ids, logprobs=[-0.5] * len(ids))

    # The workers import this file as a plug-in.
    here = Path(__file__)
    env = {"ROLLOUTPOOL_PLUGINS": here.stem, "PYTHONPATH": str(here.parent)}
    with LocalPool(workers=1, flower=False, env=env) as pool, pool.client() as client:
        app = callback_app(policy, tokenizer=tokenizer, tools=pool.url)
        with serve_callback(app, ports=[0]) as trainer:
            batch = client.submit(
                [{"messages": [{"role": "user", "content": "Run all of it."}]}],
                defaults={"tokenizer_name": tokenizer.name, "max_turns": len(PROGRAMS) + 1},
                trainer=trainer.urls,
            )
            (rollout,) = batch.results()
    read = [message.content for message in rollout.messages if message.role == "tool"]
    for program, text in zip(PROGRAMS, read, strict=True):
        print(f"{program:36} -> {text}")


if __name__ == "__main__":
    main()
