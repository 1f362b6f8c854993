"""The callback's headers: what a worker says about a turn beside the body, and what a trainer says beside its reply.

Protocol v1's body is fixed, so everything else travels in headers, and all of them are optional:

1. The worker names the turn (`TurnHeaders.key`), the attempt and the digest of the body. A trainer that keeps replies
   can then answer a repeated request with the reply of then, and refuse a different one for the same turn.
2. The worker offers to know the first ids of the prompt (`Echo`). A trainer whose own ids have the same digest leaves
   them out of `prompt_token_ids`.
3. The trainer repeats the name of the turn (`X-Turn-Key`), so that a reply that a proxy has mixed up is noticed.
4. The trainer says whether it keeps sampled ids, whether asking a turn again is safe, which version of the policy
   sampled, and what tokenizer it has.

Example of turn 3 of a rollout's second attempt:

    Idempotency-Key: b0c1…-0/3
    X-Rollout-Attempt: 2
    X-Request-Digest: 5d41402abc4b2a76b9719d911017c592

A fork's first own turn also says which turn of which rollout it is sampled again in place of (`X-Forked-From`), and its
body has the prompt's ids in `prompt_token_ids`: to this trainer the rollout begins there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from rolloutpool_common.tokens.entries import TokenizerFingerprint

HEADER_IDEMPOTENCY = "Idempotency-Key"
"""On the request: `<uid>/<turn>`, the same for the same turn whichever worker asks; with another mask after a 422
`<uid>/<turn>/2`, then `/3`."""
HEADER_ATTEMPT = "X-Rollout-Attempt"
"""On the request: which attempt asks, from 1; a trainer refuses a lower one than it has seen."""
HEADER_DIGEST = "X-Request-Digest"
"""On the request: blake2b-128 (hex) of the body without `restore_session`; the same key with another digest is a
409."""
HEADER_ECHO_PREFIX = "X-Echo-Prefix-Length"
"""On the request: how many first ids of the prompt the pool knows. On the reply: how many the trainer left out."""
HEADER_ECHO_DIGEST = "X-Echo-Prefix-Digest"
"""On the request: blake2b-128 (hex) of these ids as little-endian uint32, to compare with that of the trainer's own."""
HEADER_EDITED = "X-History-Edited"
"""On the request: `1`, the agent edited the history. The trainer renders it whole; the mask has a zero for each id."""
HEADER_FORKED_FROM = "X-Forked-From"
"""On the request: `<uid of the parent>/<turn>`, where a fork begins. The mask is null, and the body ends with the
prompt to sample after, `prompt_token_ids`."""
HEADER_POLICY_VERSION = "X-Policy-Version"
"""On the reply: which version of the policy sampled this turn."""
HEADER_KEEPS_IDS = "X-Keeps-Token-Ids"
"""On the reply: `true` from a trainer that keeps sampled ids, `false` from one that renders the history again."""
HEADER_IDEMPOTENT = "X-Idempotent-Turns"
"""On the reply, and on that to `GET /health`: `true` if a repeated `Idempotency-Key` gets the same reply again, and
waits for one that is being sampled."""
HEADER_TURN_KEY = "X-Turn-Key"
"""On every reply, errors and that to `GET /health` included: the request's `Idempotency-Key`, as it came."""
HEADER_FINGERPRINT = "X-Tokenizer-Fingerprint"
"""On the reply: `<sha256 of tokenizer.json>/<sha256 of the template>/<transformers version>`, and perhaps `/<name>` of
the tokenizer, percent-encoded."""
_LONGEST_NAME = 100
"""Characters of a tokenizer's name."""
_SHOWN = 12
"""Characters of a digest that tell it apart for people."""


@dataclass(frozen=True)
class TurnKey:
    """Names a turn of a rollout, as `Idempotency-Key` does."""

    uid: str
    """The pool's id of the rollout."""
    turn: int
    """From 1."""
    mask: int = 1
    """Which mask is tried, from 1: the trainer has refused the turn with those before."""

    @classmethod
    def parse(cls, value: str) -> "TurnKey":
        """Read the header."""
        uid, *numbers = value.split("/")
        valid = len(numbers) in (1, 2) and all(map(_is_number, numbers))
        if not uid or not valid or int(numbers[0]) < 1 or int(numbers[-1]) < len(numbers):
            raise ValueError(f"{HEADER_IDEMPOTENCY} must be <rollout uid>/<turn from 1>, or that and /<mask from 2>")
        return cls(uid, *map(int, numbers))

    def __str__(self) -> str:
        return f"{self.uid}/{self.turn}" + (f"/{self.mask}" if self.mask > 1 else "")


