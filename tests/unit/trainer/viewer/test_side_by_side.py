"""Two texts side by side: aligned, narrow, and safe to look at."""

from rich.cells import cell_len

from rolloutpool_trainer.viewer.side_by_side import ids_side_by_side, texts_side_by_side


def test_the_first_difference_is_marked_with_what_is_around_it() -> None:
    ours = "\n<|im_start|>tool\n0: 38<|im_end|>\n<|im_start|>assistant\n"
    lines = list(texts_side_by_side(ours, ours.replace("0: 38", "1: 38")))
    assert [text.split() for text, _ in lines] == [
        ["ours", "|", "the", "template's"],
        ["↵", "|", "↵"],
        ["<|im_start|>tool↵", "|", "<|im_start|>tool↵"],
        ["≠", "0:", "38<|im_end|>↵", "|", "1:", "38<|im_end|>↵"],
        ["<|im_start|>assistant↵", "|", "<|im_start|>assistant↵"],
        ["|"],
    ]
    assert [differs for _, differs in lines].count(True) == 1


def test_equal_texts_and_ids_show_nothing() -> None:
    assert not list(texts_side_by_side("a", "a"))
    assert not list(ids_side_by_side([1], [1], str))


def test_every_line_fits_into_100_columns_whatever_the_text() -> None:
    texts = ("漢字" * 100_000, "a" * 200_000 + "\x1b[2J\r\t\u202e⟦", "\n" * 50_000, "", "🙂👩\u200d🚀 " * 2_000)
    for ours in texts:
        for template in texts:
            lines = [text for text, _ in texts_side_by_side("same\n" + ours, "same\n" + template)]
            assert all(cell_len(line) <= 100 for line in lines)
            assert len(lines) <= 13
            assert "\x1b" not in "".join(lines)
            assert "\u202e" not in "".join(lines)


def test_a_difference_far_behind_is_found() -> None:
    same = "x" * 500_000 + "\n"
    lines = [text for text, differs in texts_side_by_side(same + "mine", same + "yours") if differs]
    assert [line.split() for line in lines] == [["≠", "mine", "|", "yours"]]


def test_ids_are_shown_with_their_texts_around_the_difference() -> None:
    ours, template = list(range(100, 140)), [*range(100, 120), 999, *range(121, 130)]
    lines = [text for text, _ in ids_side_by_side(ours, template, lambda token: f"t{token}\n")]
    assert "ours" not in lines[0]
    assert lines[1].split()[:2] == ["17", "117"]
    (differing,) = (line for line in lines if line.startswith("  ≠"))
    assert differing.split() == ["≠", "20", "120", "'t120↵'", "|", "20", "999", "'t999↵'"]
    assert all(cell_len(line) <= 100 for line in lines)


def test_a_list_that_ends_first_says_so() -> None:
    lines = [text for text, _ in ids_side_by_side([1, 2], [1, 2, 3], str)]
    assert lines[-1].split() == ["≠", "(end)", "|", "2", "3", "'3'"]


def test_ids_that_cannot_be_compared_say_why() -> None:
    ((text, _),) = ids_side_by_side([1], [], str)
    assert "both sides" in text
