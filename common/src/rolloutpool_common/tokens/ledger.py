"""The token ledger: which ids a rollout consists of, and which of them the policy sampled.

A ledger is written in the order in which things happen; mask, log-probabilities and samples are views of what was
written. Nothing is inferred from roles, texts or lengths.

1. `seed` opens it with the first prompt.
2. `append_sampled` adds what the policy sampled, verbatim: mask 1. Here ends the *head*: what was seen or sampled.
3. `append_close` and `append_glue` add what stands between two turns of the policy, as we predict it: mask 0.
4. The trainer reports the prompt of the next turn (its *echo*). `accept_echo` makes the context what the policy saw:
   - it equals the context: nothing changes;
   - it differs after the head: its end replaces our prediction (TAIL);
   - it differs inside the head: the current sample is closed as it is, and the echo is the prompt of a new sample
     (FORK). What was sampled before stays true to the context in which it was sampled.
5. `samples` cuts each sample after its last sampled id.

    ledger.seed([1, 2, 3])                          context 1 2 3
    ledger.append_sampled([10, 11], [-.5, -.2], turn=1)     1 2 3 10 11            mask 0 0 0 1 1
    ledger.append_glue([20], turn=1)                        1 2 3 10 11 20              0 0 0 1 1 0
    ledger.accept_echo([1, 2, 3, 10, 11, 21])       TAIL    1 2 3 10 11 21              0 0 0 1 1 0
    ledger.accept_echo([1, 2, 3, 7, 21])            FORK    1 2 3 7 21                  0 0 0 0 0
    ledger.append_sampled([12], [-.1], turn=2)              1 2 3 7 21 12               0 0 0 0 0 1
    ledger.samples()      prompt 1 2 3, response 10 11, mask 1 1; prompt 1 2 3 7 21, response 12, mask 1

Invariants: the segments tile the context without gap. The mask is 1 if and only if an id was sampled and is trained.
Over all samples each sampled id occurs exactly once with mask 1. `TokenLedger.replay(ledger.entries) == ledger`.

Knows no tokenizer and does no I/O. Not thread-safe: one rollout, one ledger.
"""

import hashlib
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

from rolloutpool_common.tokens.arrays import float_array, float_bytes, id_array, id_bytes, id_hash, pack_bytes, unpack
from rolloutpool_common.tokens.comparison import EchoComparison, EchoKind, first_difference
from rolloutpool_common.tokens.entries import (
    Entry,
    ForkEntry,
    SampledEntry,
    SeedEntry,
    TailEntry,
    TextEntry,
    TokenizerFingerprint,
)
from rolloutpool_common.tokens.errors import (
    BadLogprob,
    LedgerCorrupt,
    LedgerError,
    LedgerMismatch,
    LedgerOrder,
    TokenCountMismatch,
)
from rolloutpool_common.tokens.samples import ClosedSample, Sample, sample_of
from rolloutpool_common.tokens.segments import Segment, SegmentKind, cut, mask_of

_EQUAL = EchoComparison(EchoKind.EQUAL, None)


