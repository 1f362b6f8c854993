"""Says what a grader returns, checked: a grade for each rollout, of finite numbers that fit the tokens.

A grader is a plug-in, so it may return anything. What is too long is not looked at, because that would hold up the
worker: lengths are compared with the samples' first. A number of numpy or torch is one, and so is `True`.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import orjson

from rolloutpool_common.capabilities.grading.errors import GradeInvalid, GraderFault
from rolloutpool_common.capabilities.grading.wire import Grade
from rolloutpool_common.errors import RequestFault, RolloutError
from rolloutpool_common.protocol.result import RolloutResult

MOST_PARTS = 64
LONGEST_PART = 64
"""Characters of a part's name."""
LARGEST = 1e30
"""With larger ones sums over a batch could overflow; annotations have the same limit."""
_BYTES_PER_TOKEN = 32
_BYTES_PER_ROLLOUT = 16_384


def checked_grades(answer: object, rollouts: Sequence[RolloutResult], *, of_groups: bool) -> list[Grade]:
    """Checks an answer."""
    answers = [answer]
    if of_groups:
        listed = _as_list(answer)
        if listed is None or len(listed) != len(rollouts):
            got = f"a list of {len(listed)}" if listed is not None else type(answer).__name__
            raise GradeInvalid(f"the grader must return a list of {len(rollouts)} grades, and returned {got}")
        answers = listed
    return [_checked(one, rollout) for one, rollout in zip(answers, rollouts, strict=True)]


def _checked(answer: object, rollout: RolloutResult) -> Grade:
    grade = answer if isinstance(answer, Grade) else Grade(_number(answer, "the reward"))
    parts: object = grade.parts
    if not isinstance(parts, dict) or len(parts) > MOST_PARTS:
        raise GradeInvalid(f"parts must be a dict of at most {MOST_PARTS} numbers")
    if not all(isinstance(name, str) and len(name) <= LONGEST_PART and _can_be_written(name) for name in parts):
        raise GradeInvalid(f"the names of parts must be texts of at most {LONGEST_PART} characters")
    return Grade(
        _number(grade.reward, "the reward"),
        {name: _number(value, f"the part {name!r}") for name, value in parts.items()},
        None if grade.token_rewards is None else _token_rewards(grade.token_rewards, rollout),
    )


def _token_rewards(given: object, rollout: RolloutResult) -> list[list[float]]:
    lengths = [len(sample.response_ids) for sample in rollout.samples]
    rows = _as_list(given)
    if rows is None or len(rows) != len(lengths):
        raise GradeInvalid(f"token_rewards must have a list for each of the {len(lengths)} samples")
    checked = []
    for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        values = _as_list(row)
        if values is None or len(values) != length:
            got = type(row).__name__ if values is None else len(values)
            raise GradeInvalid(f"token_rewards of sample {place} must have {length} numbers, one per token, got {got}")
        what = f"a number in token_rewards of sample {place}"
        checked.append([_number(value, what) for value in values])
    return checked


def _can_be_written(name: str) -> bool:
    # Half of a surrogate pair is a string to Python.
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _number(value: Any, what: str) -> float:
    # Arrays without dimensions: of numpy, torch.
    if not isinstance(value, Real) and getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, Real):
        raise GradeInvalid(f"{what} is no number but {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or abs(number) > LARGEST:
        raise GradeInvalid(f"{what} is no finite number between -1e30 and 1e30")
    return number


def _as_list(value: Any) -> list[Any] | None:
    """Returns a list, a tuple or an array as a list; None for everything else."""
    if isinstance(value, list | tuple):
        return list(value)
    return value.tolist() if getattr(value, "ndim", 0) else None


def answer_bytes(rollouts: Sequence[RolloutResult]) -> int:
    """How long a good answer about these rollouts can be, as `write_grades` writes it."""
    tokens = sum(len(sample.response_ids) for rollout in rollouts for sample in rollout.samples)
    return _BYTES_PER_ROLLOUT * len(rollouts) + _BYTES_PER_TOKEN * tokens


def write_grades(grades: Sequence[Grade]) -> str:
    """Writes grades on their way from a child process."""
    return orjson.dumps({"grades": grades}).decode()


def write_refusal(error: RolloutError) -> str:
    """Writes why there is no grade, on its way from a child process."""
    name = "request" if isinstance(error, RequestFault) else "invalid"
    return orjson.dumps({name: error.message[:1000].encode("utf-8", "replace").decode()}).decode()


def read_answer(text: str) -> list[Grade]:
    """Reads what a child process has written."""
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise GraderFault("its answer could not be read") from None
    if "invalid" in read:
        raise GradeInvalid(read["invalid"])
    if "request" in read:
        raise RequestFault(read["request"])
    return [Grade(**grade) for grade in read["grades"]]
