"""`TrainerKinds`: what one rollout learns of its trainer, another one begins with, in this process and elsewhere."""

import pytest

from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.store import StoreError
from rolloutpool_common.store.trainers import KnownTrainers
from rolloutpool_worker.conversation import trainer_kinds
from rolloutpool_worker.conversation.trainer_kinds import TrainerKinds

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
    return RolloutSpec(
        rollout_id="r",
        server_url=f"http://{host}",
        messages=[],
        sampling_params={},
        tokenizer_name=tokenizer,
        template_kwargs=more,
    )


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


async def test_another_process_begins_with_it() -> None:
    shared = Shared()
    here, there = TrainerKinds(shared), TrainerKinds(shared)
    here.learned(spec(), KEEPS)
    assert shared.known == {}
    await here.share()
    assert await there.of(spec()) is KEEPS


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
