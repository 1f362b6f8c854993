"""`TrainerKinds`: what one rollout learns of its trainer, another one begins with, in this process and elsewhere."""

from itertools import pairwise

import pytest
from tests.support.conversations import spec_of

from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.store import StoreError
from rolloutpool_common.store.trainers import KnownTrainers
from rolloutpool_worker.conversation import trainer_kinds
from rolloutpool_worker.conversation.trainer_kinds import ENOUGH_AGREED, MOST_UNCOUNTED, Agreement, TrainerKinds

UNKNOWN, KEEPS, RERENDERS = TrainerKind.UNKNOWN, TrainerKind.KEEPS_IDS, TrainerKind.RERENDERS


class Shared(KnownTrainers):
    """What Redis would know, and how often it is asked."""

    def __init__(self) -> None:
        self.known: dict[str, TrainerKind] = {}
        self.reads = 0
        self.down = False

    async def kind(self, name: str) -> TrainerKind:
        self.reads += 1
        return self.known.get(name, UNKNOWN)

    async def learn(self, name: str, kind: TrainerKind) -> None:
        if self.down:
            raise StoreError("away")
        self.known[name] = kind


def spec(host: str = "here", tokenizer: str = "t", **more: object) -> RolloutSpec:
    return spec_of(server_url=f"http://{host}", tokenizer_name=tokenizer, template_kwargs=more)


async def test_a_trainer_is_its_endpoint_its_tokenizer_and_the_arguments_of_its_template() -> None:
    kinds = TrainerKinds(Shared())
    kinds.learned(spec(), KEEPS)
    kinds.learned(spec("there"), RERENDERS)
    others = [spec(tokenizer="u"), spec(enable_thinking=False)]
    assert [await kinds.of(one) for one in (spec(), spec("there"), *others)] == [KEEPS, RERENDERS, UNKNOWN, UNKNOWN]


async def test_each_kind_is_shared() -> None:
    shared = Shared()
    for kind in (KEEPS, RERENDERS, TrainerKind.RERENDERS_PARSED):
        here = TrainerKinds(shared)
        here.learned(spec(), kind)
        await here.share()
        assert await TrainerKinds(shared).of(spec()) is kind


async def test_what_is_unknown_overwrites_nothing_and_what_is_new_does() -> None:
    kinds = TrainerKinds(Shared())
    kinds.learned(spec(), KEEPS)
    kinds.learned(spec(), UNKNOWN)
    assert await kinds.of(spec()) is KEEPS
    kinds.learned(spec(), RERENDERS)
    assert await kinds.of(spec()) is RERENDERS


async def test_redis_is_asked_once_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared()
    kinds = TrainerKinds(shared)
    assert [await kinds.of(spec()) for _ in range(5)] == [UNKNOWN] * 5
    assert shared.reads == 1
    monkeypatch.setattr(trainer_kinds, "ASK_AGAIN_SECONDS", 0.0)
    again = TrainerKinds(shared)
    assert [await again.of(spec()) for _ in range(2)] == [UNKNOWN] * 2
    assert shared.reads == 3


async def test_what_could_not_be_written_is_written_later() -> None:
    shared = Shared()
    kinds = TrainerKinds(shared)
    kinds.learned(spec(), KEEPS)
    shared.down = True
    with pytest.raises(StoreError):
        await kinds.share()
    shared.down = False
    await kinds.share()
    assert list(shared.known.values()) == [KEEPS]
    shared.known.clear()
    await kinds.share()
    assert shared.known == {}


def test_after_turns_that_agree_most_are_not_counted() -> None:
    agreement, uncounted = Agreement(), []
    for turn in range(10_000):
        if agreement.spares_count():
            uncounted.append(turn)
        else:
            agreement.agreed()
    counted = sorted(set(range(10_000)) - set(uncounted))
    gaps = [later - earlier - 1 for earlier, later in pairwise(counted)]
    assert gaps[: ENOUGH_AGREED - 1] == [0] * (ENOUGH_AGREED - 1)
    assert gaps[ENOUGH_AGREED - 1 :] == [32, 64, 128, 256, 512, *[MOST_UNCOUNTED] * (len(gaps) - ENOUGH_AGREED - 4)]


def test_one_turn_that_differs_ends_that_at_once() -> None:
    agreement = Agreement()
    for _ in range(ENOUGH_AGREED - 1):
        agreement.agreed()
    agreement.differed()
    for _ in range(ENOUGH_AGREED):
        assert not agreement.spares_count()
        agreement.agreed()
    assert agreement.spares_count()
    agreement.differed()
    assert not agreement.spares_count()


def test_turns_that_were_planned_together_are_one_reason() -> None:
    agreement = Agreement()
    for _ in range(256):
        agreement.agreed()
    assert [agreement.spares_count() for _ in range(ENOUGH_AGREED + 1)] == [*[True] * ENOUGH_AGREED, False]


def test_an_agreement_is_about_one_trainer() -> None:
    kinds = TrainerKinds(Shared())
    assert kinds.agreement(spec()) is kinds.agreement(spec())
    assert kinds.agreement(spec()) is not kinds.agreement(spec("there"))
