"""What graders return: good answers become grades, and nonsense is refused, quickly, whatever its size."""

import time

import numpy
import pytest
from tests.support.graders import ANSWERS, INVALID, rollout_of

from rolloutpool_common.capabilities.grading.errors import GradeInvalid, GraderFault
from rolloutpool_common.capabilities.grading.wire import Grade
from rolloutpool_common.errors import RequestFault
from rolloutpool_worker.capabilities.grading.grades import (
    answer_bytes,
    checked_grades,
    read_answer,
    write_grades,
    write_refusal,
)

ONE = rollout_of("abc", "de")


@pytest.mark.parametrize("name", ANSWERS)
def test_good_answers_are_grades(name: str) -> None:
    (grade,) = checked_grades(ANSWERS[name](ONE), [ONE], of_groups=False)
    assert isinstance(grade.reward, float)
    # And they are the same on their way from a child process.
    assert len(write_grades([grade])) <= answer_bytes([ONE])
    assert read_answer(write_grades([grade])) == [grade]


@pytest.mark.parametrize("name", INVALID)
def test_everything_else_is_refused_at_once(name: str) -> None:
    answer = INVALID[name](ONE)
    start = time.process_time()
    with pytest.raises(GradeInvalid):
        checked_grades(answer, [ONE], of_groups=False)
    assert time.process_time() - start < 0.2


def test_numbers_and_arrays_of_numpy_are_numbers() -> None:
    rows = [numpy.ones(3, dtype=numpy.float32), numpy.zeros(2)]
    answer = Grade(numpy.float32(0.5), {"part": numpy.array(2.0)}, rows)  # type: ignore[arg-type,dict-item]
    assert checked_grades(answer, [ONE], of_groups=False) == [Grade(0.5, {"part": 2.0}, [[1.0] * 3, [0.0] * 2])]
    assert checked_grades(numpy.array([0.5, 1.5]), [ONE, ONE], of_groups=True) == [Grade(0.5), Grade(1.5)]


@pytest.mark.parametrize("answer", [1.0, [], [1.0], [1.0] * 3, "ab", {0: 1.0, 1: 2.0}, None])
def test_a_group_gets_as_many_grades_as_it_has_members(answer: object) -> None:
    with pytest.raises(GradeInvalid):
        checked_grades(answer, [ONE, ONE], of_groups=True)


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (Grade("1"), "the reward is no number but str"),  # type: ignore[arg-type]
        (Grade(1.0, None), "parts must be a dict"),  # type: ignore[arg-type]
        (Grade(1.0, {"style": None}), "the part 'style' is no number but NoneType"),  # type: ignore[dict-item]
        # It could not be written as JSON, and the result with it.
        (Grade(1.0, {"\ud800": 1.0}), "the names of parts"),
        (Grade(1.0, {}, [[0.0] * 3, [0.0, None]]), "token_rewards of sample 1 is no number but NoneType"),  # type: ignore[list-item]
    ],
)
def test_what_is_wrong_with_a_grade_is_named(answer: Grade, names: str) -> None:
    with pytest.raises(GradeInvalid, match=names) as raised:
        checked_grades(answer, [ONE], of_groups=False)
    assert not raised.value.retryable


def test_refusals_travel_too() -> None:
    with pytest.raises(GradeInvalid, match="no number"):
        read_answer(write_refusal(GradeInvalid("no number")))
    with pytest.raises(RequestFault, match="no answer"):
        read_answer(write_refusal(RequestFault("no answer \ud800")))
    with pytest.raises(GraderFault):
        read_answer("Error: something")
