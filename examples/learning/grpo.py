"""One run: GRPO on the calculator, through the API, Redis, workers and callbacks of a real pool.

A step takes as many groups as a batch has, rewards them, and makes one update. In every arm, each token that the
current weights sampled is compared with what the trainer computes for it, before the update. A difference above
`AGREEMENT` ends the run.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count, islice
from statistics import fmean
from typing import Any

import torch
from examples.learning.arms import Arm, Mask
from examples.learning.faults import FaultyEndpoint
from examples.learning.kills import Kills
from examples.learning.records import Run
from examples.learning.task import Question, questions, reward
from examples.learning.transformer import Transformer, noise_of, sample
from examples.learning.wrong_masks import all_ones, length_difference

from rolloutpool_common.outcomes import FailureKind
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_rl.advantages import group_advantages
from rolloutpool_rl.logits import response_slice, token_logprobs
from rolloutpool_rl.losses import policy_loss
from rolloutpool_rl.padded_batch import padded_batch
from rolloutpool_rl.reductions import token_mean
from rolloutpool_trainer import (
    GenerateParams,
    Generation,
    LocalPool,
    RolloutStream,
    batched,
    callback_app,
    serve_callback,
)

__all__ = ["AGREEMENT", "ENDPOINTS", "Policy", "Settings", "Training", "batches", "run"]

AGREEMENT = 1e-4
"""How far the log-probabilities of sampler and trainer may be apart, on any token."""
WARM_UP = 5
"""Steps until the rate is whole."""
ENDPOINTS = 2
"""The trainer listens on so many ports, from `base_port` on."""


@dataclass(frozen=True)
class Settings:
    """What all arms share."""

    steps: int = 25
    groups: int = 5
    """Questions per step."""
    size: int = 6
    """Rollouts per question."""
    rate: float = 1e-3
    max_tokens: int = 40
    """Of a turn."""
    max_turns: int = 4


class Policy:
    """What `batched` asks: samples turns with the weights in training."""

    def __init__(self, model: Transformer, *, seed: int, most: int, end: int) -> None:
        self.model, self.step = model, 0
        self._seed, self._most, self._end = seed, most, end

    def __call__(self, prompts: list[list[int]], params: list[GenerateParams]) -> list[Generation]:
        """Samples one turn for each prompt."""
        version = f"step-{self.step}"
        names = [f"{self._seed}/{one.rollout_id}/{one.turn}" for one in params]
        noise = torch.stack([noise_of(name, self._most, self.model.shape.vocabulary) for name in names])
        turns = sample(self.model, prompts, noise, temperature=params[0].temperature, end=self._end)
        return [
            Generation(
                token_ids=ids,
                logprobs=logprobs,
                finish_reason="stop" if ids[-1] == self._end else "length",
                policy_version=version,
            )
            for ids, logprobs in turns
        ]


class Training:
    """The weights, the optimiser, and what an arm does to a batch of rollouts."""

    def __init__(self, model: Transformer, tokenizer: ChatTokenizer, arm: Arm, rate: float) -> None:
        self._model, self._tokenizer, self._arm = model, tokenizer, arm
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, betas=(0.9, 0.99))
        # Adam's first steps move all weights alike, whatever their gradients.
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda step: min((step + 1) / WARM_UP, 1.0))

    def step(self, rollouts: Sequence[RolloutResult], rewards: Sequence[float], step: int) -> dict[str, float]:
        """Makes one update.

        Args:
            rollouts: What is trained.
            rewards: Of each.
            step: The number of the weights.

        Returns:
            Figures of it.

        Raises:
            AssertionError: Sampler and trainer disagree about a log-probability.
        """
        arm, pad = self._arm, self._tokenizer.close_id or 0
        gains = group_advantages(rewards, [(one.batch_id, one.group) for one in rollouts]).tolist()
        truth = padded_batch(rollouts, rewards, advantages=gains, pad_id=pad).to_torch()
        held = truth
        if arm.mask is not Mask.OURS:
            held = padded_batch(list(map(self._held, rollouts)), rewards, advantages=gains, pad_id=pad).to_torch()
        ids, responses = truth["input_ids"], truth["responses"]
        states, _ = self._model(ids, truth["attention_mask"], truth["position_ids"])
        logits = self._model.logits(states[:, response_slice(ids.shape[1], responses.shape[1])])
        logprobs = token_logprobs(logits, responses)
        sampled = truth["response_mask"] == 1
        current = sampled & (truth["versions"] == step)
        differences = (logprobs.detach() - truth["rollout_log_probs"]).abs()[current]
        worst = differences.max().item() if len(differences) else 0.0
        assert worst <= AGREEMENT, f"step {step}: sampler and trainer differ by {worst:.1e}"
        old = held["rollout_log_probs"]
        if arm.mask in (Mask.ONES, Mask.LENGTHS_RECOMPUTED):
            old = torch.where(sampled, truth["rollout_log_probs"], logprobs.detach())
        mask = held["response_mask"]
        parts = policy_loss(logprobs, old, held["advantages"], mask)
        self._optimizer.zero_grad()
        token_mean(parts.loss, mask).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        foreign = (truth["attention_mask"][:, -responses.shape[1] :] == 1) & ~sampled
        ages = step - truth["versions"][sampled].float()
        return {
            "trained": int(mask.sum()),
            "foreign": int((mask.bool() & ~sampled).sum()),
            "missed": int((sampled & ~mask.bool()).sum()),
            "compared": len(differences),
            "difference": worst,
            "entropy": token_mean(-logprobs.detach(), sampled).item(),
            "foreign surprise": token_mean(-logprobs.detach(), foreign).item(),
            "clipped": token_mean(parts.clipped, mask).item(),
            "age": ages.mean().item(),
        }

    def _held(self, rollout: RolloutResult) -> RolloutResult:
        """The rollout as a trainer with this arm's mask holds it."""
        samples = [
            all_ones(one) if self._arm.mask is Mask.ONES else length_difference(rollout, one, self._tokenizer)
            for one in rollout.samples
        ]
        return rollout.model_copy(update={"samples": samples})


