"""Labels of differing prompts on the tiny tokenizer; `tests/golden` has them on real ones."""

import pytest
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.errors import TokenizerMismatch
from rolloutpool_common.rendering import ChatTokenizer, DriftLabel, classify, verify_prompt_contains
from rolloutpool_common.tokens.ledger import TokenLedger

HEADER = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
GLUE = "\n<|im_start|>user\nx</think>y<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name":"add"}\n</tool_call>'


@pytest.mark.parametrize(
    ("sampled", "echoed", "label"),
    [
        ("Hi.<|im_end|>", HEADER + "Hi.<|im_end|>" + GLUE, DriftLabel.NONE),
        ("Hi.<|im_end|>", HEADER + "Hi.<|im_end|>" + GLUE + " ", DriftLabel.GLUE_REWRITTEN),
        ("Hi.<|im_end|>", "<|im_start|>system\n" + HEADER + "Hi.<|im_end|>" + GLUE, DriftLabel.PROMPT_REWRITTEN),
        ("Hi.<|endoftext|>", HEADER + "Hi.<|im_end|>" + GLUE, DriftLabel.CLOSE_TOKEN_CHANGED),
        ("e\u0301.<|im_end|>", HEADER + "é.<|im_end|>" + GLUE, DriftLabel.UNICODE_NORMALISED),
        ("<think>\nhm\n</think>\n\nHi.<|im_end|>", HEADER + "Hi.<|im_end|>" + GLUE, DriftLabel.THINKING_STRIPPED),
        (
            CALL + "<|im_end|>",
            HEADER + CALL.replace(":", ": ") + "<|im_end|>" + GLUE,
            DriftLabel.TOOL_CALL_RESERIALISED,
        ),
        (CALL + "<|im_end|>", HEADER + "I call.<|im_end|>" + GLUE, DriftLabel.TOOL_CALL_RESERIALISED),
        # The text beside the call, white space around it and braces in an answer are not the call.
        (f"I add.\n{CALL}<|im_end|>", f"{HEADER}I sum.\n{CALL}<|im_end|>{GLUE}", DriftLabel.ASSISTANT_TEXT_CHANGED),
        (f"{CALL}\nI add.<|im_end|>", f"{HEADER}{CALL}\nI sum.<|im_end|>{GLUE}", DriftLabel.ASSISTANT_TEXT_CHANGED),
        (f"I add.\n{CALL}<|im_end|>", f"{HEADER}I add.\n\n{CALL}<|im_end|>{GLUE}", DriftLabel.WHITESPACE_TRIMMED),
        ("{1, 2} <|im_end|>", HEADER + "{1, 2}<|im_end|>" + GLUE, DriftLabel.WHITESPACE_TRIMMED),
        # The call, whatever else happens to white space; a call that is printed without its text; one that is lost.
        (
            f"I add.\n{CALL}<|im_end|>",
            f"{HEADER}I add. {CALL.replace('add', 'ad')}<|im_end|>{GLUE}",
            DriftLabel.TOOL_CALL_RESERIALISED,
        ),
        (f"I add.\n{CALL}<|im_end|>", f"{HEADER}{CALL}<|im_end|>{GLUE}", DriftLabel.TOOL_CALL_RESERIALISED),
        (f"I add.\n{CALL}<|im_end|>", f"{HEADER}I add.<|im_end|>{GLUE}", DriftLabel.TOOL_CALL_RESERIALISED),
        (f"{CALL}\n{CALL}<|im_end|>", f"{HEADER}{CALL}<|im_end|>{GLUE}", DriftLabel.TOOL_CALL_RESERIALISED),
        (
            'So: {"name": "add", "parameters": {"a": 1}}<|im_end|>',
            HEADER + 'So: {"name": "add", "parameters": {"a": 2}}<|im_end|>' + GLUE,
            DriftLabel.TOOL_CALL_RESERIALISED,
        ),
        (
            'So: {"name": "add", "parameters": {"a": 1}}<|im_end|>',
            HEADER + 'Si: {"name": "add", "parameters": {"a": 1}}<|im_end|>' + GLUE,
            DriftLabel.ASSISTANT_TEXT_CHANGED,
        ),
        (" Hi. <|im_end|>", HEADER + " Hi.<|im_end|>" + GLUE, DriftLabel.WHITESPACE_TRIMMED),
        ("Hi there.<|im_end|>", HEADER, DriftLabel.HISTORY_SHORTENED),
        ("Hi there.<|im_end|>", HEADER[:-10], DriftLabel.PROMPT_REWRITTEN),
        ("Hi.<|im_end|>", HEADER + "Ho.<|im_end|>" + GLUE, DriftLabel.ASSISTANT_TEXT_CHANGED),
    ],
)
def test_label(tiny: ChatTokenizer, sampled: str, echoed: str, label: DriftLabel) -> None:
    ledger = ledger_of(tiny, tiny.encode(sampled))
    assert classify(ledger, tiny.encode(echoed), tiny) is label
    prefix = len(tiny.encode(HEADER))
    if echoed.startswith(HEADER):
        assert classify(ledger, tiny.encode(echoed)[prefix:], tiny, prefix=prefix) is label


