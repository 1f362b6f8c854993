"""A small transformer in plain torch, and how it samples many turns at once.

Each turn draws from random numbers of its own, which follow from the rollout's name and the turn. So what is sampled
does not depend on which turns happen to be sampled together, nor on which worker asks, nor on how often: a run in which
processes are killed samples the same as one in which none is.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rolloutpool_rl.logits import token_logprobs

_Past = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shape:
    """The size of a transformer."""

    vocabulary: int
    width: int = 64
    layers: int = 2
    heads: int = 4


class Transformer(nn.Module):
    """Pre-norm blocks with rotary positions; input and output embeddings are one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        nn.init.normal_(self.embedding.weight, std=0.05)

    def forward(
        self, ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: _Past | None = None
    ) -> tuple[Tensor, _Past]:
        """Computes hidden states; `logits` makes logits of those that are needed.

        Args:
            ids: [B, T], those that come after `past`.
            attention_mask: [B, S + T], 0 at padding, with what `past` holds.
            position_ids: [B, T].
            past: Keys and values of the S tokens before, per layer; None at the start.

        Returns:
            States [B, T, width], and keys and values of all S + T tokens.
        """
        total, new = attention_mask.shape[1], ids.shape[1]
        at = torch.arange(total)
        causal = at[None, :] <= at[total - new :, None]
        # Padding sees itself, because a row that sees nothing would become NaN, and spread.
        itself = at[None, :] == at[total - new :, None]
        seen = (causal[None] & (attention_mask[:, None] == 1)) | itself[None]
        angles = _angles(position_ids, self.shape.width // self.shape.heads)
        states, kept = self.embedding(ids), []
        for index, block in enumerate(self.blocks):
            states, pair = block(states, angles, seen[:, None], None if past is None else past[index])
            kept.append(pair)
        return self.norm(states), kept

    def logits(self, states: Tensor) -> Tensor:
        """Makes logits [..., V] of states [..., width]."""
        return states @ self.embedding.weight.T


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(
        self, x: Tensor, angles: tuple[Tensor, Tensor], seen: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        q, k = _rotated(q, angles), _rotated(k, angles)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x)))), (k, v)


def _angles(position_ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    frequencies = 1000.0 ** -(torch.arange(0, size, 2) / size)
    angles = position_ids[:, None, :, None] * frequencies
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = angles
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def noise_of(name: str, most: int, vocabulary: int) -> Tensor:
    """Makes the random numbers of a turn, [most, V]: Gumbel noise, whose largest sum with logits is a fair sample."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
    uniform = torch.rand(most, vocabulary, generator=torch.Generator().manual_seed(seed))
    return -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))


def sample(
    model: Transformer, prompts: Sequence[Sequence[int]], noise: Tensor, *, temperature: float, end: int
) -> list[tuple[list[int], list[float]]]:
    """Samples one turn for each prompt.

    Args:
        model: The policy.
        prompts: B lists of ids, of any lengths.
        noise: [B, most, V], from `noise_of`.
        temperature: Above 0.
        end: The id that ends a turn; it is part of the turn.

    Returns:
        Ids and log-probabilities of each turn.
    """
    rows, most, _ = noise.shape
    longest = max(map(len, prompts))
    ids = torch.tensor([[end] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ended = torch.zeros(rows, dtype=torch.bool)
    past, chosen, logprobs = None, [], []
    for index in range(most):
        with torch.no_grad():
            states, past = model(ids, mask, positions, past)
            logits = model.logits(states[:, -1])
        ids = (logits / temperature + noise[:, index]).argmax(-1)
        chosen.append(ids)
        logprobs.append(token_logprobs(logits, ids, temperature=temperature))
        ended |= ids == end
        if bool(ended.all()):
            break
        ids, positions = ids[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones(rows, 1, dtype=mask.dtype)], 1)
    turns = []
    for row, scores in zip(torch.stack(chosen, 1).tolist(), torch.stack(logprobs, 1).tolist(), strict=True):
        size = row.index(end) + 1 if end in row else len(row)
        turns.append((row[:size], scores[:size]))
    return turns
