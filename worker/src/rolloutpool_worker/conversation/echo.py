"""The echo: the prompt that a trainer reports for a turn, compared with what the ledger expects.

The echo is checked before anything of the reply is used:

1. Turn 1: the echo becomes the ledger's first prompt, if its ids are in the vocabulary and its text contains the
   request's messages. Else the trainer serves another model or got other messages: `TokenizerMismatch`.
2. Later turns: the echo is compared with the ledger's context id by id. If they are equal, all is well.
3. If they differ, the difference gets a label (`DriftLabel`) for people and metrics, and the ids around it are kept
   as its proof (`PromptDifference`): in the turn's summary, or in the failure where it ends the rollout. The ledger
   follows the trainer: what it reports is what the policy saw. A difference before the last sampled id forks the
   rollout into two samples (`tokens/ledger.py`). The batch may refuse that instead (`on_drift`, `on_injection`).
4. A trainer that reports no echo is refused, unless the batch has `allow_unverified`.

A long echo costs more than all else on a turn. So from `DELTA_ECHO_FROM` ids on the request offers to leave out the
part that the ledger knows already, with its digest. A trainer whose own ids have that digest may send the rest alone.
Every `FULL_ECHO_EVERY` turns, and on the first two and the last one, the whole echo is wanted all the same.

    ledger    1 2 3 | 10 11 | 20      offered: prefix 5 (1 2 3 10 11) and its digest
    reply     X-Echo-Prefix-Length: 5, prompt_token_ids 20        equal: the same as 1 2 3 10 11 20
"""

import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from rolloutpool_common.errors import (
    AlignmentUnverified,
    DriftRefused,
    InjectionRefused,
    RolloutError,
    TokenizerMismatch,
    TrainerProtocolError,
)
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.protocol.drift import DriftLabel, PromptDifference
from rolloutpool_common.protocol.journal import MaskPlan
from rolloutpool_common.protocol.options import OnDrift, OnInjection, RolloutSpec
from rolloutpool_common.protocol.turn_headers import Echo, describe_fingerprint, differing_files, write_fingerprint
from rolloutpool_common.rendering import ChatTokenizer, classify, verify_prompt_contains
from rolloutpool_common.tokens.arrays import id_array, id_bytes
from rolloutpool_common.tokens.comparison import EchoComparison, EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.conversation.off_loop import off_loop
from rolloutpool_worker.policy.reply import Reply

_log = logging.getLogger(__name__)

FULL_ECHO_EVERY = 16
"""Turns."""
DELTA_ECHO_FROM = 512
"""Ids; a shorter prompt costs less than the headers."""
_verified: set[bytes] = set()
"""Digests of first prompts, with the messages that they were found to say. A group's rollouts have the same one, and to
decode and read it takes a twentieth of a rollout of three turns."""
_MOST_VERIFIED = 4096


class AskedTurn(NamedTuple):
    """A turn as the trainer has accepted it; its reply is checked against this."""

    turn: int
    """From 1."""
    plan: MaskPlan | None = None
    """None on turn 1, which has no mask."""
    mask_length: int | None = None
    """The length of the plan that the trainer accepted; None on turn 1."""
    edited: bool = False
    """Whether the agent has edited the history since the last turn."""
    offered: int = 0
    """Length of the prefix that the echo may leave out."""


class VerifiedEcho(NamedTuple):
    """Holds what the echo of a later turn has shown."""

    label: DriftLabel
    comparison: EchoComparison | None
    """None where the trainer reported no prompt."""
    difference: PromptDifference | None = None
    """Where the prompts part; None where they are equal, or there is nothing to compare."""