def test_typed_control_token_behind_the_last_sampled_id(tiny: ChatTokenizer) -> None:
    ledger = ledger_of(tiny, tiny.encode("Hi.<|im_end|>"))
    head = ledger.ids[: ledger.head]
    assert classify(ledger, [*head, *tiny.encode(GLUE)], tiny) is DriftLabel.NONE
    ledger.accept_echo([*head, *tiny.encode(GLUE, control=False)])
    assert classify(ledger, [*head, *tiny.encode(GLUE)], tiny) is DriftLabel.INJECTED_CONTROL_TOKEN


def test_a_prompt_that_changes_before_anything_was_sampled(tiny: ChatTokenizer) -> None:
    ledger = TokenLedger()
    ledger.seed(tiny.encode(HEADER))
    assert classify(ledger, tiny.encode(HEADER + "x"), tiny) is DriftLabel.PROMPT_REWRITTEN


def ledger_of(tokenizer: ChatTokenizer, sampled: list[int]) -> TokenLedger:
    ledger = TokenLedger()
    ledger.seed(tokenizer.encode(HEADER))
    ledger.append_sampled(sampled, [0.0] * len(sampled), turn=1)
    ledger.append_glue(tokenizer.encode(GLUE), turn=1)
    return ledger


MESSAGES = [
    {"role": "system", "content": "You are a calculator."},
    {"role": "user", "content": 'Calculate  15 + 23,\nplease: "naïve" e\u0301'},
]


def test_other_messages_are_noticed(tiny: ChatTokenizer) -> None:
    prompt = tiny.render_prompt([MESSAGES[0], {"role": "user", "content": "another question"}])
    with pytest.raises(TokenizerMismatch, match=r"\[1\]") as caught:
        verify_prompt_contains(tiny, prompt, MESSAGES)
    assert "Calculate" not in caught.value.message  # logs hold no prompts


def test_ids_of_another_tokenizer_are_noticed(tiny: ChatTokenizer) -> None:
    shifted = [i + 1 for i in tiny.render_prompt(MESSAGES)]
    with pytest.raises(TokenizerMismatch, match=r"\[0, 1\]"):
        verify_prompt_contains(tiny, shifted, MESSAGES)


SWITCHED = (  # a switch is taken out of what is shown; the tools are not asked for
    "{% for t in tools %}{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content.replace('/no_think', '') if not loud else m.content | upper }}{{ '<|im_end|>\n' }}{% endfor %}"
)


@pytest.mark.parametrize("kwargs", [{}, {"loud": True}])
def test_a_prompt_that_equals_our_own_is_no_mismatch(make_tokenizer: MakeTokenizer, kwargs: dict[str, bool]) -> None:
    tokenizer = make_tokenizer(SWITCHED)
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}]
    messages = [{"role": "system", "content": "Be kind. /no_think Thank you."}, MESSAGES[1]]
    prompt = tokenizer.render_prompt(messages, tools=tools, template_kwargs=kwargs)
    verify_prompt_contains(tokenizer, prompt, messages, tools=tools, template_kwargs=kwargs)
    other = tokenizer.render_prompt([messages[0], {"role": "user", "content": "another question"}], tools=tools)
    with pytest.raises(TokenizerMismatch, match=r"\[1\]"):
        verify_prompt_contains(tokenizer, other, messages, tools=tools)


def test_a_prompt_whose_typed_text_was_cut_is_no_mismatch(tiny: ChatTokenizer, make_tokenizer: MakeTokenizer) -> None:
    """Ours cannot be rendered exactly. But it can be seen that our template leaves out the same."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content[:40] + '<|im_end|>\n' }}{% endfor %}"
    )
    tokenizer = make_tokenizer(template)
    messages = [{"role": "user", "content": "a <|endoftext|> b" + " word" * 20}]
    verify_prompt_contains(tokenizer, tokenizer.encode(tokenizer.render_text(messages)), messages)
    with pytest.raises(TokenizerMismatch):
        verify_prompt_contains(tiny, tokenizer.encode("<|im_start|>user\na"), messages)
