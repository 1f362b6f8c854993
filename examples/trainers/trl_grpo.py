"""TRL's GRPOTrainer trains through a pool: a small model that calls a tool half of the time learns to call it always.

    pip install 'trl==1.16.0'
    python examples/trainers/trl_grpo.py

1. **Start.** Recorded conversations are played through the pool, and the model is trained on them (`supervised`). Half
   of them call the calculator, the other half guess.
2. **The policy is served** from the model in training, by a thread of this process: `TransformersSampler`.
3. **GRPO.** TRL asks `rollout_func` for completions. The pool runs the agent loop and the tool; TRL trains where the
   mask is 1, which leaves out the tool's results and what the template writes around them.
"""

import json
import tempfile
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_rl.logits import response_slice, token_logprobs
from rolloutpool_rl.padded_batch import padded_batch
from rolloutpool_rl.reductions import token_mean
from rolloutpool_trainer import Demonstrations, LocalPool, TransformersSampler, callback_app, serve_callback
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.trl import rollout_func

QUESTIONS = {f"What is {n} + {n + 3}?": (n, n + 3) for n in range(2, 6)}
STEPS, GROUP = 8, 8

torch.manual_seed(5)
tokenizer = load_tokenizer(str(TINY_TOKENIZER))
shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
config = Qwen3Config(vocab_size=tokenizer.vocab_size, num_key_value_heads=2, head_dim=32, **shape)
model = Qwen3ForCausalLM(config)
defaults = {"tokenizer_name": tokenizer.name, "tools": ["add"], "max_turns": 3}


def conversations() -> list[list[dict[str, Any]]]:
    """Two for each question: one that asks the tool, one that guesses."""
    found = []
    for question, (a, b) in QUESTIONS.items():
        asked: dict[str, Any] = {"role": "user", "content": question}
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": a, "b": b}}}
        result = {"role": "tool", "tool_call_id": "c1", "content": str(a + b)}
        answer = {"role": "assistant", "content": f"It is {a + b}."}
        found += [[asked, {"role": "assistant", "content": "", "tool_calls": [call]}, result, answer]]
        found += [[asked, {"role": "assistant", "content": "I guess 7."}]]
    return found


def supervised(pool: LocalPool, tools: list[dict[str, Any]]) -> None:
    """Trains on the demonstrations, with the tokens and masks of rollouts."""
    demonstrations = Demonstrations(conversations(), tokenizer, tools=tools)
    with pool.client() as client, serve_callback(demonstrations.app(), ports=[0]) as served:
        batch = client.submit(demonstrations.rollouts, defaults=defaults | {"tools": None}, trainer=served.urls)
        demonstrations.play(batch)
        rows = padded_batch(list(batch.results()), pad_id=0).to_torch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    part = response_slice(rows["input_ids"].shape[1], rows["responses"].shape[1])
    names = ("input_ids", "attention_mask", "position_ids")
    for _ in range(250):
        logprobs = token_logprobs(model(**{name: rows[name] for name in names}).logits[:, part], rows["responses"])
        optimizer.zero_grad()
        token_mean(-logprobs, rows["response_mask"]).backward()
        optimizer.step()


def reward(prompts: list[Any], transcript: list[Any], **columns: Any) -> list[float]:
    """1 for a right answer; `transcript` has what was said after the prompt, the tool's results included."""
    right = [str(sum(QUESTIONS[prompt[-1]["content"]])) for prompt in prompts]
    return [float(f"It is {sum_}." == said[-1]["content"]) for sum_, said in zip(right, transcript, strict=True)]


def main() -> None:
    """Trains, and prints the mean reward of each step, and how many tokens the mask leaves out."""
    masks: list[list[int]] = []
    with LocalPool(workers=1, flower=False, door=True) as pool, pool.client() as client:
        tools = [tool.model_dump(mode="json") for tool in client.tools() if tool.function.name == "add"]
        supervised(pool, tools)
        app = callback_app(TransformersSampler(model, tokenizer), tokenizer=tokenizer, tools=tools)
        with serve_callback(app, ports=[0]) as served, tempfile.TemporaryDirectory() as folder:
            through_pool = rollout_func(PoolDriver(pool.url, trainer=served.urls, defaults=defaults))

            def watched(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
                columns = through_pool(prompts, trainer)
                masks.extend(columns["env_mask"])
                return columns

            trainer = trl.GRPOTrainer(
                model=model,
                args=trl.GRPOConfig(
                    output_dir=folder,
                    max_steps=STEPS,
                    per_device_train_batch_size=4 * GROUP,
                    num_generations=GROUP,
                    max_completion_length=64,
                    learning_rate=3e-4,
                    lr_scheduler_type="constant",
                    logging_steps=1,
                    use_cpu=True,
                    bf16=False,
                    report_to=[],
                    save_strategy="no",
                ),
                reward_funcs=[reward],
                train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": one}]} for one in QUESTIONS]),
                processing_class=AutoTokenizer.from_pretrained(TINY_TOKENIZER),
                rollout_func=watched,
            )
            trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    left_out = sum(mask.count(0) for mask in masks)
    print(json.dumps({"rewards": rewards, "left out": left_out, "trained": sum(map(sum, masks))}))


if __name__ == "__main__":
    main()
