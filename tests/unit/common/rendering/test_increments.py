"""What new messages add is what a whole render would count, or the whole render is made."""

import logging
from random import Random
from typing import Any

import pytest
from tests.property.families import FAMILIES, GENERATION, LOOP
from tests.property.rare_families import RARE
from tests.property.wild_families import WILD
from tests.support.python_calls import python_calls
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.rendering import ChatTokenizer, RenderFailed, RerenderCounter, rerender
from rolloutpool_common.rendering.increments import CHECKS, EVERY, IncrementShape

Message = dict[str, Any]
CHATML = LOOP + GENERATION
COUNTS_ROUNDS = CHATML.replace("m.content +", "m.content + (' ' ~ loop.index if messages | length > 7 else '') +")
QUESTION: Message = {"role": "user", "content": "What is 15 + 23?"}


def a_round(number: int) -> list[Message]:
    return [
        {"role": "assistant", "content": f"I add {number} and 3."},
        {"role": "tool", "tool_call_id": f"call{number:05d}", "name": "add", "content": str(number + 3)},
    ]


def conversation(rounds: int) -> list[Message]:
    return [QUESTION, *(message for number in range(rounds) for message in a_round(number))]


def play(tokenizer: ChatTokenizer, rounds: int) -> tuple[list[int], list[int], int]:
    """Counts a conversation round by round; returns our lengths, the true ones, and how many came from increments."""
    counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None)
    counter.count([QUESTION])
    ours, increments = [], 0
    for number in range(1, rounds + 1):
        messages = conversation(number)
        length = counter.count_new(messages)
        increments += length is not None
        ours.append(counter.count(messages) if length is None else length)
    return ours, [len(rerender(tokenizer, conversation(n))) for n in range(1, rounds + 1)], increments


@pytest.mark.parametrize("parsed", [False, True])
def test_a_usual_increment_is_few_calls(make_tokenizer: MakeTokenizer, parsed: bool) -> None:
    """Of Python functions. Each used to be a render, of 315 and more."""
    tokenizer = make_tokenizer(CHATML)
    for _ in range(CHECKS):
        play(tokenizer, 9)
    counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None, parsed=parsed)
    counter.count(conversation(8))
    counts = []
    calls = python_calls(lambda: counts.append(counter.count_new(conversation(9))))
    assert counts == [len(rerender(tokenizer, conversation(9)))]
    assert calls <= 60


