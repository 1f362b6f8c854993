"""The token ledger: which ids a rollout consists of, and which of them the policy sampled.

Append-only. State is the fold of `entries`, so `TokenLedger.replay(ledger.entries) == ledger`. In every sample
the segments tile the ids without gap; mask 1 if and only if an id was sampled and is trained; over all samples
each sampled id occurs exactly once with mask 1, in the context it was really sampled in. Nothing is inferred
from roles, texts or lengths, and what the policy did not see is never "repaired".
Knows no tokenizer and does no I/O. Not thread-safe: one rollout, one ledger.
"""

import hashlib
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rolloutpool_common.tokens.entries import (
    BadLogprob,
    BadTokenId,
    EchoComparison,
    EchoKind,
    Entry,
    ForkEntry,
    LedgerCorrupt,
    LedgerError,
    LedgerMismatch,
    LedgerOrder,
    Sample,
    SampledEntry,
    SeedEntry,
    Segment,
    SegmentKind,
    TailEntry,
    TextEntry,
    TokenCountMismatch,
    TokenizerFingerprint,
    cut,
    export,
    first_difference,
    float_array,
    id_array,
    id_bytes,
    id_hash,
    mask_of,
    pack,
    parse_entry,
    unpack,
)

__all__ = [
    "BadLogprob",
    "BadTokenId",
    "EchoComparison",
    "EchoKind",
    "Entry",
    "LedgerCorrupt",
    "LedgerError",
    "LedgerMismatch",
    "LedgerOrder",
    "Sample",
    "Segment",
    "SegmentKind",
    "TokenCountMismatch",
    "TokenLedger",
    "TokenizerFingerprint",
    "parse_entry",
]


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A sample that ended. Its ids are the previous sample's first `shared` ids, then `own`."""

    shared: int
    own: "array[int]"
    segments: tuple[Segment, ...]


