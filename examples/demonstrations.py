"""Recorded conversations are played through a pool: supervised data with the masks and tokens of rollouts.

    python examples/demonstrations.py

The tool of the recording need not exist: its recorded results are what the policy is shown.
"""

from typing import Any

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_rl.padded_batch import padded_batch
from rolloutpool_trainer import Demonstrations, LocalPool, serve_callback
from rolloutpool_trainer.viewer.terminal import mask_runs

TOKENIZER = load_tokenizer("rolloutpool/tiny")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [
        {"role": "user", "content": "Do I need an umbrella in Ulm?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "Yes, it rains."},
    ],
    [{"role": "user", "content": "Thanks!"}, {"role": "assistant", "content": "Any time."}],
]


def main() -> None:
    """Plays them, and prints what is trained of the first."""
    demonstrations = Demonstrations(CONVERSATIONS, TOKENIZER, tools=TOOLS)
    with (
        LocalPool(workers=1, flower=False, door=True) as pool,
        pool.client() as client,
        serve_callback(demonstrations.app(), ports=[0]) as trainer,
    ):
        defaults = {"tokenizer_name": TOKENIZER.name}
        batch = client.submit(demonstrations.rollouts, defaults=defaults, trainer=trainer.urls)
        demonstrations.play(batch)
        results = sorted(batch.results(), key=lambda result: result.index)
    (sample,) = results[0].samples
    for mask, ids in mask_runs(sample.response_ids, sample.response_mask):
        print(f"mask {mask}, {len(ids):3} tokens: {TOKENIZER.decode(ids)!r}")
    rows = padded_batch(results, pad_id=0)
    print(f"{len(rows)} rows, {int(rows.response_mask.sum())} of {int(rows.attention_mask.sum())} tokens to train")


if __name__ == "__main__":
    main()
