"""Judges: what must hold in each step of a history, and at its end. None shares code with what it judges.

- **Places.** Each open rollout has one owner of its next step (`tests/support/places.py`), at each look.
- **Ends.** Each accepted rollout ends once, with one result, that nothing changes later; in the way that it must.
- **Tokens.** The truth of a result is built from the trainer's notes and from a render of the conversation by
  transformers alone. Its template is the tiny tokenizer's, whose turns end with `<|im_end|>`. Sampled ids have mask 1,
  and what the template writes between two turns has mask 0.
- **Fences.** Redis takes nothing from who has lost the claim, and ends nothing twice: each journal record, result and
  grade is looked at as it arrives. A result is of the last attempt that asked the trainer, and a trainer that may not
  be asked twice is not.
- **Deaths.** Only a worker to which something happened may be declared dead.
- **Remains.** When all batches are deleted, Redis has only what is bounded.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.inproc.fake_redis import Keys
from tests.inproc.trainer import ONCE, RENDERS, Sampled, Trainer
from tests.property.store_world import KEPT
from tests.support.places import fault_in, places_of
from transformers import AutoTokenizer

from rolloutpool_common.store.connection import sources_of

ASSISTANT, END = "<|im_start|>assistant\n", "<|im_end|>"
IN_DOUBT = ("ambiguous_turn", "network_error")
Document = Mapping[str, Any]


@dataclass
class Rollout:
    """One accepted rollout, as its client submitted it."""

    uid: str
    server_url: str
    turns: int
    may_end: frozenset[str] = frozenset({"completed"})
    """Statuses in which it may end."""
    promised: bool = False
    """Whether the trainer has promised from the beginning that it may be asked again."""
    restartable: bool = False
    grader: str | None = None
    pushed: bool = False
    digest: str | None = None
    """Of its result, when it was first seen."""
    times_seen: int = 0
    """How often a reader of its batch was given it."""


class TokenJudge:
    """Knows the tokens of a conversation from transformers alone."""

    def __init__(self, directory: Path, tools: Sequence[dict[str, Any]]) -> None:
        """`tools` are those that every prompt shows."""
        self._tokenizer = AutoTokenizer.from_pretrained(str(directory))
        self._tools: list[Any] = list(tools)

    @cached_property
    def _end_id(self) -> int:
        (found,) = self.encode(END)
        return found

    def fault(self, result: Document, notes: Sequence[Sampled], *, renders: bool) -> str | None:
        """Compares a result's samples, messages and counts with the truth; returns what is wrong."""
        delivered = [
            {name: sample[name] for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs")}
            for sample in result["samples"]
        ]
        turns, messages = result["num_llm_calls"], result["messages"]
        spoken = sum(message["role"] == "assistant" for message in messages)
        if not turns == spoken == len(result["turns"]):
            return f"it counts {turns} turns, tells of {len(result['turns'])}, and has {spoken} messages of the policy"
        if any(_truth(chain) == delivered for chain in self._chains(messages, notes, turns, (), renders)):
            return None
        return f"its samples are no way through the {len(notes)} turns that were sampled"

    def _chains(
        self,
        messages: Sequence[Document],
        notes: Sequence[Sampled],
        turns: int,
        so_far: tuple[Sampled, ...],
        renders: bool,
    ) -> Iterator[tuple[Sampled, ...]]:
        if len(so_far) == turns:
            yield so_far
            return
        prompt = self._prompt(messages, so_far, renders)
        for note in notes:
            if note.turn == len(so_far) + 1 and list(note.prompt) == prompt:
                yield from self._chains(messages, notes, turns, (*so_far, note), renders)

    def _prompt(self, messages: Sequence[Document], so_far: Sequence[Sampled], renders: bool) -> list[int]:
        """The prompt of the next turn."""
        places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        history = messages[: places[len(so_far)]] if len(so_far) < len(places) else messages
        text = self._rendered(history)
        if renders or not so_far:
            return self.encode(text)
        # Behind the own words of the last turn. Contents have no control strings, so the template's are the only ones.
        begin = [match.end() for match in re.finditer(re.escape(ASSISTANT), text)][len(so_far) - 1]
        behind = self.encode(text[text.index(END, begin) :])
        last = so_far[-1]
        return [*last.prompt, *last.ids, *(behind[1:] if last.ids[-1] == self._end_id else behind)]

    def _rendered(self, messages: Sequence[Document]) -> str:
        clean = [{name: value for name, value in m.items() if value is not None} for m in messages]
        text = self._tokenizer.apply_chat_template(clean, tools=self._tools, add_generation_prompt=True, tokenize=False)
        return str(text)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        found: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found


def _truth(chain: Sequence[Sampled]) -> list[dict[str, list[Any]]]:
    samples: list[dict[str, list[Any]]] = []
    seen: list[int] = []
    for note in chain:
        prompt, ids = list(note.prompt), list(note.ids)
        added: list[int] = []
        if samples and prompt[: len(seen)] == seen:
            added = prompt[len(seen) :]
        else:
            samples.append({"prompt_ids": prompt, "response_ids": [], "response_mask": [], "response_logprobs": []})
        samples[-1]["response_ids"] += added + ids
        samples[-1]["response_mask"] += [0] * len(added) + [1] * len(ids)
        samples[-1]["response_logprobs"] += [0.0] * len(added) + list(note.logprobs)
        seen = prompt + ids
    return samples


@dataclass
class Judge:
    """Judges one history."""

    keys: Keys
    trainer: Trainer
    tokens: TokenJudge
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def open(self) -> list[str]:
        """What has not ended, as far as was looked."""
        return [uid for uid, rollout in self.rollouts.items() if rollout.digest is None]

    def look(self, most: int) -> None:
        """Notes what has ended, and judges the places of some open rollouts, all at this moment."""
        for uid in self.open:
            if self.keys.ask("EXISTS", f"rp:rollout:{uid}:result"):
                self.note(uid)
        still = self.open
        for uid in still[:: max(1, len(still) // most)]:
            batch_id, _, index = uid.rpartition("-")
            fault = fault_in(places_of(self.keys, batch_id, int(index)))
            if fault is not None:
                self.faults.append(f"places: {uid}: {fault}")
        workers = self.keys.ask("ZRANGE", "rp:workers", 0, -1)
        claims = Counter(uid for name in workers for uid in self.keys.smembers(f"rp:worker:{name}:claims"))
        self.faults += [f"places: {uid} is among the claims of two workers" for uid, n in claims.items() if n > 1]

    def note(self, uid: str) -> None:
        """Notes how a result looks that is there now, and that it stays so."""
        digest = hashlib.sha256(repr(self.keys.ask("GET", f"rp:rollout:{uid}:result")).encode()).hexdigest()
        before = self.rollouts[uid].digest
        if before is not None and before != digest:
            self.faults.append(f"ends: the result of {uid} has changed after it was delivered")
        self.rollouts[uid].digest = digest

    def end(self, results: Mapping[str, Document]) -> None:
        """Judges the end of all rollouts."""
        for uid, rollout in self.rollouts.items():
            result = results.get(uid)
            if result is None:
                self.faults.append(f"ends: {uid} never ended")
                continue
            self.note(uid)
            self.statuses[result["status"]] += 1
            if rollout.times_seen != 1:
                self.faults.append(f"ends: {uid} was delivered {rollout.times_seen} times")
            self._one(rollout, result)
        for uid in results.keys() - self.rollouts.keys():
            self.faults.append(f"ends: {uid} was never accepted")

    def door(self, fields: list[bytes], execute: Callable[[], None]) -> None:
        """Judges what Redis does with a command: who has lost a claim may write no record and end nothing."""
        place = _FENCED.get(fields[1].decode()) if fields[0] == b"EVALSHA" else None
        if place is None:
            return execute()
        given = [field.decode(errors="replace") for field in fields[3:]]
        # Many records come together.
        names = zip(given[::6], given[1::6], strict=True) if place == "journal" else [("-".join(given[:2]), given[2])]
        before = [(uid, token, self._state(uid)) for uid, token in names]
        execute()
        for uid, token, state in before:
            ended = state["status"] in _ENDED
            if self._state(uid) != state and ((token and state["token"] != token) or ended):
                had = "has ended" if ended else "is another's"
                self.faults.append(f"fences: {place} of {uid} was carried out, which {had}")

    def _state(self, uid: str) -> dict[str, Any]:
        known = self.keys.hgetall(f"rp:rollout:{uid}")
        records = self.keys.ask("LLEN", f"rp:rollout:{uid}:journal")
        result = self.keys.ask("STRLEN", f"rp:rollout:{uid}:result")
        names = ("status", "token", "turns", "ended")
        return {**{name: known.get(name) for name in names}, "records": records, "result": result}

    def deaths(self, harmed: Set[str]) -> None:
        """Judges who was declared dead."""
        declared = self.keys.ask("ZRANGE", "rp:condemned", 0, -1)
        self.faults += [f"deaths: {name} was declared dead, and lived" for name in declared if name not in harmed]

    def remains(self) -> None:
        """Judges what is left after all batches are deleted."""
        bounded = tuple(key.rstrip("*") for key in KEPT)
        left = [key for key in self.keys.names() if self.keys.ttl(key) < 0 and not key.startswith((*bounded, *_SUMS))]
        self.faults += [f"remains: {key}" for key in left]
        if int(self.keys.get("rp:open") or 0):
            self.faults.append("remains: rp:open is not 0")

    def _one(self, rollout: Rollout, result: Document) -> None:
        uid, status, failure = rollout.uid, result["status"], result["failure"]
        doubted = not rollout.promised and failure is not None and failure["category"] in IN_DOUBT
        if status not in rollout.may_end and not doubted:
            why = failure and f"{failure['category']}: {failure['message']}"
            self.faults.append(f"ends: {uid} has {status} ({why}), and may only have {set(rollout.may_end)}")
        notes = self.trainer.sampled[uid]
        if status == "completed" or result["samples"]:
            fault = self.tokens.fault(result, notes, renders=rollout.server_url == RENDERS)
            if fault is not None:
                self.faults.append(f"tokens: {uid}: {fault}")
        if status == "completed" and result["num_llm_calls"] != rollout.turns:
            self.faults.append(f"tokens: {uid} has {result['num_llm_calls']} turns and not {rollout.turns}")
        if status in ("completed", "failed") and result["attempt"] < max(self.trainer.attempts[uid], default=0):
            self.faults.append(f"fences: the result of {uid} is of an attempt that a later one had replaced")
        claimed = int(self.keys.hget(f"rp:rollout:{uid}", "attempt") or 0)
        # A rollout that is graded keeps the attempt that has sampled it.
        if rollout.grader is None and status in ("completed", "failed") and result["attempt"] != claimed:
            self.faults.append(f"fences: the result of {uid} is of attempt {result['attempt']}, and {claimed} had it")
        if rollout.server_url == ONCE and not rollout.restartable:
            twice = [key for key, times in self.trainer.asks[uid].items() if times > 1]
            self.faults += [f"fences: {key} was asked twice" for key in twice]
        if rollout.grader is not None and status == "completed":
            worth = sum(sum(sample["response_mask"]) for sample in result["samples"])
            if result["grade"] is None or result["reward"] != worth:
                self.faults.append(f"grades: {uid} has {result['reward']} and not {worth}")
        if rollout.pushed:
            pushed = self.trainer.pushed[uid]
            if not pushed or any(one != pushed[0] for one in pushed):
                self.faults.append(f"ends: {uid} was pushed {len(pushed)} times, or with different contents")


_ENDED = frozenset({"completed", "failed", "cancelled", "expired"})
_FENCED = {
    hashlib.sha1(source.encode()).hexdigest(): name
    for name in ("journal", "finish", "grade")
    for source in sources_of(name)
}
"""Scripts by their hashes; the token is the second argument for each record, or the third."""
_SUMS = ("rp:usage", "rp:offers", "rp:measures", "rp:endpoints", "rp:processes")
"""As many as there are owners, offers, endpoints and processes."""
