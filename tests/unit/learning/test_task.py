"""Questions have the answers that Python gives, half of the demonstrations have a flaw, only the result is rewarded."""

import json
import random
from pathlib import Path

import pytest
from examples.learning.task import Question, demonstration, questions, reward
from examples.learning.vocabulary import write_tokenizer

from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_rl.role_masks import MaskGenerator

MANY = 600


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(str(folder))


def test_answers_are_those_of_python() -> None:
    found = questions(random.Random(1), MANY)
    assert found == questions(random.Random(1), MANY)
    # Only digits, signs and brackets.
    assert [question.answer for question in found] == [eval(question.text) for question in found]
    assert {(question.first, question.second) for question in found} == {
        ("add", "multiply"),
        ("subtract", "multiply"),
        ("multiply", "add"),
        ("multiply", "subtract"),
    }


def test_about_half_of_the_demonstrations_are_right() -> None:
    rng = random.Random(2)
    pairs = [(question, demonstration(question, rng)) for question in questions(rng, MANY)]
    share = sum(reward(question, messages[-1]["content"]) for question, messages in pairs) / MANY
    # A flaw may give the right number by chance.
    assert 0.45 < share < 0.62
    assert {sum("tool_calls" in message for message in messages) for _, messages in pairs} == {0, 1, 2}


def test_tools_say_what_the_calculator_says() -> None:
    rng = random.Random(3)
    for question in questions(rng, 100):
        messages = demonstration(question, rng)
        for call, result in zip(messages[1::2], messages[2::2], strict=False):
            function = call["tool_calls"][0]["function"]
            numbers = json.loads(function["arguments"])
            sign = {"add": "+", "subtract": "-", "multiply": "*"}[function["name"]]
            assert int(result["content"]) == eval(f"({numbers['a']}) {sign} ({numbers['b']})")


def test_half_of_the_calls_are_written_without_spaces() -> None:
    rng = random.Random(4)
    texts = [
        call["function"]["arguments"]
        for question in questions(rng, MANY)
        for message in demonstration(question, rng)
        for call in message.get("tool_calls", ())
    ]
    assert 0.4 < sum(" " not in text for text in texts) / len(texts) < 0.6


@pytest.mark.parametrize(
    ("said", "worth"), [("56", 1.0), (" 56\n", 1.0), ("It is 56", 0.0), ("560", 0.0), ("", 0.0), (None, 0.0)]
)
def test_only_the_result_is_rewarded(said: str | None, worth: float) -> None:
    assert reward(Question("(3 + 5) * 7", "add", "multiply", (3, 5, 7)), said) == worth


def test_the_tokenizer_is_written_alike_each_time(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (Path(tokenizer.name) / "tokenizer.json").read_bytes()
    assert tokenizer.vocab_size < 340
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("(3 + 15) * 7")]
    assert pieces == ["(", "3", " +", " ", "1", "5", ")", " *", " ", "7"]


def test_demonstrations_render_as_the_pool_renders(tokenizer: ChatTokenizer) -> None:
    rng = random.Random(5)
    masks = MaskGenerator(tokenizer, "qwen3")
    for question in questions(rng, 20):
        messages = demonstration(question, rng)
        made = masks.get_loss_mask(messages)
        assert made.ids_equal_full_render
        trained = masks.get_text_from_loss_mask(made.ids, made.rl_mask)
        assert len(trained) == sum(message["role"] == "assistant" for message in messages)
        assert all(text.endswith("<|im_end|>") for text in trained)