def branch_name(uid: str, branch: int) -> str:
    """Returns the name by which a trainer knows a branch: the rollout's own for the first, `UID~1` for the next.

    To the trainer each branch is a conversation of its own, which begins with turn 1.
    """
    return f"{uid}~{branch}" if branch else uid


@dataclass(frozen=True)
class Echo:
    """The start of the prompt, which the trainer need not send back if its own ids have the same digest."""

    prefix: int
    """How many ids."""
    digest: str
    """blake2b-128 of them, hex."""


@dataclass(frozen=True, kw_only=True)
class TurnHeaders:
    """Holds what a worker says about one request; all of it is None for a caller that speaks protocol v1 alone."""

    key: TurnKey | None
    attempt: int | None
    digest: str | None
    edited: bool = False
    echo: Echo | None = None
    forked_from: TurnKey | None = None
    """The turn of the parent in whose place a fork's first turn is sampled."""

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> "TurnHeaders":
        """Read a request's headers."""
        key = headers.get(HEADER_IDEMPOTENCY)
        attempt = headers.get(HEADER_ATTEMPT)
        if attempt is not None and (not _is_number(attempt) or int(attempt) < 1):
            raise ValueError(f"{HEADER_ATTEMPT} must be a number from 1")
        prefix, digest = headers.get(HEADER_ECHO_PREFIX), headers.get(HEADER_ECHO_DIGEST)
        echo = None
        if prefix is not None and digest is not None:
            if not _is_number(prefix):
                raise ValueError(f"{HEADER_ECHO_PREFIX} must be a number of ids")
            echo = Echo(int(prefix), digest)
        forked = headers.get(HEADER_FORKED_FROM)
        return cls(
            key=None if key is None else TurnKey.parse(key),
            attempt=None if attempt is None else int(attempt),
            digest=headers.get(HEADER_DIGEST) or None,
            edited=headers.get(HEADER_EDITED) == "1",
            echo=echo,
            forked_from=None if forked is None else TurnKey.parse(forked),
        )


def names_another_turn(said: Sequence[str], key: str | None) -> bool:
    """Tell whether a reply belongs to another request."""
    return any(name != key for name in said)


def write_fingerprint(fingerprint: TokenizerFingerprint, name: str | None = None) -> str:
    """Make the value of `X-Tokenizer-Fingerprint`; `name` is what this side calls the tokenizer."""
    parts = [fingerprint.tokenizer_sha256, fingerprint.template_sha256, fingerprint.transformers_version]
    return "/".join(parts if name is None else [*parts, quote(name[:_LONGEST_NAME], safe="")])


def differing_files(header: str, fingerprint: TokenizerFingerprint) -> list[str]:
    """Say in which files a trainer's `X-Tokenizer-Fingerprint` differs from another tokenizer; empty where in none.

    The version of transformers may differ: the files decide, and the ids are compared at every turn anyway.
    """
    ours = (fingerprint.tokenizer_sha256, fingerprint.template_sha256)
    theirs = [*header.split("/"), "", ""]
    names = ("tokenizer.json (vocabulary, merges, added tokens)", "chat template")
    return [
        f"{name}: theirs has the sha256 {their[:_SHOWN] or 'nothing'}, ours {our[:_SHOWN]}"
        for name, their, our in zip(names, theirs, ours, strict=False)
        if their != our
    ]


def describe_fingerprint(header: str) -> str:
    """Say for people which tokenizer a trainer's `X-Tokenizer-Fingerprint` is of; empty where it says neither."""
    _, _, version, name, *_ = [*header.split("/"), "", "", "", ""]
    said = [repr(unquote(name)[:_LONGEST_NAME])] if name else []
    return ", ".join([*said, *([f"transformers {version[:_SHOWN]}"] if version else [])])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
