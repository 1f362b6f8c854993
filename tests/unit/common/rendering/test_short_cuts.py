"""Short cuts: what they spare, when they are compared with the rule, and that a doubt is for good."""

import logging
from typing import Any

import pytest
from tests.property.families import GENERATION, LOOP
from tests.support.python_calls import python_calls
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.rendering import (
    ChatTokenizer,
    Delta,
    HistoryRewritten,
    RenderFailed,
    TurnEndNotFound,
)
from rolloutpool_common.rendering.delta import DeltaRule
from rolloutpool_common.rendering.proof import prover
from rolloutpool_common.rendering.proof.claims import Joint, Proof
from rolloutpool_common.rendering.short_cuts import SHORT_CHARACTERS, SHORT_MESSAGES

QUIET = LOOP + "{% if '/quiet' in messages[-1].content %}{{ '<|im_start|>assistant\nshh' }}{% else %}" + GENERATION
QUIET += "{% endif %}"
COUNTED = LOOP.replace("m.content", "m.content ~ messages | length") + GENERATION
STRICT = (
    "{% for m in messages %}{% if m.role == 'user' and 'please' in m.content %}{{ raise_exception('be brief') }}"
    "{% endif %}{% endfor %}" + LOOP + GENERATION
)
USER = {"role": "user", "content": "What is it?"}
SAID = {"role": "assistant", "content": "It is 38."}


class Renders:
    """Counts how often the rule is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found = 0
        real = DeltaRule.finish

        def finish(rule: DeltaRule, *arguments: Any) -> Delta:
            self.found += 1
            return real(rule, *arguments)

        monkeypatch.setattr(DeltaRule, "finish", finish)


@pytest.fixture
def renders(monkeypatch: pytest.MonkeyPatch) -> Renders:
    return Renders(monkeypatch)


def delta(tokenizer: ChatTokenizer, content: str, past: int = 1) -> Delta:
    history = [USER, *[SAID, USER] * (past - 1), SAID]
    new = [{"role": "user", "content": content}]
    return tokenizer.render_delta(new, sampled=tokenizer.encode("It is 38.<|im_end|>"), history=history)


def behind(tokenizer: ChatTokenizer, content: str, past: int = 1) -> str:
    """What the template writes behind the turn, by a render of the whole conversation."""
    history = [USER, *[SAID, USER] * (past - 1), SAID]
    whole = tokenizer.render_text([*history, {"role": "user", "content": content}])
    return whole.rpartition("It is 38.")[2].partition("<|im_end|>")[2]


def text(tokenizer: ChatTokenizer, found: Delta) -> str:
    return tokenizer.decode([*found.close_ids, *found.glue_ids])


def test_the_rule_is_asked_at_uses_1_2_4_8_and_each_64th(make_tokenizer: MakeTokenizer, renders: Renders) -> None:
    tokenizer, asked = make_tokenizer(LOOP + GENERATION), []
    for use in range(200):
        before = renders.found
        found = delta(tokenizer, f"word {use}")
        assert text(tokenizer, found) == behind(tokenizer, f"word {use}")
        if renders.found > before:
            asked.append(use)
    # The first one finds the shape; the last two are rendered in the form that the rule found.
    assert asked == [0, 1, 2, 4, 8, 16, 32, 64, 128, 192]


def test_a_joined_delta_is_few_calls(make_tokenizer: MakeTokenizer) -> None:
    """Of Python functions. There were 174, most of which looked at what a shape doesn't change."""
    tokenizer = make_tokenizer(LOOP + GENERATION)
    for use in range(5):
        delta(tokenizer, f"word {use}", past=20)
    sampled, new = tokenizer.encode("It is 38.<|im_end|>"), [{"role": "user", "content": "word"}]
    history = [USER, *[SAID, USER] * 20, SAID]

    def render() -> None:
        tokenizer.deltas_read_tools([{"type": "function"}], None)
        assert not tokenizer.deltas_read_history
        tokenizer.render_delta(new, sampled=sampled, history=history)

    render()
    assert python_calls(render) <= 40


def test_long_histories_are_compared_less_and_less(make_tokenizer: MakeTokenizer, renders: Renders) -> None:
    tokenizer = make_tokenizer(LOOP + GENERATION)
    for _ in range(100):
        delta(tokenizer, "word", past=SHORT_MESSAGES)
    assert renders.found == 1 + 7