class TokenLedger:
    """The ids of one rollout with their provenance. Every append costs O(new ids)."""

    def __init__(self, fingerprint: TokenizerFingerprint | None = None) -> None:
        """An empty ledger; `fingerprint` names what renders into it and is checked by `replay`."""
        self._fingerprint = fingerprint
        self._entries: list[Entry] = []
        self._closed: list[ClosedSample] = []
        self._ids = array("I")
        self._shared = 0  # with the previous sample
        self._segments: list[Segment] = []
        self._head = 0
        # The last sampled turn, and where its ids begin; they end at the head.
        self._turn: int | None = None
        self._turn_start = 0
        self.cuts = 0
        """How often ids were taken out of the context. As long as it stays, the context only grows."""
        self._hash = id_hash()
        self._head_hash = self._hash.copy()

    def __len__(self) -> int:
        """Number of ids in the current context."""
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        """Equal journals and equal states."""
        if not isinstance(other, TokenLedger):
            return NotImplemented
        mine, others = ({k: v for k, v in vars(x).items() if not k.endswith("_hash")} for x in (self, other))
        return mine == others and (self.digest, self.head_digest) == (other.digest, other.head_digest)

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The whole journal."""
        return tuple(self._entries)

    def entries_since(self, n: int) -> tuple[Entry, ...]:
        """The journal without its first n entries."""
        return tuple(self._entries[n:])

    @property
    def ids(self) -> list[int]:
        """The current context, [len(self)]: the prompt of the next model call."""
        return self._ids.tolist()

    def ids_from(self, start: int) -> list[int]:
        """The current context without its first `start` ids."""
        return self._ids[start:].tolist()

    @property
    def mask(self) -> list[int]:
        """1 where the current context's id was sampled and is trained, [len(self)]."""
        return mask_of(self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Tile the current context without gap."""
        return tuple(self._segments)

    @property
    def head(self) -> int:
        """Returns where the context ended when the policy's last turn was appended; 0 before that."""
        return self._head

    def last_sampled(self, most: int) -> Sequence[int]:
        """Up to `most` of the last ids that the policy sampled in its last turn; empty if it sampled none."""
        return self._ids[max(self._turn_start, self._head - most) : self._head]

    @property
    def pending_glue(self) -> int:
        """How many ids the next prompt adds to what the policy already saw or sampled; 0 before its first turn."""
        return len(self._ids) - self._head if self._head else 0

    @property
    def digest(self) -> bytes:
        """Blake2b-128 over the context's ids as little-endian uint32, 16 bytes."""
        return self._hash.copy().digest()

    @property
    def head_digest(self) -> bytes:
        """The same over the first `head` ids."""
        return self._head_hash.copy().digest()

    def samples(self) -> list[Sample]:
        """All training samples, in order; one without sampled ids is left out."""
        samples = []
        ids = array("I")
        # Each is kept as its difference from the one before.
        for closed in (*self._closed, self._close()):
            ids = ids[: closed.shared] + closed.own
            if any(segment.kind is SegmentKind.SAMPLED for segment in closed.segments):
                samples.append(sample_of(ids, closed.segments))
        return samples

    def seed(self, prompt_ids: Sequence[int]) -> None:
        """Open the ledger with the first prompt. Raises LedgerOrder if it is open already, BadTokenId."""
        ids = id_array(prompt_ids)
        after = self._after(ids)
        self._apply(
            SeedEntry(ids=pack_bytes(id_bytes(ids)), after=after.hexdigest(), fingerprint=self._fingerprint), ids, after
        )

    def append_sampled(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        turn: int,
        policy_version: str | None = None,
        train: bool = True,
    ) -> None:
        """Append what the policy sampled, verbatim."""
        new, floats = id_array(ids), float_array(logprobs)
        data = id_bytes(new)
        after = self._hash.copy()
        after.update(data)
        entry = SampledEntry(
            ids=pack_bytes(data),
            after=after.hexdigest(),
            logprobs=pack_bytes(float_bytes(floats)),
            turn=turn,
            policy_version=policy_version,
            train=train,
        )
        self._apply(entry, new, after, floats)

    def append_glue(self, ids: Sequence[int], *, turn: int) -> None:
        """Append text of environment or template, mask 0. No ids, no effect."""
        self._append_text(SegmentKind.GLUE, ids, turn)

    def append_close(self, ids: Sequence[int], *, turn: int) -> None:
        """Append the close token that the policy did not sample, mask 0. No ids, no effect."""
        self._append_text(SegmentKind.SYNTH_CLOSE, ids, turn)

    def compare(self, echo_ids: Sequence[int], *, prefix: int = 0) -> EchoComparison:
        """How the prompt that the policy saw relates to the context. Changes nothing.

        The trainer has left out its first `prefix` ids, and proved by digest that they are ours.
        """
        return self._compare(id_array(echo_ids), prefix)

    def accept_echo(self, echo_ids: Sequence[int], *, prefix: int = 0) -> EchoComparison:
        """Make the context what the policy saw.

        EQUAL changes nothing. TAIL replaces what we predicted after the last sampled id. FORK closes the current sample
        and opens the next one, with the echo as its prompt. Raises LedgerOrder before `seed`.
        """
        echo = id_array(echo_ids)
        comparison = self._compare(echo, prefix)
        keep = comparison.first_difference
        if keep is not None:
            new = echo[keep - prefix :]
            entry_type = ForkEntry if comparison.kind is EchoKind.FORK else TailEntry
            after = self._after(new, keep)
            self._apply(entry_type(ids=pack_bytes(id_bytes(new)), after=after.hexdigest(), keep=keep), new, after)
        return comparison

    @classmethod
    def replay(cls, entries: Iterable[Entry], *, fingerprint: TokenizerFingerprint | None = None) -> "TokenLedger":
        """The ledger that wrote these entries.

        Raises LedgerMismatch if it was written under another fingerprint than `fingerprint`, LedgerCorrupt if an
        entry is missing, doubled or altered.
        """
        ledger = cls(fingerprint)
        ledger.absorb(entries)
        return ledger

    def absorb(self, entries: Iterable[Entry]) -> None:
        """Apply the entries that another ledger wrote after the ones that this one has; raises as `replay` does."""
        for index, entry in enumerate(entries, len(self._entries)):
            ids = unpack(entry.ids, array("I"))
            logprobs = unpack(entry.logprobs, array("d")) if isinstance(entry, SampledEntry) else None
            keep = entry.keep if isinstance(entry, TailEntry | ForkEntry) else len(self)
            # `after` is the digest of the whole context after this entry, so nothing before it can have changed unseen.
            after = self._after(ids, keep) if 0 <= keep <= len(self) else None
            if after is None or entry.after != after.hexdigest():
                raise LedgerCorrupt(
                    f"The digest after journal entry {index} ({entry.op}) differs: it or one before it is missing, "
                    "doubled or altered. The rollout cannot be resumed from this journal."
                )
            try:
                self._apply(entry, ids, after, logprobs)
            except LedgerMismatch:
                raise
            except LedgerError as error:
                raise LedgerCorrupt(f"Journal entry {index} ({entry.op}) cannot be applied: {error.message}") from error

    def _apply(
        self, entry: Entry, ids: "array[int]", after: "hashlib.blake2b", logprobs: "array[float] | None" = None
    ) -> None:
        """Checks and changes the state as the entry says, whose ids have the hash `after` behind them."""
        if isinstance(entry, SeedEntry) == bool(self._entries):
            raise LedgerOrder("A ledger is seeded once, with the first prompt, before anything else.")
        head = self._head_hash
        match entry:
            case SeedEntry():
                self._apply_seed(entry, ids)
            case SampledEntry():
                self._apply_sampled(entry, ids, logprobs or array("d"))
                head = after
            case TextEntry():
                if self._turn is not None and entry.turn < self._turn:
                    raise self._earlier(entry.turn)
                if not ids:
                    raise LedgerError("A text entry has no ids; a ledger writes none like it.")
                self._extend(Segment(entry.kind, len(self._ids), len(ids), entry.turn), ids)
            case TailEntry():
                self._apply_tail(entry, ids)
            case ForkEntry():
                self._apply_fork(entry, ids)
                head = id_hash()
        # Never updated in place, so the hash of the head may be the same object.
        self._hash, self._head_hash = after, head
        self._entries.append(entry)

    def _apply_seed(self, entry: SeedEntry, ids: "array[int]") -> None:
        if entry.fingerprint != self._fingerprint:
            raise LedgerMismatch(
                f"The journal was written with {entry.fingerprint} and cannot be resumed with {self._fingerprint}. "
                "Resume it on a worker with the same tokenizer, template and transformers."
            )
        _refuse_empty_prompt(len(ids))
        self._extend(Segment(SegmentKind.PROMPT, 0, len(ids), turn=0), ids)

    def _apply_sampled(self, entry: SampledEntry, ids: "array[int]", logprobs: "array[float]") -> None:
        turn, start, n = entry.turn, len(self._ids), len(ids)
        if self._turn is not None and turn < self._turn:
            raise self._earlier(turn)
        if n != len(logprobs):
            raise TokenCountMismatch(
                f"Turn {turn} has {n} sampled ids and {len(logprobs)} log-probabilities; the trainer must return one "
                "per id."
            )
        if not all(map(math.isfinite, logprobs)):
            raise BadLogprob(f"Turn {turn} has a log-probability that is not finite.")
        if turn != self._turn:
            self._turn_start = start
        elif self._head != start:
            raise LedgerOrder(f"Turn {turn} was already sampled, and other text follows it.")
        version, train = entry.policy_version, entry.train
        self._extend(Segment(SegmentKind.SAMPLED, start, n, turn, tuple(logprobs), version, train), ids)
        self._head, self._turn = start + n, turn

    def _apply_tail(self, entry: TailEntry, ids: "array[int]") -> None:
        if entry.keep < self._head:
            raise LedgerOrder(f"It keeps {entry.keep} ids, where {self._head} were seen or sampled.")
        _refuse_empty_prompt(entry.keep + len(ids))
        turn = self._segments[-1].turn
        self._truncate(entry.keep)
        # Before anything is sampled there is only a prompt, and the tail is a part of it.
        kind = SegmentKind.GLUE if self._head else SegmentKind.PROMPT
        self._extend(Segment(kind, len(self), len(ids), turn), ids)

    def _apply_fork(self, entry: ForkEntry, ids: "array[int]") -> None:
        keep = entry.keep
        if keep >= self._head:
            raise LedgerOrder(f"It keeps {keep} ids, where {self._head} were seen or sampled.")
        _refuse_empty_prompt(keep + len(ids))
        # First of all, because the next lines cut off ids that belong to it.
        self._closed.append(self._close())
        turn = self._segments[-1].turn
        self._head = 0
        self._truncate(keep)
        self._shared, self._segments = keep, []
        self._extend(Segment(SegmentKind.PROMPT, 0, keep + len(ids), turn), ids)

    def _earlier(self, turn: int) -> LedgerOrder:
        return LedgerOrder(f"Turn {turn} comes after turn {self._turn}.")

    def _append_text(
        self, kind: Literal[SegmentKind.GLUE, SegmentKind.SYNTH_CLOSE], ids: Sequence[int], turn: int
    ) -> None:
        new = id_array(ids)
        if new:
            data = id_bytes(new)
            after = self._hash.copy()
            after.update(data)
            self._apply(TextEntry(kind=kind, ids=pack_bytes(data), after=after.hexdigest(), turn=turn), new, after)

    def _extend(self, segment: Segment, ids: "array[int]") -> None:
        """Appends the ids; `segment` covers them, and after a fork what is kept before them as well."""
        self._ids.extend(ids)
        if segment.n:
            self._segments.append(segment)

    def _truncate(self, keep: int) -> None:
        self.cuts += 1
        del self._ids[keep:]
        self._segments = cut(self._segments, keep)
        self._shared = min(self._shared, keep)

    def _close(self) -> ClosedSample:
        return ClosedSample(self._shared, self._ids[self._shared : self._head], tuple(cut(self._segments, self._head)))

    def _hash_of(self, keep: int) -> "hashlib.blake2b":
        """The running hash over the first `keep` ids; takes O(ids after the head) where the head is kept."""
        if keep == len(self):
            return self._hash.copy()
        base, running = (self._head, self._head_hash.copy()) if keep >= self._head else (0, id_hash())
        running.update(id_bytes(self._ids[base:keep]))
        return running

    def _after(self, ids: "array[int]", keep: int | None = None) -> "hashlib.blake2b":
        """The running hash after these ids, which follow the first `keep` of the context, or all of it."""
        running = self._hash.copy() if keep is None else self._hash_of(keep)
        running.update(id_bytes(ids))
        return running

    def _compare(self, echo: "array[int]", prefix: int) -> EchoComparison:
        if not self._entries:
            raise LedgerOrder("The ledger has no prompt yet: seed it with the echo instead of comparing it.")
        if not 0 <= prefix <= len(self):
            raise LedgerOrder(f"The echo follows {prefix} ids, but the context has {len(self)}.")
        offset = first_difference(self._ids[prefix:], echo)
        if offset is None:
            return _EQUAL
        position = prefix + offset
        return EchoComparison(EchoKind.FORK if position < self._head else EchoKind.TAIL, position)


def _refuse_empty_prompt(n: int) -> None:
    if not n:
        raise LedgerError("The prompt is empty: no policy samples from nothing. Check the trainer's reply.")
