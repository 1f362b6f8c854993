"""One run: GRPO on the calculator, through the API, Redis, workers and callbacks of a real pool.

1. A step takes as many groups as a batch has, rewards them, and makes one update.
2. Before the update, each sampled token's log-probability is computed again, with the weights that sampled it. In most
   arms these are the current ones; of earlier steps, copies are kept. A difference above `AGREEMENT` ends the run.
3. Before the first step and after the last one, the weights are tried on questions that are the same in all runs,
   without faults and with nothing sampled ahead. So arms are compared by what was learned, not by what happened while
   it was.
"""

import copy
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from statistics import fmean
from typing import Any

import torch
from examples.learning.arms import Arm, Mask
from examples.learning.faults import FaultyEndpoint
from examples.learning.kills import Kills
from examples.learning.records import Run
from examples.learning.task import Question, questions, reward
from examples.learning.transformer import Transformer, noise_of, sample
from examples.learning.wrong_masks import all_ones, concatenated, length_difference, shifted, shortest
from torch import Tensor

from rolloutpool_common.outcomes import FailureKind
from rolloutpool_common.protocol.result import RolloutResult, Sample
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
    RolloutClient,
    RolloutStream,
    batched,
    callback_app,
    serve_callback,
)

AGREEMENT = 1e-4
"""How far the log-probabilities of sampler and trainer may be apart, on any token."""
WARM_UP = 5
"""Steps until the rate is whole."""
HOST, ENDPOINTS = "127.0.0.1", 2
"""Where the trainer listens, and on how many ports from `base_port` on."""
KEPT = 32
"""So many steps old weights are kept, to compare what they sampled."""
GATHER_SECONDS = 0.05
"""How long a turn waits for others. The model is small, so a call costs about the same for one turn as for many."""


@dataclass(frozen=True)
class Settings:
    """What all arms share."""

    steps: int = 15
    groups: int = 8
    """Questions per step."""
    size: int = 6
    """Rollouts per question."""
    rate: float = 1e-3
    max_tokens: int = 40
    """Of a turn."""
    max_turns: int = 4
    tried: int = 128
    """Questions after the last step."""


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
        self._past: dict[int, dict[str, Tensor]] = {}
        """The weights of earlier steps."""
        self._older = copy.deepcopy(model)
        """Takes weights of an earlier step, to compare what they sampled."""
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=rate * arm.rate, weight_decay=0.0, betas=(0.9, 0.99))
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
        responses = truth["responses"]
        logprobs = _logprobs(self._model, truth)
        sampled = truth["response_mask"] == 1
        differences = self._differences(truth, logprobs.detach(), sampled, step)
        worst = differences.max().item() if len(differences) else 0.0
        assert worst <= AGREEMENT, f"step {step}: sampler and trainer differ by {worst:.1e}"
        old = held["rollout_log_probs"]
        if arm.mask in (Mask.ONES, Mask.LENGTHS_RECOMPUTED, Mask.SHIFTED):
            old = torch.where(sampled, truth["rollout_log_probs"], logprobs.detach())
        mask = held["response_mask"]
        parts = policy_loss(logprobs, old, held["advantages"], mask)
        self._past[step] = {name: weights.clone() for name, weights in self._model.state_dict().items()}
        self._past.pop(step - KEPT, None)
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
            "sampled": int(sampled.sum()),
            "compared": len(differences),
            "difference": worst,
            "entropy": token_mean(-logprobs.detach(), sampled).item(),
            "foreign surprise": token_mean(-logprobs.detach(), foreign).item(),
            "clipped": token_mean(parts.clipped, mask).item(),
            "age": ages.mean().item(),
        }

    def _differences(self, truth: dict[str, Tensor], logprobs: Tensor, sampled: Tensor, step: int) -> Tensor:
        """How far sampler and trainer are apart, [N]: on each token of `sampled` whose weights are still there."""
        found = []
        for version in truth["versions"][sampled].unique().tolist():
            those = sampled & (truth["versions"] == version)
            if version == step:
                computed = logprobs
            elif version in self._past:
                self._older.load_state_dict(self._past[version])
                with torch.no_grad():
                    computed = _logprobs(self._older, truth)
            else:
                continue
            found.append((computed - truth["rollout_log_probs"]).abs()[those])
        return torch.cat(found) if found else torch.zeros(0)

    def _held(self, rollout: RolloutResult) -> RolloutResult:
        """The rollout as a trainer with this arm's mask holds it.

        Raises:
            AssertionError: It holds other ids. Then the arm compares more than masks.
        """
        samples = [self._laid_out(rollout, one) for one in rollout.samples]
        assert [one.response_ids for one in samples] == [one.response_ids for one in rollout.samples]
        return rollout.model_copy(update={"samples": samples})

    def _laid_out(self, rollout: RolloutResult, sample: Sample) -> Sample:
        match self._arm.mask:
            case Mask.ONES:
                return all_ones(sample)
            case Mask.SHIFTED:
                return shifted(sample)
            case Mask.CONCATENATED:
                return concatenated(rollout, sample, self._tokenizer)
        rewrite = shortest if self._arm.drifts else _as_it_is
        return length_difference(rollout, sample, self._tokenizer, rewrite)


