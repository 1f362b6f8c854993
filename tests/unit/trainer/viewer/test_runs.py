"""Runs tile a sample, pieces are whole characters, and the mask is the record's own."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.finished_rollouts import Part, decode, forked, rollout, sample, turn, two_lines

from rolloutpool_common.protocol.result import Sample, SampleSegment
from rolloutpool_trainer.errors import SamplesBroken
from rolloutpool_trainer.viewer.runs import Piece, SampleView, view_samples


def view(one: Sample, **changes: object) -> SampleView:
    (only,) = view_samples(rollout(one, **changes), decode)
    return only


def test_a_run_is_what_has_one_origin() -> None:
    seen = view(
        sample("ask", ("sampled", "yes", 1), ("synth_close", "</s>", 1), ("glue", "42", 1), ("sampled", "ok", 2)),
        turns=[turn(1), turn(2)],
    )
    assert [(run.kind, run.start, run.n, run.trained, run.turn, run.text) for run in seen.runs] == [
        ("prompt", 0, 3, False, None, "ask"),
        ("sampled", 3, 3, True, 1, "yes"),
        ("synth_close", 6, 4, False, 1, "</s>"),
        ("glue", 10, 2, False, 1, "42"),
        ("sampled", 12, 2, True, 2, "ok"),
    ]
    assert (seen.trained, seen.total, seen.prompt, seen.shared) == (5, 14, 3, 0)
    assert [run.record.turn if run.record else None for run in seen.runs] == [None, 1, None, None, 2]


def test_two_policy_versions_in_one_turn_are_two_runs_of_one_record() -> None:
    one = sample("ask", ("sampled", "a", 1), ("sampled", "b", 1))
    versions = [s.model_copy(update={"policy_version": f"v{i}"}) for i, s in enumerate(one.segments)]
    seen = view(one.model_copy(update={"segments": versions}), turns=[turn(1)])
    assert [(run.policy_version, run.record is not None) for run in seen.runs[1:]] == [("v0", True), ("v1", False)]


def test_a_sampled_turn_that_is_not_trained_is_no_trained_run() -> None:
    seen = view(sample("ask", ("sampled", "a", 1), ("sampled", "b", 2), untrained=[1]))
    assert [(run.kind, run.trained) for run in seen.runs[1:]] == [("sampled", False), ("sampled", True)]
    assert [run.pieces[0].logprobs for run in seen.runs[1:]] == [(), (-0.5,)]


def test_a_fork_shares_what_both_samples_begin_with() -> None:
    first, second = view_samples(forked(), decode)
    assert (first.shared, first.drift) == (0, None)
    assert (second.shared, second.drift) == (len("<user>ask"), "thinking_stripped")
    assert [(run.kind, run.text) for run in second.runs[:2]] == [
        ("shared", "<user>ask"),
        ("prompt", "yes</s>\n<tool>42\n"),
    ]


def test_another_line_of_talk_is_no_fork() -> None:
    views = view_samples(two_lines(), decode)
    assert [(view.fork, view.shared) for view in views] == [(False, 0), (True, 9), (False, 6)]
    # Both lines have a turn 1 and a turn 2, so neither has a record that could be the other's.
    assert not any(run.record for view in views for run in view.runs)


@pytest.mark.parametrize("drift", ["none", "unverified", "edited"])
def test_what_was_expected_is_no_drift(drift: str) -> None:
    assert view(sample("ask", ("sampled", "a", 1)), turns=[turn(1, drift)]).drift is None


def test_tokens_in_no_segment_are_of_unknown_origin() -> None:
    one = sample("ask", ("sampled", "abc", 1))
    odd = [SampleSegment(kind="sampled", start=-2, n=3, turn=1), SampleSegment(kind="glue", start=2, n=9, turn=1)]
    seen = view(one.model_copy(update={"segments": odd}))
    assert [(run.kind, run.text) for run in seen.runs[1:]] == [("sampled", "a"), ("unknown", "b"), ("glue", "c")]


def test_lists_of_different_lengths_are_refused() -> None:
    one = sample("ask", ("sampled", "abc", 1)).model_copy(update={"response_mask": [1, 1]})
    with pytest.raises(SamplesBroken, match="sample 1 has 3 response ids, 2 mask values"):
        view_samples(rollout(one), decode)


def test_a_character_of_several_tokens_is_one_piece() -> None:
    run = view(sample("", ("sampled", "a日👩", 1))).runs[0]
    assert [(len(piece.ids), piece.text, len(piece.logprobs)) for piece in run.pieces] == [
        (1, "a", 1),
        (3, "日", 3),
        (4, "👩", 4),
    ]


def test_a_character_that_a_border_cuts_stays_cut() -> None:
    whole = list("日".encode())
    one = Sample(
        prompt_ids=whole[:1],
        response_ids=whole[1:],
        response_mask=[1, 1],
        response_logprobs=[-1.0, -1.0],
        segments=[SampleSegment(kind="sampled", start=0, n=2, turn=1)],
    )
    assert [run.text for run in view(one).runs] == ["\ufffd", "\ufffd\ufffd"]


def test_bytes_that_are_no_characters_hide_nothing_behind_them() -> None:
    one = sample("", ("sampled", "x" * 14, 1)).model_copy(update={"response_ids": [0xFF] * 12 + list(b"ok")})
    pieces = view(one).runs[0].pieces
    assert [piece.text for piece in pieces] == ["\ufffd"] * 12 + ["o", "k"]


def test_a_word_keeps_its_space_where_decoders_drop_the_first_one() -> None:
    words = ["▁so", "▁it", "▁is"]

    def strips(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    one = sample("", ("sampled", "ab", 1)).model_copy(update={"prompt_ids": [0], "response_ids": [1, 2]})
    (seen,) = view_samples(rollout(one), strips)
    assert [piece.text for run in seen.runs for piece in run.pieces] == ["so", " it", " is"]


def test_without_a_decoder_pieces_are_numbers() -> None:
    (seen,) = view_samples(rollout(sample("a", ("sampled", "b", 1))), None)
    assert [run.pieces for run in seen.runs] == [(Piece((97,), "97 "),), (Piece((98,), "98 ", (-0.5,)),)]


# Without U+FFFD, which is what broken characters are shown as.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=6)
PARTS = st.lists(st.tuples(st.sampled_from(["sampled", "glue", "prefill", "synth_close"]), TEXT, st.integers(1, 4)))


@given(prompt=TEXT, parts=PARTS)
def test_runs_and_pieces_tile_every_sample(prompt: str, parts: list[Part]) -> None:
    one = sample(prompt, *parts)
    seen = view(one)
    lengths = [run.n for run in seen.runs]
    assert [run.start for run in seen.runs] == [end - n for n, end in zip(lengths, accumulate(lengths), strict=True)]
    ids = [token for run in seen.runs for piece in run.pieces for token in piece.ids]
    assert ids == [*one.prompt_ids, *one.response_ids]
    mask = [int(run.trained) for run in seen.runs for piece in run.pieces for _ in piece.ids]
    assert mask == [0] * len(one.prompt_ids) + one.response_mask
    assert "".join(run.text for run in seen.runs) == decode(ids)
