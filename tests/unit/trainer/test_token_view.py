"""Tokens on a terminal: joined runs, a cue beside colour, and no orders from model text."""

from collections.abc import Sequence

import pytest
from rich.console import Console

from rolloutpool_common.protocol.result import Sample
from rolloutpool_trainer.token_view import legend, mask_runs, printable, token_view


def sample(response_ids: list[int], mask: list[int], prompt_ids: list[int] | None = None) -> Sample:
    return Sample(
        prompt_ids=prompt_ids or [],
        response_ids=response_ids,
        response_mask=mask,
        response_logprobs=[0.0] * len(mask),
        segments=[],
    )


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def plain(view: object) -> str:
    console = Console(color_system=None, width=200)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def test_runs_of_equal_mask_are_joined() -> None:
    assert list(mask_runs([1, 2, 3, 4, 5], [1, 1, 0, 0, 1])) == [(1, [1, 2]), (0, [3, 4]), (1, [5])]


def test_ids_and_mask_must_be_of_one_length() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(mask_runs([1, 2], [1]))


def test_trained_tokens_are_marked_without_colour() -> None:
    view = token_view(sample([*b"yes", *b" no ", *b"yes"], [1, 1, 1, 0, 0, 0, 0, 1, 1, 1], [*b"ask "]), decode)
    assert plain(view) == "ask ⟦yes⟧ no ⟦yes⟧\n"


def test_characters_of_several_tokens_survive() -> None:
    ids = list("über日".encode())
    assert plain(token_view(sample(ids, [1] * len(ids)), decode)) == "⟦über日⟧\n"


def test_without_a_tokenizer_ids_are_shown() -> None:
    assert plain(token_view(sample([7, 8, 9], [1, 1, 0], [5]), None)) == "5 ⟦7 8 ⟧9 \n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\rb\x07\x08", "a\\rb\\x07\\x08"),
        ("\x9b2J", "\\x9b2J"),
        ("abc\u202edef", "abc\\u202edef"),
        ("\u2028", "\\u2028"),
        ("line\nline", "line\nline"),
        ("tab\there", "tab\\there"),
        ("[bold red]x[/bold red]", "[bold red]x[/bold red]"),
        ("日本 ünï 👩\u200d💻", "日本 ünï 👩\u200d💻"),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_gives_no_orders(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_markup_and_brackets_of_a_model_stay_text() -> None:
    ids = [*"[red]⟦fake⟧[/red]\n".encode()]
    assert plain(token_view(sample(ids, [0] * len(ids)), decode)) == "[red]\\u27e6fake\\u27e7[/red]↵\n\n"


def test_the_legend_counts() -> None:
    assert "trained 2 of 5 tokens" in plain(legend(sample([1, 2, 3], [1, 0, 1], [8, 9])))
