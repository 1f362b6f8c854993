"""What lines of talk are, and which sampled tokens are trained."""

import time
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.api_documents import result as result_document
from tests.unit.worker.capabilities.harness.test_lines import SHELL, USER, Message, given_back, result_of, said

from rolloutpool_common.capabilities.harness.wire import TRAINED, LineKind
from rolloutpool_common.protocol import messages
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.tokens.samples import SampleSegment
from rolloutpool_worker.capabilities.harness.lines import Lines, TalkLine
from rolloutpool_worker.capabilities.harness.report import SessionCalls, complete, cut_after, judge

DONE = said("assistant", "Done.")


class Talk:
    """A session whose calls are answered one after the other."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.n = 0

    def call(self, *history: Message, tools: str = "t", reply: Message = SHELL) -> tuple[TalkLine, list[Message]]:
        """Calls, and returns the line and the history with the reply."""
        self.n += 1
        line = self.lines.find(self.n, self.n - 1, history, tools).line
        self.lines.answered(line, self.n, self.n, reply)
        return line, [*history, given_back(reply, self.n)]

    def kinds(self, lost: Collection[int] = ()) -> list[tuple[str, int | None, int]]:
        judged = judge(self.lines.all, lost)
        return [(one.kind, None if one.parent is None else one.parent.number, one.turns) for one in judged]


def sample_of(turns: Sequence[int], first: int = 1, version: int = 0) -> Sample:
    """One sample: turns of so many sampled ids, with two ids between them."""
    segments: list[SampleSegment] = []
    at = 0
    for turn, n in enumerate(turns, first):
        if segments:
            segments.append(SampleSegment(kind="prompt", start=at, n=2, turn=turn - 1))
            at += 2
        segments.append(SampleSegment(kind="sampled", start=at, n=n, turn=turn, policy_version=str(version + turn)))
        at += n
    mask = [0] * at
    for segment in segments:
        if segment.kind == "sampled":
            mask[segment.start : segment.start + segment.n] = [1] * segment.n
    return Sample(
        prompt_ids=[7],
        response_ids=list(range(at)),
        response_mask=mask,
        response_logprobs=[-0.5] * at,
        segments=segments,
        version_min=version + first,
        version_max=version + first + len(turns) - 1,
    )


def result_with(samples: Sequence[Sample]) -> RolloutResult:
    return RolloutResult.model_validate(result_document(0)).model_copy(update={"samples": list(samples)})


def test_a_session_without_a_call_has_no_lines() -> None:
    assert judge([]) == []


def test_a_dropped_reply_and_what_follows() -> None:
    talk = Talk()
    _, history = talk.call(USER)
    _, history = talk.call(*history, result_of(1), reply=DONE)
    talk.call(*history[:-1], said("user", "no"), reply=DONE)
    assert talk.kinds() == [("main", None, 1), ("continuation", 1, 1)]


def test_a_sub_agent_and_a_title() -> None:
    talk = Talk()
    _, history = talk.call(USER)
    talk.call(said("system", "child"), USER, reply=DONE)
    talk.call(said("system", "title"), USER, tools="", reply=DONE)
    talk.call(*history, result_of(1), reply=DONE)
    assert talk.kinds() == [("main", None, 2), ("child", None, 1), ("side", None, 1)]


CHILD = said("system", "child")
OTHER_WORDS = said("assistant", "I called shell: ls")


@pytest.mark.parametrize("first", [[USER], [CHILD, USER]], ids=["main", "child"])
def test_replies_that_come_back_in_other_words_are_of_use(first: list[Message]) -> None:
    """As smolagents does, which writes each call as text: each turn but the last one was left out."""
    talk = Talk()
    history = list(first)
    for _ in range(3):
        talk.call(*history)
        history += [OTHER_WORDS, said("user", "Observation: ok")]
    talk.call(*history, reply=DONE)
    kinds = ["main", *["continuation"] * 3]
    if first[0] is CHILD:
        talk.call(USER, reply=DONE)
        kinds = ["child"] * 4
    assert talk.kinds()[:4] == [(kind, n or None, 1) for n, kind in enumerate(kinds)]


@pytest.mark.parametrize("first", [[USER], [CHILD, USER]], ids=["main", "child"])
def test_replies_behind_a_result_that_was_taken_out_are_of_use(first: list[Message]) -> None:
    """As programs do that keep their histories short: old results give way to a note, or old turns to nothing."""
    talk = Talk()
    _, history = talk.call(*first)
    for n in (1, 2):
        other = said("assistant", f"I look again, {n}.", [("shell", "{}")])
        _, history = talk.call(*history, result_of(n), reply=other)
    talk.call(*first, history[len(first)], result_of(1, "(taken out)"), *history[len(first) + 2 :], result_of(3))
    if first[0] is CHILD:
        talk.call(USER, reply=DONE)
    assert [turns for _, _, turns in talk.kinds()[:2]] == [3, 1]


def test_the_last_reply_is_dropped_beside_a_result_that_was_taken_out() -> None:
    talk = Talk()
    _, history = talk.call(USER)
    _, history = talk.call(*history, result_of(1), reply=said("assistant", "More.", [("shell", "{}")]))
    _, history = talk.call(*history, result_of(2), reply=DONE)
    talk.call(USER, history[1], result_of(1, "(taken out)"), *history[3:-1], said("user", "no"), reply=DONE)
    assert talk.kinds() == [("main", None, 2), ("continuation", 1, 1)]


def test_of_two_that_began_alike_the_one_that_comes_back_in_other_words_is_of_use() -> None:
    talk = Talk()
    for _ in range(2):
        talk.call(CHILD, USER)
    talk.call(CHILD, USER, OTHER_WORDS, said("user", "ok"), reply=DONE)
    talk.call(USER, reply=DONE)
    assert [turns for _, _, turns in talk.kinds()] == [0, 1, 1, 1]


def test_what_a_program_said_that_died_leads_nowhere() -> None:
    talk = Talk()
    talk.call(USER)
    talk.call(said("user", "again"), reply=DONE)
    assert talk.kinds(lost={2})[0] == ("main", None, 1)


def test_a_sample_ends_with_its_last_kept_turn() -> None:
    whole = sample_of([3, 4, 5])
    cut = cut_after(whole, 2)
    assert cut is not None
    assert (len(cut.response_ids), sum(cut.response_mask), len(cut.response_logprobs)) == (9, 7, 9)
    assert [segment.turn for segment in cut.segments] == [1, 1, 2]
    assert (cut.version_min, cut.version_max) == (1, 2)
    assert cut_after(whole, 3) is whole
    assert cut_after(sample_of([1], first=3), 2) is None


@given(st.data())
def test_each_sampled_token_is_in_one_sample_or_counted(data: st.DataObject) -> None:
    talk = Talk()
    histories: list[list[Message]] = [[USER], [said("system", "child"), USER]]
    for _ in range(data.draw(st.integers(0, 10))):
        history = list(data.draw(st.sampled_from(histories)))
        if history[-1]["role"] == "assistant":
            history.append(data.draw(st.sampled_from([USER, result_of(talk.n)])))
        if data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(history) - 1))
            history = [
                OTHER_WORDS if n <= place and one["role"] == "assistant" else one for n, one in enumerate(history)
            ]
        reply, tools = data.draw(st.sampled_from([SHELL, DONE])), data.draw(st.sampled_from(["t", "t", "", "other"]))
        histories.append(talk.call(*history, tools=tools, reply=reply)[1])
    samples: list[Sample] = []
    samples_of, tokens = [], []
    for line in talk.lines.all:
        # A drift has begun another sample after some of its turns.
        turns = data.draw(st.lists(st.integers(1, 3), min_size=len(line.replies), max_size=len(line.replies)))
        drift = data.draw(st.integers(0, len(turns)))
        own = [sample_of(part, first) for part, first in ((turns[:drift], 1), (turns[drift:], drift + 1)) if part]
        samples += own
        samples_of.append(len(own))
        tokens.append(sum(turns))
    lost = data.draw(st.sets(st.integers(1, 10)))
    kinds = data.draw(st.sampled_from([TRAINED, tuple(LineKind), (LineKind.MAIN,), ()]))
    result = complete(result_with(samples), talk.lines.all, samples_of, kinds, SessionCalls(talk.n, lost=lost))
    report = result.harness
    assert report is not None
    assert [line.tokens for line in report.lines] == tokens
    assert [one for line in report.lines for one in line.samples] == list(range(len(result.samples)))
    for told in report.lines:
        kept = sum(sum(result.samples[place].response_mask) for place in told.samples)
        assert (told.trained_tokens, kept + sum(told.left_out.values())) == (kept, told.tokens)
        assert told.kind in kinds or not kept
    assert sum(told.kind is LineKind.MAIN for told in report.lines) <= 1
    if report.told is not None:
        real = talk.lines.all[report.told.line - 1].real
        assert result.messages == [messages.Message.model_validate(message) for message in real]
    for sample in result.samples:
        assert len(sample.response_ids) == len(sample.response_mask) == len(sample.response_logprobs)
        assert sum(segment.n for segment in sample.segments) == len(sample.response_ids)


@pytest.mark.parametrize("begins", ["alike", "anew", "beside", "told"])
def test_thousands_of_lines_are_judged_in_time(begins: str) -> None:
    """A program may begin a line with each of its calls, and its worker has other rollouts, too."""
    lines = Lines()
    system, calls = said("system", "s" * 10_000), 1000 if begins == "told" else 4000
    told: list[Message] = []
    for n in range(1, calls + 1):
        replied = 0 if begins == "beside" else n - 1
        text = "x" if begins in ("alike", "told") else f"x{n}"
        line = lines.find(n, replied, [dict(system), said("user", text), *told], "t").line
        lines.answered(line, n, n, DONE)
        told += [OTHER_WORDS, said("user", "ok")] if begins == "told" else []
    # So that the others are children.
    line = lines.find(calls + 1, calls, [USER], "t").line
    lines.answered(line, calls + 1, calls + 1, DONE)
    started = time.monotonic()
    assert len(judge(lines.all)) == calls + 1
    assert time.monotonic() - started < 5