class TokenLedger:
    """The ids of one rollout with their provenance. Every append costs O(new ids)."""

    def __init__(self, fingerprint: TokenizerFingerprint | None = None) -> None:
        """An empty ledger; `fingerprint` names what renders into it and is checked by `replay`."""
        self._fingerprint = fingerprint
        self._entries: list[Entry] = []
        self._sealed: list[_Sealed] = []
        self._ids = array("I")
        self._shared = 0  # how many of the ids are stored with the previous sample as well
        self._segments: list[Segment] = []
        self._head = 0
        self._turn: int | None = None
        self._last: int | None = None
        self._hash = id_hash()
        self._head_hash = self._hash.copy()

    # -- reading

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
    def fingerprint(self) -> TokenizerFingerprint | None:
        """What renders into this ledger."""
        return self._fingerprint

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The whole journal."""
        return tuple(self._entries)

    def entries_since(self, n: int) -> tuple[Entry, ...]:
        """The journal behind its first n entries."""
        return tuple(self._entries[n:])

    @property
    def ids(self) -> list[int]:
        """The current context, [len(self)]."""
        return self._ids.tolist()

    @property
    def context(self) -> list[int]:
        """The prompt of the next model call: all ids of the current sample."""
        return self._ids.tolist()

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
        """Where the context ended when the policy's last turn was appended; 0 before that."""
        return self._head

    @property
    def turn(self) -> int | None:
        """The last sampled turn."""
        return self._turn

    @property
    def last_sampled_id(self) -> int | None:
        """The id that ended the policy's last turn; None if that turn had none, or before the first."""
        return self._last

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

    def samples(self) -> tuple[Sample, ...]:
        """All training samples, each cut behind its last sampled id; one without sampled ids is left out."""
        exported = []
        ids = array("I")
        for encrypted in (*self._sealed, self._seal()):
            ids = ids[: encrypted.shared] + encrypted.own
            if any(segment.kind is SegmentKind.SAMPLED for segment in encrypted.segments):
                exported.append(export(ids, encrypted.segments))
        return tuple(exported)

    # -- writing

    def seed(self, prompt_ids: Sequence[int]) -> None:
        """Open the ledger with the first prompt. Raises LedgerOrder if it is open already, BadTokenId."""
        ids = id_array(prompt_ids)
        self._apply(SeedEntry(ids=pack(ids), after=self._after(ids), fingerprint=self._fingerprint), ids)

    def append_sampled(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        turn: int,
        policy_version: str | None = None,
        train: bool = True,
        note: str | None = None,
    ) -> None:
        """Append what the policy sampled, verbatim.

        ids [n] may be empty: a server that withholds stop ids returns none for a turn that is only its stop id.
        logprobs [n], natural logarithm. A turn may come in several parts (say, one per policy version) as long as
        nothing lies between them. Raises TokenCountMismatch, BadLogprob, BadTokenId, LedgerOrder.
        """
        new, floats = id_array(ids), float_array(logprobs)
        entry = SampledEntry(
            ids=pack(new),
            after=self._after(new),
            logprobs=pack(floats),
            turn=turn,
            policy_version=policy_version,
            train=train,
            note=note,
        )
        self._apply(entry, new, floats)

    def append_glue(self, ids: Sequence[int], *, turn: int) -> None:
        """Append text of environment or template, mask 0. No ids, no effect."""
        self._append_text(SegmentKind.GLUE, ids, turn)

    def append_close(self, ids: Sequence[int], *, turn: int) -> None:
        """Append the close token that the policy did not sample, mask 0. No ids, no effect."""
        self._append_text(SegmentKind.SYNTH_CLOSE, ids, turn)

    def append_prefill(self, ids: Sequence[int], *, turn: int) -> None:
        """Append the start of a policy turn that somebody else wrote, mask 0. No ids, no effect."""
        self._append_text(SegmentKind.PREFILL, ids, turn)

    # -- verification

    def compare(self, echo_ids: Sequence[int], *, prefix: int = 0) -> EchoComparison:
        """How the prompt that the policy saw relates to the context. Changes nothing.

        `echo_ids` is the prompt without its first `prefix` ids, which the trainer proved by digest to be ours.
        """
        return self._compare(id_array(echo_ids), prefix)

    def accept_echo(self, echo_ids: Sequence[int], *, prefix: int = 0) -> EchoComparison:
        """Make the context what the policy saw.

        EQUAL changes nothing; TAIL replaces what we predicted behind the last sampled id; FORK seals the current
        sample and opens the next one with the echo as its prompt. Raises LedgerOrder before `seed`.
        """
        echo = id_array(echo_ids)
        verdict = self._compare(echo, prefix)
        keep = verdict.first_difference
        if keep is not None:
            new = echo[keep - prefix :]
            entry_type = ForkEntry if verdict.kind is EchoKind.FORK else TailEntry
            self._apply(entry_type(ids=pack(new), after=self._after(new, keep), keep=keep), new)
        return verdict

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
        """Apply the entries that another ledger wrote behind the ones that this one has; raises as `replay` does."""
        for index, entry in enumerate(entries, len(self._entries)):
            ids = unpack(entry.ids, array("I"))
            logprobs = unpack(entry.logprobs, array("d")) if isinstance(entry, SampledEntry) else None
            keep = entry.keep if isinstance(entry, TailEntry | ForkEntry) else len(self)
            if not 0 <= keep <= len(self) or entry.after != self._after(ids, keep):
                raise LedgerCorrupt(
                    f"The digest behind journal entry {index} ({entry.op}) differs: it or one before it is missing, "
                    "doubled or altered. The rollout cannot be resumed from this journal."
                )
            try:
                self._apply(entry, ids, logprobs)
            except LedgerMismatch:
                raise
            except LedgerError as error:
                raise LedgerCorrupt(f"Journal entry {index} ({entry.op}) cannot be applied: {error.message}") from error

    # -- the fold

    def _apply(self, entry: Entry, ids: "array[int]", logprobs: "array[float] | None" = None) -> None:
        """Check the entry against the state, then change the state; ids and logprobs are the entry's, unpacked."""
        self._check(entry, ids, logprobs)
        match entry:
            case SeedEntry():
                self._extend(ids, SegmentKind.PROMPT, turn=0)
            case SampledEntry(turn=turn):
                segment = Segment(SegmentKind.SAMPLED, len(self), len(ids), turn, tuple(logprobs or ()))
                self._extend(
                    ids, replace(segment, policy_version=entry.policy_version, train=entry.train, note=entry.note)
                )
                self._last = ids[-1] if ids else self._last if turn == self._turn else None
                self._head, self._head_hash, self._turn = len(self), self._hash.copy(), turn
            case TextEntry():
                self._extend(ids, entry.kind, entry.turn)
            case TailEntry(keep=keep):
                turn = self._segments[-1].turn
                self._truncate(keep)
                self._extend(ids, SegmentKind.GLUE if self._head else SegmentKind.PROMPT, turn)
            case ForkEntry(keep=keep):
                self._sealed.append(self._seal())
                turn = self._segments[-1].turn
                self._head, self._head_hash = 0, id_hash()
                self._truncate(keep)
                self._shared, self._segments = keep, []
                self._extend(ids, Segment(SegmentKind.PROMPT, 0, keep + len(ids), turn))
        self._entries.append(entry)

    def _check(self, entry: Entry, ids: "array[int]", logprobs: "array[float] | None") -> None:
        if isinstance(entry, SeedEntry) == bool(self._entries):
            raise LedgerOrder("A ledger is seeded once, with the first prompt, before anything else.")
        if isinstance(entry, SeedEntry) and entry.fingerprint != self._fingerprint:
            raise LedgerMismatch(
                f"The journal was written with {entry.fingerprint} and cannot be resumed with {self._fingerprint}. "
                "Resume it on a worker with the same tokenizer, template and transformers."
            )
        if isinstance(entry, SampledEntry | TextEntry) and self._turn is not None and entry.turn < self._turn:
            raise LedgerOrder(f"Turn {entry.turn} comes after turn {self._turn}.")
        if isinstance(entry, SampledEntry):
            n = len(logprobs or ())
            if len(ids) != n:
                raise TokenCountMismatch(
                    f"Turn {entry.turn} has {len(ids)} sampled ids and {n} log-probabilities; the trainer must return "
                    "one per id."
                )
            if not all(map(math.isfinite, logprobs or ())):
                raise BadLogprob(f"Turn {entry.turn} has a log-probability that is not finite.")
            if entry.turn == self._turn and self._head != len(self):
                raise LedgerOrder(f"Turn {entry.turn} was already sampled, and other text follows it.")
        if isinstance(entry, TailEntry | ForkEntry) and (entry.keep < self._head) != isinstance(entry, ForkEntry):
            raise LedgerOrder(f"It keeps {entry.keep} ids, where {self._head} were seen or sampled.")
        if not isinstance(entry, SampledEntry) and not ids and getattr(entry, "keep", 0) == 0:
            raise LedgerError("The prompt is empty: no policy samples from nothing. Check the trainer's reply.")

    def _append_text(
        self,
        kind: Literal[SegmentKind.GLUE, SegmentKind.SYNTH_CLOSE, SegmentKind.PREFILL],
        ids: Sequence[int],
        turn: int,
    ) -> None:
        new = id_array(ids)
        if new:
            self._apply(TextEntry(kind=kind, ids=pack(new), after=self._after(new), turn=turn), new)

    def _extend(self, ids: "array[int]", what: Segment | SegmentKind, turn: int = 0) -> None:
        segment = what if isinstance(what, Segment) else Segment(what, len(self), len(ids), turn)
        self._ids.extend(ids)
        self._hash.update(id_bytes(ids))
        if segment.n:
            self._segments.append(segment)

    def _truncate(self, keep: int) -> None:
        self._hash = self._hash_of(keep)
        del self._ids[keep:]
        self._segments = cut(self._segments, keep)
        self._shared = min(self._shared, keep)

    def _seal(self) -> _Sealed:
        return _Sealed(self._shared, self._ids[self._shared : self._head], tuple(cut(self._segments, self._head)))

    def _hash_of(self, keep: int) -> "hashlib.blake2b":
        """The running hash over the first `keep` ids; O(ids behind the head) where the head is kept."""
        if keep == len(self):
            return self._hash.copy()
        base, running = (self._head, self._head_hash.copy()) if keep >= self._head else (0, id_hash())
        running.update(id_bytes(self._ids[base:keep]))
        return running

    def _after(self, ids: "array[int]", keep: int | None = None) -> str:
        running = self._hash_of(len(self) if keep is None else keep)
        running.update(id_bytes(ids))
        return running.hexdigest()

    def _compare(self, echo: "array[int]", prefix: int) -> EchoComparison:
        if not self._entries:
            raise LedgerOrder("The ledger has no prompt yet: seed it with the echo instead of comparing it.")
        if not 0 <= prefix <= len(self):
            raise LedgerOrder(f"The echo follows {prefix} ids, but the context has {len(self)}.")
        offset = first_difference(self._ids[prefix:], echo)
        if offset is None:
            return EchoComparison(EchoKind.EQUAL, None)
        position = prefix + offset
        return EchoComparison(EchoKind.FORK if position < self._head else EchoKind.TAIL, position)