def batches(seed: int, settings: Settings, known: dict[str, Question]) -> Iterator[list[dict[str, Any]]]:
    """Yields the questions of batch after batch, as `RolloutStream` takes them.

    Args:
        seed: The same seed asks the same questions, under the same names.
        settings: How many.
        known: Gets each question under its text.
    """
    rng = random.Random(1000 + seed)
    for batch in count():
        asked = questions(rng, settings.groups)
        known |= {question.text: question for question in asked}
        yield [
            {
                "rollout_id": f"b{batch}-q{index}",
                "group": f"q{index}",
                "n": settings.size,
                "messages": [{"role": "user", "content": question.text}],
            }
            for index, question in enumerate(asked)
        ]


def run(
    record: Run,
    arm: Arm,
    model: Transformer,
    tokenizer: ChatTokenizer,
    pool: LocalPool,
    settings: Settings,
    *,
    base_port: int,
    advance: Callable[[str], None],
    kills: Kills | None = None,
) -> None:
    """Trains with one arm and one seed.

    Args:
        record: Says which seed, and gets the figures of each step.
        arm: What is done.
        model: The start; it is changed.
        tokenizer: Of the task.
        pool: A running pool.
        settings: What all arms share.
        base_port: First of the trainer's ports.
        advance: Called after each step, with a note for people.
        kills: Ends processes of the pool on the way.
    """
    end = tokenizer.close_id
    assert end is not None
    policy = Policy(model, seed=record.seed, most=settings.max_tokens, end=end)
    training = Training(model, tokenizer, arm, settings.rate)
    app = callback_app(batched(policy, most=settings.groups * settings.size), tokenizer=tokenizer)
    endpoint = FaultyEndpoint(app, arm.fault) if arm.fault else app
    defaults = {
        "tokenizer_name": tokenizer.name,
        "sampling_params": {"temperature": 1.0, "max_tokens": settings.max_tokens},
        "max_turns": settings.max_turns,
        "tools": ["add", "subtract", "multiply"],
    }
    known: dict[str, Question] = {}
    ports = [base_port + index for index in range(ENDPOINTS)]
    started, cpu = time.monotonic(), time.process_time()
    with pool.client(timeout=300) as client, serve_callback(endpoint, ports):
        stream = RolloutStream(
            client,
            batches(record.seed, settings, known),
            in_flight=arm.in_flight,
            max_staleness=arm.max_staleness,
            # A group of which one is left teaches nothing: its advantage is 0. Failures count where they are data.
            min_usable=1 if arm.failures_are_zeros else 2,
            trainer={"host": "127.0.0.1", "base_port": base_port, "workers": ENDPOINTS},
            defaults=defaults,
        )
        stream.version = 0
        groups = iter(stream)
        for step in range(settings.steps):
            began = time.monotonic()
            with _killed(kills, step):
                taken = list(islice(groups, settings.groups))
            sampled = time.monotonic()
            app.pause()
            ended = [one for group in taken for one in group.rollouts]
            lost = [one for group in taken for one in group.refillable] if arm.failures_are_zeros else []
            solved = {one.uid: _solved(one, known) for one in ended}
            trained = sorted([*ended, *map(_as_data, lost)], key=lambda one: (one.batch_id, one.index))
            figures = training.step(trained, [solved.get(one.uid, 0.0) for one in trained], step)
            policy.step = stream.version = step + 1
            app.resume()
            summary = stream.summary()
            record.add(
                {
                    "solved": fmean(solved.values()),
                    "calls": fmean(one.num_tool_calls for one in ended),
                    "rollouts": len(ended),
                    "lost": sum(len(group.refillable) for group in taken),
                    "retried": summary["rollouts/retried"],
                    "forked": summary["alignment/forked"] + summary["alignment/unverified"],
                    **figures,
                    "seconds sampling": sampled - began,
                    "seconds training": time.monotonic() - sampled,
                }
            )
            advance(f"solved {record.steps['solved'][-1]:.2f}")
        stream.cancel()
        dropped = stream.dropped
    record.kills = [] if kills is None else kills.done
    record.totals = {
        "seconds": round(time.monotonic() - started, 1),
        "cpu seconds of the trainer": round(time.process_time() - cpu, 1),
        "compared": sum(record.steps["compared"]),
        "difference": max(record.steps["difference"]),
        **{f"dropped {reason}": number for reason, number in sorted(dropped.items())},
    }


def _killed(kills: Kills | None, step: int) -> AbstractContextManager[None]:
    return nullcontext() if kills is None else kills.during(step)


def _solved(rollout: RolloutResult, known: dict[str, Question]) -> float:
    said = rollout.messages[-1]
    text = said.content if said.role == "assistant" and isinstance(said.content, str) else None
    return reward(known[str(rollout.messages[0].content)], text)


def _as_data(rollout: RolloutResult) -> RolloutResult:
    """A failure of the infrastructure, dressed up as if the policy had failed. That is what the arm shows."""
    assert rollout.failure is not None
    return rollout.model_copy(update={"failure": rollout.failure.model_copy(update={"kind": FailureKind.POLICY})})