def test_a_template_that_rewrites_history_is_counted_whole(
    make_tokenizer: MakeTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = make_tokenizer(COUNTS_ROUNDS)
    with caplog.at_level(logging.WARNING):
        play(tokenizer, 20)
        ours, truth, increments = play(tokenizer, 20)
    assert (ours, increments) == (truth, 0)
    assert [record.getMessage().count("rewrites earlier messages") for record in caplog.records] == [1]


def test_what_the_trainer_reported_is_what_increments_are_added_to(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(CHATML)
    for _ in range(CHECKS + 1):
        play(tokenizer, 4)
    counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None)
    first = counter.count([QUESTION])
    true_length = counter.count_new(conversation(1))
    assert true_length is not None
    counter.report(conversation(1), true_length + 5)
    # A report of another prompt says nothing of this one.
    counter.report(conversation(1)[:2], first)
    assert counter.count_new(conversation(2)) == len(rerender(tokenizer, conversation(2))) + 5


def test_a_prompt_that_was_not_counted_is_taken_from_the_trainer(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(CHATML)
    for _ in range(CHECKS + 1):
        play(tokenizer, 6)
    counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None)
    counter.count([QUESTION])
    there = len(rerender(tokenizer, conversation(4))) + 5
    counter.report(conversation(4), there)
    assert counter.counted == len(conversation(4))
    assert counter.count_new(conversation(5)) == len(rerender(tokenizer, conversation(5))) + 5
    # Its sampled ids may be others than ours, so this is no proof against increments.
    assert counter.count(conversation(6)) == len(rerender(tokenizer, conversation(6)))
    assert not tokenizer.increment_trust(None, None).broken


def test_an_edited_history_is_no_disproof(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(CHATML)
    for _ in range(CHECKS + 1):
        play(tokenizer, 4)
    counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None)
    counter.count(conversation(3))
    counter.restart()
    edited = [QUESTION, *a_round(7), *a_round(8), *a_round(9), *a_round(10)]
    assert counter.count_new(edited) is None
    assert counter.count(edited) == len(rerender(tokenizer, edited))
    assert counter.count_new([*edited, *a_round(11)]) is not None


SWITCHED = CHATML.replace("m.content +", "(m.content or '?') + ('!' if '/no_think' in m.content else '') +")
SWITCHED = SWITCHED.replace("m.role +", "m.role + (m.reasoning_content or '') +")
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "/no_think 38"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "38", "reasoning_content": "I add"},
        {"role": "assistant", "content": "38", "tool_calls": [CALL]},
        {"role": "assistant", "content": "38", "tool_calls": [CALL | {"function": {"name": "add", "arguments": {}}}]},
        {"role": "tool", "content": "38"},
    ],
)
def test_what_a_template_can_tell_apart_is_another_shape(make_tokenizer: MakeTokenizer, other: Message) -> None:
    trust = make_tokenizer(SWITCHED).increment_trust(None, None)
    plain = {"role": "assistant", "content": "38"}

    def shape(*new: Message) -> IncrementShape | None:
        found = trust.find(new)
        return None if found is None else found.shape

    assert shape(plain) is shape({**plain, "content": "39"}) is not None
    assert shape(plain) is not shape(other)
    assert shape(other) is shape(other)
    assert shape(plain, {"role": "user", "content": "x"}) is None


WORDS = (
    "fine",
    "a b",
    "38",
    "/no_think",
    "</think>",
    "<|im_end|>",
    "{}",
    '{"a": 15}',
    "é漢",
    "<|im_",
    "end|>",
    "a\n\nb",
)


def test_joined_increments_are_what_a_render_writes(make_tokenizer: MakeTokenizer) -> None:
    """For templates of all families, behind other histories too, and with words that templates look for."""
    random, joined = Random(26), 0
    for family in {**FAMILIES, **RARE, **WILD}.values():
        tokenizer = make_tokenizer(family.template)
        trust = tokenizer.increment_trust(None, None)
        for _ in range(12):
            said, name, arguments, content = (random.choice(WORDS) for _ in range(4))
            given = random.choice((arguments, {"a": content, "é": [1.5, None, arguments]}))
            call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": given}}
            result = {"role": "tool", "tool_call_id": "call00000", "name": name, "content": content}
            new: list[Message] = [{"role": "assistant", "content": said}]
            if random.random() < 0.7:
                new = [{"role": "assistant", "content": random.choice((said, "")), "tool_calls": [call]}, result]
            found = trust.find(new)
            if found is None or found.text is None:
                continue
            past = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "y"}]
            for history in ([], past):
                question = {"role": "user", "content": "x"}
                try:
                    whole = tokenizer.render_text([*history, question, *new])
                except RenderFailed:
                    continue
                joined += 1
                assert whole.endswith("x" + found.text), (family.template, new)
    assert joined > 200


def test_a_shape_is_trusted_after_its_checks_and_never_again_after_a_failure(make_tokenizer: MakeTokenizer) -> None:
    trust, shape = make_tokenizer(CHATML).increment_trust(None, None), IncrementShape(None)
    for _ in range(CHECKS):
        assert trust.needs_check(shape, 4)
        trust.checked(shape, 4, agreed=True)
    assert not trust.needs_check(shape, 4)
    assert not trust.needs_check(shape, 5)
    # A doubling that was not checked yet.
    assert trust.needs_check(shape, 8)
    used = CHECKS + 3
    assert [use for use in range(used + 1, 3 * EVERY) if trust.needs_check(shape, 5)] == [EVERY, 2 * EVERY]
    assert not trust.broken
    trust.checked(shape, 8, agreed=False)
    assert trust.broken