def _as_it_is(message: dict[str, Any]) -> dict[str, Any]:
    return message


def _logprobs(model: Transformer, batch: dict[str, Tensor]) -> Tensor:
    """Computes the log-probabilities of a batch's responses, [B, R]."""
    ids, responses = batch["input_ids"], batch["responses"]
    states, _ = model(ids, batch["attention_mask"], batch["position_ids"])
    logits = model.logits(states[:, response_slice(ids.shape[1], responses.shape[1])])
    return token_logprobs(logits, responses)


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
    together = batched(policy, most=settings.groups * settings.size, wait=GATHER_SECONDS)
    app = callback_app(together, tokenizer=tokenizer)
    endpoint = FaultyEndpoint(app, 0.0)
    trainer = {"host": HOST, "base_port": base_port, "workers": ENDPOINTS}
    defaults = {
        "tokenizer_name": tokenizer.name,
        "sampling_params": {"temperature": 1.0, "max_tokens": settings.max_tokens},
        "max_turns": settings.max_turns,
        "tools": ["add", "subtract", "multiply"],
    }
    known: dict[str, Question] = {}
    ports = [base_port + index for index in range(ENDPOINTS)]
    started, cpu = time.monotonic(), time.process_time()
    with pool.client(timeout=300) as client, serve_callback(endpoint, ports, HOST):
        stream = RolloutStream(
            client,
            batches(record.seed, settings, known),
            in_flight=arm.in_flight,
            max_staleness=arm.max_staleness,
            # A group of which one is left teaches nothing: its advantage is 0. Failures count where they are data.
            min_usable=1 if arm.failures_are_zeros else 2,
            trainer=trainer,
            defaults=defaults,
        )
        before = _tried(client, "before", settings.tried, trainer, defaults)
        endpoint.share = arm.fault
        stream.version = 0
        groups = stream.steps(settings.groups)
        for step in range(settings.steps):
            began = time.monotonic()
            with _killed(kills, step):
                taken = next(groups)
            sampled = time.monotonic()
            ended = [one for group in taken for one in group.rollouts]
            lost = [one for group in taken for one in group.refillable] if arm.failures_are_zeros else []
            solved = {one.uid: _solved(one, known) for one in ended}
            trained = sorted([*ended, *map(_as_data, lost)], key=lambda one: (one.batch_id, one.index))
            with stream.update(app) as version:
                figures = training.step(trained, [solved.get(one.uid, 0.0) for one in trained], step)
                policy.step = version
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
        endpoint.share = 0.0
        after = _tried(client, "after", settings.tried, trainer, defaults)
    if kills is not None:
        assert len(kills.done) == kills.planned, f"only {kills.done} could be killed"
        record.kills = kills.done
    record.totals = {
        "seconds": round(time.monotonic() - started, 1),
        "cpu seconds of the trainer": round(time.process_time() - cpu, 1),
        "solved before": before,
        "solved after": after,
        "sampled": sum(record.steps["sampled"]),
        "compared": sum(record.steps["compared"]),
        "difference": max(record.steps["difference"]),
        **{f"dropped {reason}": number for reason, number in sorted(dropped.items())},
    }


def _tried(client: RolloutClient, when: str, n: int, trainer: dict[str, Any], defaults: dict[str, Any]) -> float:
    """Asks questions that are the same in all runs, and tells which share is solved."""
    asked = questions(random.Random(2000), n)
    known = {question.text: question for question in asked}
    prompts = [
        {"rollout_id": f"{when}-{index}", "messages": [{"role": "user", "content": question.text}]}
        for index, question in enumerate(asked)
    ]
    ended = list(client.submit(prompts, trainer=trainer, defaults=defaults).results())
    lost = sum(one.failure is not None and one.failure.kind is FailureKind.INFRA for one in ended)
    assert not lost, f"{lost} of {n} rollouts failed by the infrastructure, though no faults were injected"
    return fmean(_solved(one, known) for one in ended)


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
