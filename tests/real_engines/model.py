"""A tiny Qwen3 for engines, run by the Python that has torch: `train` it, or ask plain forwards of samples.

    python model.py dense ROWS.json FOLDER [FOLDER ...]     trains one; `experts`, one with a mixture of experts
    python model.py score SAMPLES.json                      says the log-probability of each id
    python model.py route FOLDER SAMPLES.json               says which experts process each id

It is trained on rollouts of the scripted policy until it calls its tool most of the time, so that its rollouts have
several turns. Each folder gets the weights of some steps more than the one before.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

FIRST_STEPS, MORE_STEPS, ROWS = 160, 15, 8
SHAPE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # vLLM's attention on CPUs takes no smaller one
    "max_position_embeddings": 4096,
}


def made(kind: str) -> Any:
    """Makes a model, with eight experts in each layer, two for each id, or without."""
    if kind == "experts":
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, num_experts=8, num_experts_per_tok=2))
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE))


def train(kind: str, rows: list[dict[str, list[int]]], folders: list[Path]) -> None:
    """Writes the weights of several steps of one training."""
    torch.manual_seed(1)
    chosen = random.Random(1)
    model = made(kind).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for folder, steps in zip(folders, [FIRST_STEPS] + [MORE_STEPS] * len(folders), strict=False):
        for _ in range(steps):
            batch = chosen.sample(rows, ROWS)
            width = max(len(row["prompt_ids"]) + len(row["response_ids"]) for row in batch)
            ids, labels = torch.zeros(ROWS, width, dtype=torch.long), torch.full((ROWS, width), -100)
            for place, row in enumerate(batch):
                whole = torch.tensor(row["prompt_ids"] + row["response_ids"])
                mask = torch.tensor([0] * len(row["prompt_ids"]) + row["response_mask"])
                ids[place, : len(whole)] = whole
                labels[place, : len(whole)] = torch.where(mask == 1, whole, -100)
            model(input_ids=ids, labels=labels).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
        model.save_pretrained(folder)


def score(asked: dict[str, Any]) -> list[list[float]]:
    """Gives each id of a response its log-probability under its own weights, by one forward over the whole sample.

    Of `weights`, a folder for each version; `samples`, of which `versions` has a name for each response id, or null
    where it wants none; and how it was sampled: `temperature`, `top_p`, `top_k`, and whether top-p counts among what
    top-k leaves (`renormalises`), or among all ids.
    """
    models: dict[str, Any] = {
        version: Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for version, folder in asked["weights"].items()
    }
    found = []
    for sample in asked["samples"]:
        first, ids = len(sample["prompt_ids"]), sample["prompt_ids"] + sample["response_ids"]
        with torch.no_grad():
            scores = {
                version: models[version](input_ids=torch.tensor([ids])).logits[0, first - 1 : -1] / asked["temperature"]
                for version in set(sample["versions"]) - {None}
            }
        found.append(
            [
                0.0 if version is None else _logprob(scores[version][place], ids[first + place], asked)
                for place, version in enumerate(sample["versions"])
            ]
        )
    return found


def _logprob(scores: torch.Tensor, token: int, asked: dict[str, Any]) -> float:
    """The log-probability within the ids that top-k and then top-p leave."""
    ordered, ids = scores.sort(descending=True)
    kept = ordered.softmax(-1)[: asked["top_k"] or None]
    if asked["renormalises"]:
        kept = kept / kept.sum()
    # The first id that reaches `top_p` stays.
    kept = kept[kept.cumsum(-1) - kept < asked["top_p"]]
    place = int((ids == token).nonzero())
    return float((kept / kept.sum()).log()[place]) if place < len(kept) else float("-inf")


def route(folder: str, samples: list[list[int]]) -> list[list[list[int]]]:
    """Gives each id of some contexts its experts: of the first layer, best first, then of the second."""
    model: Any = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for ids in samples:
        with torch.no_grad():
            layers = model(input_ids=torch.tensor([ids]), output_router_logits=True).router_logits
        found.append(torch.cat([layer.topk(model.config.num_experts_per_tok).indices for layer in layers], 1).tolist())
    return found


if __name__ == "__main__":
    _, what, source, *rest = sys.argv
    match what:
        case "score":
            json.dump(score(json.loads(Path(source).read_text())), sys.stdout)
        case "route":
            json.dump(route(source, json.loads(Path(rest[0]).read_text())), sys.stdout)
        case kind:
            train(kind, json.loads(Path(source).read_text()), [Path(folder) for folder in rest])
