"""One prompt, one answer, no tools: everything that the policy samples has mask 1.

    python examples/single_turn.py

It starts a local pool (Redis, API, one worker). For a pool that is running already, use `RolloutClient(url)`.
"""

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import GenerateParams, Generation, LocalPool, callback_app, serve_callback

TOKENIZER = load_tokenizer("rolloutpool/tiny")


def generate(prompt_ids: list[int], params: GenerateParams) -> Generation:
    """The policy. Yours calls the model; this one always gives the same answer."""
    sampled = TOKENIZER.encode("Paris is the capital of France.<|im_end|>")[: params.max_tokens]
    return Generation(token_ids=sampled, logprobs=[-0.5] * len(sampled))


def main() -> None:
    """Runs four rollouts of one prompt and prints what can be trained on."""
    with (
        LocalPool(workers=1, flower=False) as pool,
        serve_callback(callback_app(generate, tokenizer=TOKENIZER), ports=[0]) as trainer,
        pool.client() as client,
    ):
        batch = client.submit(
            [{"messages": [{"role": "user", "content": "What is the capital of France?"}], "n": 4}],
            defaults={"tokenizer_name": TOKENIZER.name},
            trainer=trainer.urls,
        )
        for rollout in batch.results():
            (sample,) = rollout.samples
            assert all(sample.response_mask), "nothing but the policy's own tokens follows the prompt"
            print(f"{rollout.rollout_id}: {rollout.finish_reason}, {len(sample.response_ids)} tokens, all trained")


if __name__ == "__main__":
    main()
