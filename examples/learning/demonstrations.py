"""Supervised training on demonstrations, from which reinforcement starts.

Masks of demonstrations follow roles (`MaskGenerator`), because nobody sampled them. In reinforcement they may not.
"""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from examples.learning.task import demonstration, questions
from examples.learning.transformer import Shape, Transformer

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_rl.logits import token_logprobs
from rolloutpool_rl.reductions import token_mean
from rolloutpool_rl.role_masks import MaskGenerator

DEMONSTRATIONS = 1000
BATCH = 32
RATE = 4e-3
"""For a small model; wider ones than the default get less, by the inverse of their width."""


def start(
    folder: Path, tokenizer: ChatTokenizer, shape: Shape, *, seed: int, steps: int, advance: Callable[[], None]
) -> Transformer:
    """Trains the model from which the runs of a seed start, or reads it if that was done before.

    Args:
        folder: Keeps it.
        tokenizer: Of the task.
        shape: Of the model.
        seed: Of weights and data.
        steps: Batches of demonstrations.
        advance: Called after each step.
    """
    torch.manual_seed(seed)
    model = Transformer(shape)
    kept = folder / f"start-{seed}-{shape.width}x{shape.layers}-{steps}.pt"
    if kept.exists():
        model.load_state_dict(torch.load(kept))
        return model
    rng = random.Random(seed)
    masks = MaskGenerator(tokenizer, "qwen3")
    data = [masks.get_loss_mask(demonstration(question, rng)) for question in questions(rng, DEMONSTRATIONS)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE * min(64 / shape.width, 1.0), weight_decay=0.01)
    # A tenth of the steps warms up, and the rest goes down to a tenth of the rate.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (steps / 10), 1.0 - 0.9 * step / steps)
    )
    for _ in range(steps):
        batch = [data[int(rng.random() * len(data))] for _ in range(BATCH)]
        longest = max(len(one.ids) for one in batch)
        ids = torch.tensor([one.ids + [0] * (longest - len(one.ids)) for one in batch])
        trained = torch.tensor([one.rl_mask + [0] * (longest - len(one.rl_mask)) for one in batch])
        positions = torch.arange(longest).expand(BATCH, longest)
        # Padding is on the right, where nothing that is trained sees it.
        states, _ = model(ids, torch.ones_like(ids), positions)
        logprobs = token_logprobs(model.logits(states[:, :-1]), ids[:, 1:])
        optimizer.zero_grad()
        token_mean(-logprobs, trained[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        advance()
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), kept)
    return model
