"""The oracle of tokens: it is alone, agrees with what was written by hand, and notices what is wrong."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.conversations import conversation
from tests.oracle.endings import endings
from tests.oracle.match import Score, play
from tests.oracle.referee import Appended, Message, MustRefuse, Referee
from tests.oracle.renderers import Refused, Renderer, load
from tests.oracle.sets import Entry, entries, player
from tests.tokenizers.real import real_directory

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden/masks.json").read_text("utf-8"))["cases"]


def of(case: Mapping[str, Any]) -> str:
    """The tokenizer of a golden case."""
    return str(case["tokenizer"]).partition("tokenizer-")[2].partition("@")[0]


EXAMPLES = 10
"""Conversations of each template."""
SMALL = [e.name for e in entries("families")]


ENTRIES = {entry.name: entry for which in ("families", "golden") for entry in entries(which)}


def entry(name: str) -> Entry:
    return ENTRIES[name]


def played(name: str, renderer: Renderer, examples: int = EXAMPLES) -> Score:
    return play(player(entry(name)), entry(name).directory, renderer, (f"test:{i}" for i in range(examples)))


def test_the_oracle_loads_nothing_of_what_it_judges() -> None:
    code = (
        "import sys, tests.oracle.match, tests.oracle.sets, tests.oracle.renderers\n"
        "print([m for m in sys.modules if m.startswith('rolloutpool_common.rendering')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", SMALL)
def test_todays_renderer_is_exact_or_refuses(name: str) -> None:
    score = played(name, load("today"))
    assert score.cases == []
    assert score.exact > EXAMPLES / 4  # else the oracle has fallen asleep


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", ["mistral_nemo", "qwen3", "template:gemma4_v5", "template:gptoss", "template:glm4moe"])
def test_todays_renderer_is_exact_or_refuses_on_published_templates(name: str) -> None:
    real_directory(name)  # skips where it is not laid out
    score = played(name, load("today"))
    assert score.cases == []
    assert score.exact > EXAMPLES / 2


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", sorted({of(case) for case in GOLDEN}))
def test_the_oracle_agrees_with_the_ids_that_were_written_by_hand(name: str) -> None:
    referee = Referee(name, real_directory(name))
    compared = 0
    for case in GOLDEN:
        if of(case) != name or "expected_delta_ids" not in case:
            continue
        history = [*case["initial_messages"], case["assistant_message_as_parsed"]]
        found = referee.judge(history, case["appended_messages"], case["tools"], case["template_kwargs"])
        if not isinstance(found, Appended):  # a history that a template cannot render
            continue
        compared += 1
        assert case["expected_delta_ids"] in given(referee, found), case["name"]
    assert compared


def given(referee: Referee, found: Appended) -> list[list[int]]:
    """The ids behind all endings of a turn."""
    controls = referee.encoder.spelling.pattern
    every = endings(found, ("<|endoftext|>", "<|eom_id|>"), controls, by_hand=True)
    return [referee.encoder.behind(one.rest, "") for one in every]


def one_more(*arguments: Any) -> list[int]:
    return [*load("today")(*arguments), 0]


def never(*_: Any) -> list[int]:
    raise Refused("no")


def always(*_: Any) -> list[int]:
    return [0]


def test_a_renderer_that_adds_an_id_is_wrong() -> None:
    score = played("tiny", one_more)
    assert score.wrong
    assert score.exact == 0
    assert score.cases[0].given == [*(score.cases[0].expected or []), 0]


def test_a_renderer_that_refuses_is_never_wrong() -> None:
    score = played("family:merged_users", never, 60)
    assert (score.wrong, score.exact) == (0, 0)
    assert score.refused
    assert score.refused_rightly


def test_ids_where_a_refusal_is_due_are_wrong() -> None:
    score = played("family:merged_users", always, 60)
    assert any(wrong.expected is None for wrong in score.cases) or score.wrong > score.conversations


def test_a_conversation_is_a_function_of_its_seed() -> None:
    one, again, other = (list(conversation(player(entry("tiny")), seed)) for seed in ("a", "a", "b"))
    assert one == again
    assert one != other


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("family:metaspace_always_separated", "is", ["is"]),
        ("family:metaspace_first_tagged", "is", ["is"]),
        ("family:prepended_tagged", "is<|im_end|>is", ["is", "<|im_end|>", "▁is"]),
        ("family:unigram_tagged", "is", ["is"]),
    ],
)
def test_what_continues_text_gets_no_space(name: str, text: str, pieces: Sequence[str]) -> None:
    encoder = Referee(name, entry(name).directory).encoder
    assert encoder.plain("is") != encoder.behind("is", "")
    assert [encoder.decode([i]) for i in encoder.behind(text, "")] == [p.replace("▁", " ") for p in pieces]


def judged(name: str, messages: Sequence[Message], new: Sequence[Message], kwargs: Mapping[str, Any]) -> object:
    return Referee(name, entry(name).directory, entry(name).ends).judge(messages, new, None, kwargs)


def test_a_message_that_is_written_in_front_must_be_refused() -> None:
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    found = judged("family:merged_users", history, [{"role": "system", "content": "z"}], {})
    assert isinstance(found, MustRefuse)


def test_a_typed_control_string_stays_text() -> None:
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    found = judged("tiny", history, [{"role": "user", "content": "a<|im_end|>b"}], {})
    assert isinstance(found, Appended)
    encoder = Referee("tiny", entry("tiny").directory).encoder
    ids = encoder.behind(found.text, "")
    assert encoder.decode(ids).count("<|im_end|>") == 3
    assert ids.count(encoder.control_ids["<|im_end|>"]) == 2
