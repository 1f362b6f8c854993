"""The admission gate: of a result that contradicts itself or its ledger, nothing is admitted."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.results import completed

from rolloutpool_common.errors import ResultQuarantined
from rolloutpool_common.protocol.result import RolloutResult, Sample, SampleSegment
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.rollout.admission import check_result

VOCABULARY = 100


@pytest.fixture
def ledger() -> TokenLedger:
    """Two turns with a tool result between them."""
    made = TokenLedger()
    made.seed([1, 2, 3])
    made.append_sampled([10, 11], [-0.1, -0.2], turn=1)
    made.append_glue([20, 21, 22], turn=1)
    made.append_sampled([12, 99], [-0.3, -0.4], turn=2)
    return made


def result_of(ledger: TokenLedger, **changes: Any) -> RolloutResult:
    return completed(**{"samples": ledger.samples(), "response_tokens": 4, **changes})


def check(result: RolloutResult, ledger: TokenLedger, *, allow_untrained: bool = False) -> None:
    check_result(result, [ledger], vocab_size=VOCABULARY, allow_untrained=allow_untrained)


def damaged(sample: Sample, **changes: Any) -> list[Sample]:
    # As a defect would: past every check that a model makes when it is built.
    return [sample.model_copy(update=changes)]


def replaced(values: list[Any], at: int, value: Any) -> list[Any]:
    return [*values[:at], value, *values[at + 1 :]]


DAMAGES: dict[str, tuple[Callable[[Sample], list[Sample]], str]] = {
    "a mask value too few": (lambda s: damaged(s, response_mask=s.response_mask[:-1]), "7 ids, 6 mask values"),
    "a logprob too many": (lambda s: damaged(s, response_logprobs=[*s.response_logprobs, 0.0]), "8 logprobs"),
    "a mask of 2": (lambda s: damaged(s, response_mask=replaced(s.response_mask, 0, 2)), "neither 0 nor 1"),
    "not a number": (
        lambda s: damaged(s, response_logprobs=replaced(s.response_logprobs, 0, math.nan)),
        "not finite",
    ),
    "infinite": (lambda s: damaged(s, response_logprobs=replaced(s.response_logprobs, 5, -math.inf)), "not finite"),
    "an id beyond the vocabulary": (
        lambda s: damaged(s, response_ids=replaced(s.response_ids, 6, VOCABULARY)),
        "outside the vocabulary",
    ),
    "such an id in the prompt": (lambda s: damaged(s, prompt_ids=[1, VOCABULARY]), "outside the vocabulary"),
    "another sampled id": (lambda s: damaged(s, response_ids=replaced(s.response_ids, 0, 12)), "every sampled token"),
    "a tool's token trained": (lambda s: damaged(s, response_mask=replaced(s.response_mask, 3, 1)), "has mask 1"),
    "a segment lost": (lambda s: damaged(s, segments=s.segments[:-1]), "do not cover"),
    "a segment moved": (
        lambda s: damaged(s, segments=[s.segments[0].model_copy(update={"start": 1}), *s.segments[1:]]),
        "do not tile",
    ),
    "a turn that nobody sampled": (
        lambda s: damaged(
            s,
            segments=[*s.segments, SampleSegment(kind="sampled", start=7, n=1, turn=3)],
            response_ids=[*s.response_ids, 5],
            response_mask=[*s.response_mask, 1],
            response_logprobs=[*s.response_logprobs, -0.5],
        ),
        "every sampled token",
    ),
    "a sample twice": (lambda s: [s, s], "every sampled token"),
    "no sample": (lambda _: [], "every sampled token"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_damaged_does_not(ledger: TokenLedger, damage: Callable[[Sample], list[Sample]], said: str) -> None:
    (sample,) = ledger.samples()
    with pytest.raises(ResultQuarantined, match=said):
        check(result_of(ledger).model_copy(update={"samples": damage(sample)}), ledger)


def test_the_turns_count_the_same_tokens(ledger: TokenLedger) -> None:
    with pytest.raises(ResultQuarantined, match="4 sampled tokens in the samples, 5 in the turns"):
        check(result_of(ledger, response_tokens=5), ledger)


def test_without_a_trained_token_it_has_to_be_allowed(ledger: TokenLedger) -> None:
    (sample,) = ledger.samples()
    untrained = result_of(ledger, samples=damaged(sample, response_mask=[0] * 7))
    with pytest.raises(ResultQuarantined, match="allow_untrained"):
        check(untrained, ledger)
    check(untrained, ledger, allow_untrained=True)


def test_forks_share_no_sampled_token(ledger: TokenLedger) -> None:
    ledger.accept_echo([1, 2, 3, 50])
    ledger.append_sampled([13], [-0.5], turn=3)
    assert len(ledger.samples()) == 2
    check(result_of(ledger, response_tokens=5), ledger)
    first, second = ledger.samples()
    with pytest.raises(ResultQuarantined, match="every sampled token"):
        check(result_of(ledger, response_tokens=5, samples=[second, first]), ledger)