class EchoVerifier:
    """Checks the echoes of one rollout. Reads the ledger and never writes it."""

    def __init__(
        self, spec: RolloutSpec, tokenizer: ChatTokenizer, ledger: TokenLedger, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Checks the echoes of one rollout; `tools` are those that its first prompt may show."""
        self._spec = spec
        self._tokenizer = tokenizer
        self._ledger = ledger
        self._tools = tools

    def offer(self, turn: int, *, edited: bool) -> Echo | None:
        """Returns what the trainer may leave out of its echo."""
        ledger, spec = self._ledger, self._spec
        whole = turn <= 2 or turn % FULL_ECHO_EVERY == 0 or turn >= spec.max_turns or edited
        if whole or spec.v1 or ledger.head < DELTA_ECHO_FROM:
            return None
        return Echo(ledger.head, ledger.head_digest.hex())

    async def verify_first(self, reply: Reply, messages: Sequence[dict[str, Any]]) -> DriftLabel:
        """Checks the prompt of turn 1."""
        self._check_fingerprint(reply.fingerprint)
        echo = reply.prompt_token_ids
        if echo is None:
            return self._unverified(1)
        if not echo:
            raise TrainerProtocolError("turn 1: prompt_token_ids is empty")
        # `parse_reply` has refused negative ids already. On turn 1 an id that is too large means another model; on a
        # later turn, a faulty reply.
        if max(echo) >= self._tokenizer.vocab_size:
            described = describe_fingerprint(reply.fingerprint or "")
            raise TokenizerMismatch(
                f"turn 1: the prompt of the trainer at {self._spec.server_url}"
                f"{f' ({described})' if described else ''} has id {max(echo)}, but this worker has "
                f"{self._own} for {self._tokenizer.name!r}, with {self._tokenizer.vocab_size} ids. The trainer serves "
                "another model; give `tokenizer_name` the one that it serves"
            )

        kwargs = self._spec.template_kwargs
        key = blake2b(orjson.dumps([messages, self._tools, kwargs, self._own]), digest_size=16)
        key.update(id_bytes(id_array(echo)))
        if (digest := key.digest()) not in _verified:
            await off_loop(
                len(echo),
                lambda: verify_prompt_contains(
                    self._tokenizer, echo, messages, tools=self._tools, template_kwargs=kwargs
                ),
            )
            if len(_verified) >= _MOST_VERIFIED:
                _verified.clear()
            _verified.add(digest)
        return DriftLabel.NONE

    async def verify_later(self, reply: Reply, asked: AskedTurn) -> VerifiedEcho:
        """Compares the prompt of a turn from 2 on with the ledger."""
        echo, ledger, turn = reply.prompt_token_ids, self._ledger, asked.turn
        if echo is None:
            return VerifiedEcho(self._unverified(turn), None)
        self.check_vocabulary("prompt_token_ids", echo, turn)
        if reply.prefix:
            self._check_prefix(reply.prefix, echo, asked)
        comparison = ledger.compare(echo, prefix=reply.prefix + reply.repeated)
        # The usual case costs one comparison and no label.
        if comparison.first_difference is None:
            return VerifiedEcho(DriftLabel.EDITED if asked.edited else DriftLabel.NONE, comparison)
        position = comparison.first_difference

        def explain() -> tuple[DriftLabel, PromptDifference]:
            label = classify(ledger, echo, self._tokenizer, prefix=reply.skipped)
            return label, PromptDifference.at(position, ledger.ids, echo, prefix=reply.skipped)

        label, difference = await off_loop(len(ledger), explain)
        log_event(_log, logging.INFO, "turn drifted", label=label, at=position)
        self._tolerate(label, comparison, turn, difference)
        return VerifiedEcho(label, comparison, difference)

    def check_vocabulary(self, name: str, ids: Sequence[int], turn: int) -> None:
        """Checks that a reply's ids are ones that the tokenizer has."""
        size = self._tokenizer.vocab_size
        if ids and max(ids) >= size:
            raise TrainerProtocolError(f"turn {turn}: {name} has an id outside the tokenizer's vocabulary of {size}")

    def _unverified(self, turn: int) -> DriftLabel:
        if not self._spec.allow_unverified:
            raise AlignmentUnverified(f"turn {turn}: {AlignmentUnverified.__doc__}")
        return DriftLabel.UNVERIFIED

    def _check_fingerprint(self, theirs: str | None) -> None:
        if theirs is None or not (differing := differing_files(theirs, self._tokenizer.fingerprint)):
            return
        described, own = describe_fingerprint(theirs), self._tokenizer
        raise TokenizerMismatch(
            f"turn 1: the trainer at {self._spec.server_url} has another tokenizer"
            f"{f' ({described})' if described else ''} than this worker has for {own.name!r} (transformers "
            f"{own.fingerprint.transformers_version}). What differs is {'; and '.join(differing)}. Give both the same "
            "files"
        )

    @property
    def _own(self) -> str:
        return write_fingerprint(self._tokenizer.fingerprint)

    def _check_prefix(self, prefix: int, echo: Sequence[int], asked: AskedTurn) -> None:
        # Only the offered length has a digest, and so a proof that the ids left out are ours.
        if prefix != asked.offered:
            raise TrainerProtocolError(f"turn {asked.turn}: the reply leaves out {prefix} ids, which were not offered")
        # Such an echo would put the prefix into the context twice.
        if len(echo) >= prefix and echo[:prefix] == self._ledger.ids[:prefix]:
            raise TrainerProtocolError(
                f"turn {asked.turn}: the reply says that it leaves out {prefix} ids, and has them"
            )

    def _tolerate(self, label: DriftLabel, comparison: EchoComparison, turn: int, found: PromptDifference) -> None:
        where = f"turn {turn}, id {found.position}"
        if label is DriftLabel.INJECTED_CONTROL_TOKEN and self._spec.on_injection is OnInjection.FAIL:
            raise proved(InjectionRefused(f"{where}: {InjectionRefused.__doc__}"), found)
        if comparison.kind is EchoKind.FORK and self._spec.on_drift is OnDrift.FAIL:
            raise proved(DriftRefused(f"{where}, {label}: {DriftRefused.__doc__}"), found)


def proved(refusal: RolloutError, found: PromptDifference | None) -> RolloutError:
    """Gives an error the ids that prove it, for its failure; returns it."""
    refusal.difference = found
    return refusal
