"""Tokens on a terminal: marks beside colour, and no orders from model text."""

from typing import Any

import pytest
from rich.console import Console
from tests.support.finished_rollouts import decode, forked, rollout, sample, turn

from rolloutpool_common.protocol.result import Sample
from rolloutpool_trainer.viewer.runs import view_samples
from rolloutpool_trainer.viewer.terminal import legend, mask_runs, token_view


def shown(one: Sample, **options: Any) -> str:
    (view,) = view_samples(rollout(one, turns=[turn(1)]), decode)
    return plain(token_view(view, **options))


def plain(view: object) -> str:
    console = Console(color_system=None, width=200, markup=False)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def test_runs_of_equal_mask_are_joined() -> None:
    assert list(mask_runs([1, 2, 3, 4, 5], [1, 1, 0, 0, 1])) == [(1, [1, 2]), (0, [3, 4]), (1, [5])]


def test_ids_and_mask_must_be_of_one_length() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(mask_runs([1, 2], [1]))


def test_trained_tokens_are_marked_without_colour() -> None:
    one = sample("ask ", ("sampled", "yes", 1), ("glue", " no ", 1), ("sampled", "yes", 2))
    assert shown(one, marks=False) == "ask ⟦yes⟧ no ⟦yes⟧\n"


def test_the_prompt_can_be_cut() -> None:
    one = sample("a long question", ("sampled", "yes", 1))
    assert shown(one, marks=False, prompt_tail=4) == "(… 11 tokens of the prompt) tion⟦yes⟧\n"


def test_every_run_says_what_it_is() -> None:
    first, second = view_samples(forked(), decode)
    assert plain(token_view(first)).splitlines() == [
        "⟪prompt 9⟫ <user>ask",
        "⟪turn 1 · 29 sampled · policy step-7⟫ ⟦<think>hm</think>über日</s>⟧",
    ]
    assert plain(token_view(second)).splitlines() == [
        "⟪9 tokens as in sample 1⟫ ",
        "⟪prompt 17 · fork of sample 1: thinking_stripped⟫ yes</s>↵",
        "<tool>42↵",
        "",
        "⟪turn 2 · 11 sampled · policy step-8 · ≠ thinking_stripped⟫ ⟦so it is 42⟧",
        "⟪synth_close 4 · turn 2⟫ </s>",
        "⟪glue 13 · turn 2⟫ ↵",
        "<user>sure?↵",
        "",
        "⟪prefill 2 · turn 3⟫ I ",
        "⟪turn 3 · 2 sampled · policy step-8⟫ ⟦am⟧",
    ]


def test_what_is_not_trained_or_wrong_says_so() -> None:
    quiet = sample("ask", ("sampled", "a", 1), untrained=[1])
    assert "⟪turn 1 · 1 sampled · not trained⟫ a\n" in shown(quiet)
    wrong = sample("ask", ("glue", "a", 1)).model_copy(update={"response_mask": [1]})
    assert "⟪glue 1 · turn 1 · mask 1 on what was not sampled⟫ ⟦a⟧" in shown(wrong)


def test_no_text_draws_marks_moves_the_cursor_or_becomes_markup() -> None:
    evil = "[red]⟦fake⟧⟪turn 9⟫\x1b[2J\r"
    one = sample("", ("glue", evil, 1)).model_copy(update={"prompt_ids": []})
    odd = one.segments[0].model_copy(update={"kind": evil + "\n", "policy_version": evil})
    text = shown(one.model_copy(update={"segments": [odd]}))
    assert text.count("[red]\\u27e6fake\\u27e7\\u27eaturn 9\\u27eb\\x1b[2J\\r") == 3
    assert (text.count("⟪"), text.count("⟦"), text.count("\n")) == (1, 0, 1)


def test_the_legend_counts() -> None:
    (view,) = view_samples(rollout(sample("ab", ("sampled", "c", 1), ("glue", "de", 1))), decode)
    assert "trained 1 of 5 tokens" in plain(legend(view))
