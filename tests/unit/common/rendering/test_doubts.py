"""Doubts: which uses of a short cut they concern, what other processes hear, and that their number has a limit."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_common.rendering.doubts import MOST, MOST_OF_ONE, TEMPLATE_DIGITS, Doubts, Use, name_of
from rolloutpool_common.tokens.entries import TokenizerFingerprint

NAME = "0123456789abcdef.1"
PRINT = TokenizerFingerprint(tokenizer_sha256="a" * 64, template_sha256="b" * 64, transformers_version="5.0.0")


def use(doubts: Doubts, name: str = NAME) -> Use:
    shape = doubts.shape(name)
    return Use(shape, shape.stretch)


@given(st.lists(st.sampled_from(["use", "equal", "doubt", "hear"])), st.sampled_from(["doubt", "hear"]))
def test_a_doubt_concerns_the_uses_since_the_last_comparison_that_was_equal(steps: list[str], last: str) -> None:
    doubts, vouched, since, doubted = Doubts(), list[Use](), list[Use](), False
    for step in [*steps, last]:
        match step:
            case "use":
                since.append(use(doubts))
            case "equal":
                doubts.equal(doubts.shape(NAME))
                # One that began before the doubt and ends after it vouches for nothing.
                if not doubted:
                    vouched, since = [*vouched, *since], []
            case "doubt":
                doubts.doubt(doubts.shape(NAME))
            case "hear":
                doubts.hear([NAME])
        doubted = doubted or step in ("doubt", "hear")
        assert (NAME in doubts) is doubted
        assert [doubts.concern([one]) for one in since] == [doubted] * len(since)
        assert not doubts.concern(vouched)
    assert not doubts.concern([use(doubts, "0123456789abcdef.2")])


def test_others_hear_of_what_was_found_or_used_here_and_since_when() -> None:
    doubts = Doubts()
    used, found = doubts.shape("t.used"), doubts.shape("t.found")
    doubts.hear(["t.used", "t.never"])
    doubts.doubt(found)
    assert doubts.found == {"t.used": used.equal_at, "t.found": found.equal_at}
    assert all(name in doubts for name in ("t.used", "t.never", "t.found"))


def test_an_equal_comparison_moves_the_time() -> None:
    doubts = Doubts()
    shape = doubts.shape(NAME)
    first = shape.equal_at
    doubts.equal(shape)
    assert shape.equal_at > first
    assert doubts.shape(NAME) is shape


def test_a_template_with_many_doubts_goes_by_the_rule_and_others_do_not() -> None:
    doubts = Doubts()
    template, other = "a" * TEMPLATE_DIGITS, "b" * TEMPLATE_DIGITS
    doubts.hear(f"{template}.{n}" for n in range(MOST_OF_ONE - 1))
    assert f"{template}.x" not in doubts
    doubts.hear([f"{template}.last"])
    assert f"{template}.x" in doubts
    assert f"{other}.x" not in doubts


def test_with_very_many_doubts_everything_goes_by_the_rule() -> None:
    doubts = Doubts()
    doubts.hear(f"{n:0{TEMPLATE_DIGITS}}.x" for n in range(MOST - 1))
    assert NAME not in doubts
    doubts.hear(["another.x"])
    assert NAME in doubts


def test_a_name_is_the_same_in_all_processes_and_tells_shapes_apart() -> None:
    key = ((("user", "content", "role"),), 1, True, "[('day', '1')]")
    # A literal, because a process that names shapes in another way would not hear of those that are doubted.
    assert name_of(PRINT, "source", key) == "bbbbbbbbbbbbbbbb.75bc24b0d94b4f90"
    others = [
        name_of(PRINT, "another", key),
        name_of(PRINT, "source", (*key, 2)),
        name_of(PRINT.model_copy(update={"tokenizer_sha256": "c" * 64}), "source", key),
        name_of(PRINT.model_copy(update={"transformers_version": "5.0.1"}), "source", key),
    ]
    assert len({name_of(PRINT, "source", key), *others}) == 5