@pytest.mark.parametrize("content", ["be /quiet", "", " word", "word\n", "a<|im_end|>b", "a<|im_"])
def test_a_word_that_the_proof_is_not_about_is_rendered(make_tokenizer: MakeTokenizer, content: str) -> None:
    tokenizer = make_tokenizer(QUIET)
    for _ in range(5):
        delta(tokenizer, "word")
        assert text(tokenizer, delta(tokenizer, content)) == behind(tokenizer, content)


def test_a_part_of_a_control_string_is_joined_unless_it_completes_one(
    make_tokenizer: MakeTokenizer, renders: Renders
) -> None:
    """`38` is a part of `<|reserved_special_token_38|>`, so each such result went by the rule."""
    tokenizer = make_tokenizer(LOOP.replace("m.content", "m.content + 'end|>'") + GENERATION)
    for content, rendered in (("m_s", 0), ("<|im", 0), ("<|im_", 1)):
        for use in range(6):
            delta(tokenizer, f"word {use}")
        before = renders.found
        found = delta(tokenizer, content)
        assert renders.found - before == rendered
        # What was typed is spelled, so the only stops are those that the template wrote.
        assert [i for i in found.glue_ids if i in tokenizer.stop_ids] == tokenizer.encode("<|im_end|>")
        assert text(tokenizer, found) == behind(tokenizer, content)


NAMED = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ 'loud:' if m.name == 'shout' else 'tool:' }}{% else %}"
    "{{ m.role + ':' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION
)
FLAGGED = LOOP.replace("m.content", "('!' if m.urgent else '') + m.content") + GENERATION
REASONED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if messages[-2].reasoning_content is defined %}{{ 'thought ' }}{% endif %}" + GENERATION
)
BARE = "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"
BARE += "{% if add_generation_prompt %}{{ '>' }}{% endif %}"


def test_a_turn_that_was_cut_in_white_space_is_the_rules_and_no_doubt(make_tokenizer: MakeTokenizer) -> None:
    """Published templates that end turns with text alone (Alpaca) got a doubt for good by one such turn."""
    tokenizer = make_tokenizer(
        "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content | trim + '\n\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### assistant:\n' }}{% endif %}"
    )
    for use in range(8):
        said = "It is 38. " if use % 2 else "It is 38."
        history, new = [USER, {**SAID, "content": said}], [{"role": "user", "content": f"word {use}"}]
        sampled = tokenizer.encode(said)
        if use % 2:
            with pytest.raises(TurnEndNotFound, match="cut in white space"):
                tokenizer.render_delta(new, sampled=sampled, history=history)
        else:
            assert "word" in text(tokenizer, tokenizer.render_delta(new, sampled=sampled, history=history))
    assert tokenizer.doubts.found == {}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("template", "turns", "news"),
    [
        pytest.param(
            NAMED,
            [SAID, SAID],
            [[{"role": "tool", "content": "x", "name": name, "tool_call_id": "c"}] for name in ("add", "shout")],
            id="a name that is compared and not printed",
        ),
        pytest.param(
            FLAGGED,
            [SAID, SAID],
            [[{"role": "user", "content": "x", "urgent": urgent}] for urgent in (False, True)],
            id="a value that is no text",
        ),
        pytest.param(
            REASONED,
            [SAID, SAID | {"reasoning_content": ""}],
            [[{"role": "user", "content": "x"}]] * 2,
            id="an empty text of the turn",
        ),
        pytest.param(
            BARE,
            [SAID, SAID],
            [[{"role": "user", "content": content}] for content in ("two words", "x")],
            id="a text that begins with the new one's word",
        ),
    ],
)
def test_what_differs_by_what_is_not_printed_differs_here(
    make_tokenizer: MakeTokenizer,
    template: str,
    turns: list[dict[str, Any]],
    news: list[list[dict[str, Any]]],
    order: tuple[int, int],
) -> None:
    """Each is taken for the other's shape where only printed words, or only texts, tell shapes apart."""
    tokenizer = make_tokenizer(template)
    for _ in range(4):
        for i in order:
            history = [USER, turns[i]]
            found = tokenizer.render_delta(news[i], sampled=tokenizer.encode("It is 38.<|im_end|>"), history=history)
            whole = tokenizer.render_text([*history, *news[i]])
            assert text(tokenizer, found) == whole.rpartition("It is 38.<|im_end|>")[2]


