"""A training step from end to end: sample groups, reward them, make one padded batch with advantages.

    python examples/trainer_end_to_end.py

Only `reward` and the scripted policy are toys; replace them, and hand the arrays to your optimiser (`to_torch`).
docs/training.md has the same with a real model, up to the optimiser's step.
"""

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_rl.advantages import group_advantages
from rolloutpool_rl.padded_batch import PaddedBatch, padded_batch
from rolloutpool_trainer import FinishedRollout, LocalPool, callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

TOKENIZER = load_tokenizer("rolloutpool/tiny")
GROUPS, GROUP_SIZE = 4, 4


def reward(rollout: FinishedRollout) -> float:
    """Rewards short answers."""
    return 1.0 / rollout.response_tokens


def arrays(rollouts: list[FinishedRollout]) -> PaddedBatch:
    """Makes what an optimiser needs: ids, mask, sampling log-probs, group-relative advantages."""
    rewards = [reward(rollout) for rollout in rollouts]
    gains = group_advantages(rewards, [rollout.group for rollout in rollouts])
    return padded_batch(rollouts, rewards, advantages=gains.tolist(), pad_id=0)


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
            submitted = client.submit(prompts, defaults=defaults, trainer=trainer.urls)
            # A failure of the infrastructure is no sample: it is left out or run again, never rewarded with 0.
            groups = list(submitted.trainable_groups(min_usable=3, refill=1))
            figures = submitted.summary(policy_version="step-1")
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    batch = arrays(rollouts)
    trained = int(batch.response_mask.sum())
    assert trained == sum(rollout.response_tokens for rollout in rollouts), "each sampled token, exactly once"
    print(f"{len(rollouts)} of {GROUPS * GROUP_SIZE} rollouts, rows {batch.input_ids.shape}, {trained} tokens to train")
    print(f"llm p95 {figures['spans/llm_ms/p95']:.0f} ms, {figures['tools/calls']:.0f} tool calls, none too old")


if __name__ == "__main__":
    main()
