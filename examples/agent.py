"""An agent that calls its model itself, and knows nothing of a pool, is sampled through the pool's door.

    python examples/agent.py "What is (15 + 23) * 4?"

The agent is `run_agent`: a few lines on the standard library, as somebody may have them already. The policy is
scripted, so the example needs no GPU.
"""

import json
import sys
import urllib.request
from typing import Any

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import LocalPool, callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy
from rolloutpool_trainer.viewer.terminal import mask_runs

TOKENIZER = load_tokenizer("rolloutpool/tiny")
OPERATIONS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
}


def run_agent(url: str, key: str, question: str) -> str:
    """Asks a model at an OpenAI-compatible address until it calls no tool."""
    numbers = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": numbers}} for name in OPERATIONS]
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    while True:
        request = urllib.request.Request(
            f"{url}/chat/completions",
            data=json.dumps({"model": "any", "messages": messages, "tools": tools}).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as reply:
            message = json.load(reply)["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            numbers_given = json.loads(call["function"]["arguments"])
            result = OPERATIONS[call["function"]["name"]](**numbers_given)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(result)})


def main(question: str) -> None:
    """Runs the agent in one session, and prints what is trained of it."""
    with LocalPool(workers=1, flower=False, door=True) as pool, pool.client() as client:
        app = callback_app(ScriptedPolicy(TOKENIZER), tokenizer=TOKENIZER)
        with serve_callback(app, ports=[0]) as trainer:
            batch = client.submit(
                [{"messages": [{"role": "user", "content": question}]}],
                defaults={"tokenizer_name": TOKENIZER.name, "harness": {"external": True}},
                trainer=trainer.urls,
            )
            session = batch.session(0)
            print(f"the agent says: {run_agent(f'{session.url}/v1', session.key, question)}")
            batch.end_session(0, reward=1.0)
            (result,) = batch.results()
        (sample,) = result.samples
        for mask, ids in mask_runs(sample.response_ids, sample.response_mask):
            print(f"mask {mask}, {len(ids):3} tokens: {TOKENIZER.decode(ids)!r}")
        assert result.harness is not None
        for line in result.harness.lines:
            print(f"line {line.line}: {line.kind}, {line.turns} turns, {line.trained_tokens} of {line.tokens} trained")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "What is (15 + 23) * 4?")
