"""Foreign text on a screen says what it says and does nothing."""

import pytest

from rolloutpool_trainer.viewer.sanitize import printable, sanitize


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


def test_nobody_else_draws_our_marks() -> None:
    assert sanitize("⟦a⟧⟪b⟫\n") == "\\u27e6a\\u27e7\\u27eab\\u27eb↵\n"
