"""Several turns with tools: mask 1 on what the policy sampled, 0 on tool results and template.

    python examples/calculator.py "Calculate (15 + 23) * 4"

The policy is scripted, so the example needs no GPU; it samples real token ids, tool calls included.
"""

import sys

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import LocalPool, callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy
from rolloutpool_trainer.viewer.terminal import mask_runs

TOKENIZER = load_tokenizer("rolloutpool/tiny")


def main(question: str) -> None:
    """Runs one rollout and prints it, run by run of equal mask."""
    with LocalPool(workers=1, flower=False) as pool, pool.client() as client:
        # The trainer asks the pool's GET /tools once, and shows these tools to the policy in each prompt.
        app = callback_app(ScriptedPolicy(TOKENIZER), tokenizer=TOKENIZER, tools=pool.url)
        with serve_callback(app, ports=[0]) as trainer:
            batch = client.submit(
                [{"rollout_id": "sum", "messages": [{"role": "user", "content": question}]}],
                defaults={"tokenizer_name": TOKENIZER.name, "max_turns": 8},
                trainer=trainer.urls,
            )
            (rollout,) = batch.results()
        (sample,) = rollout.samples
        for mask, ids in mask_runs(sample.response_ids, sample.response_mask):
            print(f"mask {mask}, {len(ids):3} tokens: {TOKENIZER.decode(ids)!r}")
        session = app.get_session("sum")
        assert sample.response_mask == session.response_mask, "the trainer's own count must agree"
        print(f"{rollout.num_llm_calls} turns, {rollout.num_tool_calls} tool calls, alignment {rollout.alignment}")
        print(f"trained {session.ones} of {session.ones + session.zeros} response tokens")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "Calculate (15 + 23) * 4")
