"""Thoughts are split off where a turn begins with them, or where the prompt has begun them."""

import pytest

from rolloutpool_common.rendering.parsing.thoughts import split_thoughts


@pytest.mark.parametrize(
    ("text", "before", "reasoning", "rest"),
    [
        ("It is 38.", "<|im_start|>assistant\n", None, "It is 38."),
        ("<think>\n15 + 23\n</think>\n\nIt is 38.", "", "15 + 23", "\n\nIt is 38."),
        ("\n<think></think>x", "", "", "x"),
        ("15 + 23\n</think>\n\nIt is 38.", "assistant\n<think>\n", "15 + 23", "\n\nIt is 38."),
        ("It is 38.", "<think>\n\n</think>\n\n", None, "It is 38."),
        ("<think>\nnever closed <tool_call>", "", "never closed <tool_call>", ""),
        ("never closed", "<think>", "never closed", ""),
        ("It is <think>38</think>.", "", None, "It is <think>38</think>."),
        ("<think>a</think>b</think>c", "", "a", "b</think>c"),
        ("", "<think>\n", "", ""),
        ("", "", None, ""),
    ],
)
def test_the_two_parts(text: str, before: str, reasoning: str | None, rest: str) -> None:
    found = split_thoughts(text, before)
    assert (found.reasoning, text[found.start :]) == (reasoning, rest)
