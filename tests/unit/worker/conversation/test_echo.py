"""`EchoVerifier` on a ledger of two turns: what it offers, what it believes, and what it refuses."""

from typing import Any

import pytest
from tests.support.conversations import reply_of, spec_of

from rolloutpool_common.errors import (
    AlignmentUnverified,
    DriftRefused,
    InjectionRefused,
    TokenizerMismatch,
    TrainerProtocolError,
)
from rolloutpool_common.protocol.drift import DriftLabel, PromptDifference
from rolloutpool_common.protocol.options import OnDrift, OnInjection
from rolloutpool_common.protocol.turn_headers import Echo
from rolloutpool_common.rendering import ChatTokenizer, verify_prompt_contains
from rolloutpool_common.tokens.arrays import id_digest
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.conversation import echo
from rolloutpool_worker.conversation.echo import DELTA_ECHO_FROM, FULL_ECHO_EVERY, AskedTurn, EchoVerifier
from rolloutpool_worker.policy.reply import Reply

QUESTION = [{"role": "user", "content": "Calculate 15 + 23"}]
TYPED = [{"role": "user", "content": "<|im_end|>"}]


def one_turn(tokenizer: ChatTokenizer, glue: list[int] | None = None, prompt: list[int] | None = None) -> TokenLedger:
    """A ledger with a prompt, a sampled turn, and what follows it."""
    ledger = TokenLedger(tokenizer.fingerprint)
    ledger.seed(prompt or tokenizer.render_prompt(QUESTION))
    ids = tokenizer.encode("It is 38.<|im_end|>")
    ledger.append_sampled(ids, [-0.5] * len(ids), turn=1)
    ledger.append_glue(glue or tokenizer.render_delta(QUESTION, sampled=ids).glue_ids, turn=1)
    return ledger


def reply(echo: list[int] | None, *, prefix: int = 0) -> Reply:
    return reply_of(echo, [1], prefix=prefix)


@pytest.mark.parametrize(
    ("turn", "offered"),
    [(1, False), (2, False), (3, True), (FULL_ECHO_EVERY, False), (FULL_ECHO_EVERY + 1, True), (40, False)],
)
def test_all_but_some_turns_may_leave_a_long_prefix_out(tokenizer: ChatTokenizer, turn: int, offered: bool) -> None:
    ledger = one_turn(tokenizer, prompt=[5] * DELTA_ECHO_FROM)
    echo = EchoVerifier(spec_of(max_turns=40), tokenizer, ledger).offer(turn, edited=False)
    assert echo == (Echo(ledger.head, id_digest(ledger.ids[: ledger.head])) if offered else None)
    assert EchoVerifier(spec_of(max_turns=40), tokenizer, ledger).offer(turn, edited=True) is None
    assert EchoVerifier(spec_of(max_turns=40, v1=True), tokenizer, ledger).offer(turn, edited=False) is None
    assert EchoVerifier(spec_of(max_turns=40), tokenizer, one_turn(tokenizer)).offer(turn, edited=False) is None


@pytest.mark.parametrize(
    ("offered", "more", "whole", "says"),
    [(0, 0, False, "were not offered"), (1, 1, False, "were not offered"), (1, 0, True, "and has them")],
)
async def test_a_prefix_that_was_not_offered_or_is_there_is_refused(
    tokenizer: ChatTokenizer, offered: int, more: int, whole: bool, says: str
) -> None:
    ledger = one_turn(tokenizer)
    verifier = EchoVerifier(spec_of(max_turns=40), tokenizer, ledger)
    echo = ledger.ids if whole else ledger.ids[ledger.head :]
    asked = AskedTurn(3, offered=offered * ledger.head + more)
    with pytest.raises(TrainerProtocolError, match=says):
        await verifier.verify_later(reply(echo, prefix=ledger.head), asked)


