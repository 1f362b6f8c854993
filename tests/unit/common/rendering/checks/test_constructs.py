"""The list of constructs: complete, named once, the smallest case first."""

from rolloutpool_common.rendering.checks.constructs import MARK, SampledEnd, constructs


def test_names_are_unique_and_every_end_is_tried() -> None:
    found = constructs(["/no_think"])
    assert len({construct.name for construct in found}) == len(found)
    assert {case.end for construct in found for case in construct.cases} == set(SampledEnd)
    assert all(construct.cases for construct in found)


def test_the_first_case_is_the_smallest() -> None:
    for construct in constructs(["/no_think"]):
        sizes = [len(case.history) + len(case.new) for case in construct.cases]
        assert sizes[0] == min(sizes), construct.name


def test_only_the_turn_itself_says_the_mark() -> None:
    for construct in constructs(["/no_think"]):
        for case in construct.cases:
            assert MARK not in repr((case.history, case.new, case.said))


def test_switch_words_are_tried_as_first_and_last_word() -> None:
    (construct,) = (c for c in constructs(["/no_think"]) if c.name.startswith("switch words"))
    contents = [case.history[0]["content"] for case in construct.cases]
    assert contents == ["/no_think zebra", "zebra /no_think"] * 2
    assert [case.history[0]["role"] for case in construct.cases] == ["user", "user", "system", "system"]


def test_a_case_is_one_line() -> None:
    labels = [case.label for construct in constructs([]) for case in construct.cases]
    assert "user > [2 calls, stop sampled] > tool > tool (tools shown)" in labels
    assert "user in 2 parts > [answer, stop sampled] > user in 2 parts" in labels
    assert all("\n" not in label and len(label) < 140 for label in labels)