def test_words_that_make_a_template_raise_are_refused_each_time(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(STRICT)
    history = [{"role": "user", "content": "Hi"}, SAID]
    for _ in range(3):
        for content, fits in (("go", True), ("go, please", False)):
            new = [{"role": "user", "content": content}]
            if fits:
                tokenizer.render_delta(new, sampled=tokenizer.closing, history=history)
                continue
            with pytest.raises(RenderFailed, match="be brief"):
                tokenizer.render_delta(new, sampled=tokenizer.closing, history=history)


def test_a_doubt_is_for_good(
    make_tokenizer: MakeTokenizer, renders: Renders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A proof that is wrong from the third use on, as if this analysis misread a template."""
    real, uses = Joint.join, list[None]()

    def wrong(self: Joint, *arguments: Any) -> tuple[str, str] | None:
        uses.append(None)
        found = real(self, *arguments)
        return found if found is None or len(uses) < 3 else (found[0].replace("user", "tool"), found[1])

    monkeypatch.setattr(Joint, "join", wrong)
    tokenizer = make_tokenizer(LOOP + GENERATION)
    with caplog.at_level(logging.ERROR):
        for use in range(8):
            # The third use is compared, so none is wrong here.
            assert text(tokenizer, delta(tokenizer, f"word {use}")) == behind(tokenizer, f"word {use}")
    assert [record.message.partition(":")[0] for record in caplog.records] == ["delta_doubted"]
    assert renders.found == 8
    assert tokenizer.deltas_read_history


@pytest.mark.parametrize("word", ["word", "word " * 5_000])
def test_the_template_is_read_for_a_shape_that_comes_again(
    make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """A first delta costs less so. One of a long text reads the template at once, because the text is not kept."""
    proved, made = list[int](), list[Delta]()

    def prove(*arguments: Any, **options: Any) -> Proof:
        proved.append(len(made))
        return prover.prove(*arguments, **options)

    monkeypatch.setattr("rolloutpool_common.rendering.short_cuts.prove", prove)
    tokenizer = make_tokenizer(LOOP + GENERATION)
    for _ in range(4):
        made.append(delta(tokenizer, word))
    assert proved == [0 if len(word) > SHORT_CHARACTERS else 1]


def test_the_first_delta_is_compared_when_its_shape_comes_again(
    make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof that is wrong for the first one's words alone, as if this analysis misread a template."""
    real = Joint.join

    def wrong(self: Joint, messages: Any) -> tuple[str, str] | None:
        found = real(self, messages)
        return found if found is None or "odd" not in found[0] else (found[0].replace("user", "tool"), found[1])

    monkeypatch.setattr(Joint, "join", wrong)
    tokenizer = make_tokenizer(LOOP + GENERATION)
    assert text(tokenizer, delta(tokenizer, "odd")) == behind(tokenizer, "odd")
    assert tokenizer.doubts.found == {}
    assert text(tokenizer, delta(tokenizer, "word")) == behind(tokenizer, "word")
    assert len(tokenizer.doubts.found) == 1


def test_what_is_doubted_elsewhere_goes_by_the_rule_from_its_first_delta_on(make_tokenizer: MakeTokenizer) -> None:
    """Here the rule refuses the history, and a short cut would not have looked at it."""
    history = [{"role": "user", "content": "please"}, SAID]
    new = [{"role": "user", "content": "go"}]
    one = make_tokenizer(STRICT)
    made = one.render_delta(new, sampled=one.closing, history=history)
    assert text(one, made).endswith("<|im_start|>assistant\n")
    one.doubts.doubt(one.doubts.shape(next(iter(one.doubts._shapes))))
    other = make_tokenizer(STRICT)
    other.doubts.hear(one.doubts.found)
    for tokenizer in (one, other):
        with pytest.raises(RenderFailed, match="be brief"):
            tokenizer.render_delta(new, sampled=tokenizer.closing, history=history)


def test_without_a_history_only_what_is_independent_of_one_is_rendered(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(LOOP + GENERATION)
    found = tokenizer.render_delta([{"role": "user", "content": "word"}], sampled=tokenizer.closing)
    assert text(tokenizer, found) == behind(tokenizer, "word")
    with pytest.raises(HistoryRewritten, match="depends on the history, which is not given"):
        make_tokenizer(COUNTED).render_delta([{"role": "user", "content": "word"}], sampled=tokenizer.closing)