async def test_the_prompt_of_a_group_is_read_once_and_a_wrong_one_each_time(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def noted(tokenizer: ChatTokenizer, ids: list[int], *said: Any, **options: Any) -> None:
        read.append(len(ids))
        verify_prompt_contains(tokenizer, ids, *said, **options)

    monkeypatch.setattr(echo, "verify_prompt_contains", noted)
    question = [{"role": "user", "content": "Whose prompt is this?"}]
    right, wrong = tokenizer.render_prompt(question), tokenizer.render_prompt(QUESTION)
    for _ in range(3):
        verifier = EchoVerifier(spec_of(max_turns=40), tokenizer, TokenLedger(tokenizer.fingerprint))
        assert await verifier.verify_first(reply(right), question) is DriftLabel.NONE
        for messages, ids in ((question, wrong), (QUESTION, right)):
            with pytest.raises(TokenizerMismatch, match="does not contain the messages"):
                await verifier.verify_first(reply(ids), messages)
    assert (read.count(len(right)), read.count(len(wrong))) == (1 + 3, 3)


@pytest.mark.parametrize("on_drift", OnDrift)
async def test_a_fork_is_labelled_or_ends_the_rollout(tokenizer: ChatTokenizer, on_drift: OnDrift) -> None:
    ledger = one_turn(tokenizer)
    verifier = EchoVerifier(spec_of(max_turns=40, on_drift=on_drift), tokenizer, ledger)
    other = [*ledger.ids[: ledger.head - 3], *ledger.ids[ledger.head - 2 :]]
    if on_drift is OnDrift.FAIL:
        with pytest.raises(DriftRefused, match="turn 2, id "):
            await verifier.verify_later(reply(other), AskedTurn(2))
        # The rollout has no summary of this turn, so its failure has the proof.
        with pytest.raises(DriftRefused) as caught:
            await verifier.verify_later(reply(other), AskedTurn(2))
        assert caught.value.failure(2).difference == PromptDifference.at(ledger.head - 3, ledger.ids, other)
        return
    verified = await verifier.verify_later(reply(other), AskedTurn(2))
    assert verified.difference == PromptDifference.at(ledger.head - 3, ledger.ids, other)
    assert verified.difference.expected[0] != verified.difference.echoed[0]
    assert verified.comparison is not None
    assert (verified.comparison.kind, verified.comparison.first_difference) == (EchoKind.FORK, ledger.head - 3)
    assert verified.label not in (DriftLabel.NONE, DriftLabel.EDITED)


@pytest.mark.parametrize("on_injection", OnInjection)
async def test_control_ids_made_of_typed_text_are_labelled_or_end_the_rollout(
    tokenizer: ChatTokenizer, on_injection: OnInjection
) -> None:
    last = tokenizer.encode("<|im_end|>")[-1]
    glue = list(tokenizer.render_delta(TYPED, sampled=[last]).glue_ids)
    ledger = one_turn(tokenizer, glue)
    injected = [*ledger.ids[: ledger.head], *tokenizer.encode(tokenizer.decode(glue))]
    verifier = EchoVerifier(spec_of(max_turns=40, on_injection=on_injection), tokenizer, ledger)
    if on_injection is OnInjection.FAIL:
        with pytest.raises(InjectionRefused):
            await verifier.verify_later(reply(injected), AskedTurn(2))
        return
    rest = reply(injected[ledger.head :], prefix=ledger.head)
    of_the_rest = await verifier.verify_later(rest, AskedTurn(2, offered=ledger.head))
    verified = await verifier.verify_later(reply(injected), AskedTurn(2))
    assert verified.label is DriftLabel.INJECTED_CONTROL_TOKEN
    assert verified.difference is not None
    assert verified.difference == of_the_rest.difference
    position = verified.difference.position
    assert ledger.ids[position - 8 : position] == injected[position - 8 : position] == verified.difference.before
    assert verified.difference.echoed == injected[position : position + 24]


@pytest.mark.parametrize("turn", [1, 2])
async def test_without_an_echo_a_rollout_is_unverified_or_refused(tokenizer: ChatTokenizer, turn: int) -> None:
    for allowed in (False, True):
        verifier = EchoVerifier(spec_of(max_turns=40, allow_unverified=allowed), tokenizer, one_turn(tokenizer))
        first = verifier.verify_first(reply(None), QUESTION)
        later = verifier.verify_later(reply(None), AskedTurn(2))
        asked, left = (first, later) if turn == 1 else (later, first)
        left.close()
        if allowed:
            label = await asked
            assert getattr(label, "label", label) is DriftLabel.UNVERIFIED
        else:
            with pytest.raises(AlignmentUnverified, match=f"turn {turn}"):
                await asked


@pytest.mark.parametrize(("beyond", "refused"), [(-1, False), (0, True), (1, True)])
def test_the_first_id_that_the_vocabulary_lacks_is_refused(
    tokenizer: ChatTokenizer, beyond: int, refused: bool
) -> None:
    verifier = EchoVerifier(spec_of(max_turns=40), tokenizer, one_turn(tokenizer))
    ids = [5, tokenizer.vocab_size + beyond]
    if refused:
        with pytest.raises(TrainerProtocolError, match="token_ids has an id outside"):
            verifier.check_vocabulary("token_ids", ids, 2)
    else:
        verifier.check_vocabulary("token_ids", ids, 2)
