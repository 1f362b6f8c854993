"""A training step from end to end: sample groups, reward them, make one padded numpy batch with advantages.

    python examples/trainer_end_to_end.py

Only `reward` and the scripted policy are toys; replace them, and hand the arrays to your optimiser.
"""

from collections import defaultdict

import numpy as np

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import FinishedRollout, LocalPool, callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

TOKENIZER = load_tokenizer("rolloutpool/tiny")
GROUPS, GROUP_SIZE = 4, 4


def reward(rollout: FinishedRollout) -> float:
    """Rewards short answers."""
    return 1.0 / rollout.response_tokens


def train_on(rollouts: list[FinishedRollout]) -> dict[str, np.ndarray]:
    """Makes arrays [samples, longest sequence]: ids, mask, sampling log-probs, group-relative advantages."""
    groups: dict[str | None, list[float]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.group].append(reward(rollout))
    rows = [(rollout, sample) for rollout in rollouts for sample in rollout.samples]
    shape = (len(rows), max(len(sample.prompt_ids) + len(sample.response_ids) for _, sample in rows))
    kinds = {"ids": np.int64, "mask": np.int8, "logprobs": np.float32, "advantages": np.float32}
    batch: dict[str, np.ndarray] = {name: np.zeros(shape, kind) for name, kind in kinds.items()}
    for row, (rollout, sample) in enumerate(rows):
        start, end = len(sample.prompt_ids), len(sample.prompt_ids) + len(sample.response_ids)
        batch["ids"][row, :end] = sample.prompt_ids + sample.response_ids
        batch["mask"][row, start:end] = sample.response_mask
        batch["logprobs"][row, start:end] = sample.response_logprobs
        advantage = reward(rollout) - np.mean(groups[rollout.group])
        batch["advantages"][row] = advantage * batch["mask"][row]
    return batch


def main() -> None:
    """Runs one training step, up to the arrays for the optimiser."""
    with LocalPool(workers=2, flower=False) as pool, pool.client() as client:
        app = callback_app(ScriptedPolicy(TOKENIZER), tokenizer=TOKENIZER, tools=pool.url, policy_version="step-1")
        with serve_callback(app, ports=[0, 0]) as trainer:
            prompts = [
                {"group": f"prompt-{i}", "n": GROUP_SIZE, "messages": [{"role": "user", "content": question}]}
                for i, question in enumerate(calculator_prompts(GROUPS))
            ]
            defaults = {"tokenizer_name": TOKENIZER.name, "idempotent": True, "deadline_seconds": 120}
            results = list(client.submit(prompts, defaults=defaults, trainer=trainer.urls).results(progress=True))
    # A failure of the infrastructure is no sample: leave it out, never reward it with 0.
    completed = [result for result in results if result.status == "completed"]
    batch = train_on(completed)
    trained = int(batch["mask"].sum())
    assert trained == sum(result.response_tokens for result in completed), "each sampled token, exactly once"
    print(f"{len(completed)} of {len(results)} rollouts, batch {batch['ids'].shape}, {trained} tokens to train")


if __name__ == "__main__":
    main()
