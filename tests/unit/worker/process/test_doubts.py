"""A doubt of one worker holds in all of them, also in those that start later; rollouts in flight are warned.

Where a proof is right no doubt is possible, so what a short cut puts together is replaced by something else.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from tests.support.batches import beat
from tests.support.conversations import InsideConversation, spec_of
from tests.support.fake_store import fake_store
from tests.support.inside_worker import inside_worker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.tiny_tokenizers import write_tokenizer
from tests.support.trainer_script import say
from tests.support.waiting import until_true

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.rendering import Delta, TokenizerCache, TurnParser
from rolloutpool_common.rendering.delta import DeltaRule
from rolloutpool_common.rendering.proof.claims import Joint
from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.workers import Beat
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.capabilities.engines.tokens import EngineTokens
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.process.doubts import SharedDoubts
from rolloutpool_worker.process.worker import WorkerProcess
from rolloutpool_worker.settings import WorkerSettings

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HISTORY = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is 38."}]
MORE = [{"role": "user", "content": "And now?"}]
AGENT = "tests.three_turns"


class Renderings:
    """How often the rule is asked, and whether short cuts give something else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_rule = 0
        self.wrong = False
        find, joined = DeltaRule.find, Joint.join

        def counted(rule: DeltaRule, *arguments: Any, **options: Any) -> Any:
            self.by_rule += 1
            return find(rule, *arguments, **options)

        def replaced(joint: Joint, *arguments: Any) -> tuple[str, str] | None:
            found = joined(joint, *arguments)
            return (found[0].replace("user", "tool"), found[1]) if self.wrong and found else found

        monkeypatch.setattr(DeltaRule, "find", counted)
        monkeypatch.setattr(Joint, "join", replaced)


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> Renderings:
    return Renderings(monkeypatch)


class OneWorker:
    """What doubts need of a worker."""

    def __init__(self, server: FakeServer, tokenizer: Path, name: str) -> None:
        self.store = fake_store(server)
        self.cache = TokenizerCache(1)
        self.shared = SharedDoubts(self.cache.doubts, self.store.doubts, name)
        self._tokenizer = str(tokenizer)

    async def beat(self, epoch: int = 1) -> None:
        """Does what follows a beat."""
        answer = await beat(self.store, "w", running=0, tokenizers={})
        await self.shared.share(epoch, answer.doubts)

    def deltas(self, n: int) -> list[Delta]:
        """Makes some deltas of one shape."""
        tokenizer = self.cache.load(self._tokenizer)
        return [tokenizer.render_delta(MORE, sampled=tokenizer.closing, history=HISTORY) for _ in range(n)]


def find_doubt(worker: OneWorker, renderings: Renderings) -> None:
    """Has a worker find that a short cut is wrong: by its eighth use, which is compared."""
    worker.deltas(8)
    renderings.wrong = True
    worker.deltas(1)
    renderings.wrong = False


@pytest.fixture
def chatml(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, CHATML)
    return tmp_path


@pytest.fixture
async def started(chatml: Path) -> AsyncIterator[Callable[[str], OneWorker]]:
    """Starts workers on one Redis."""
    server, workers = FakeServer(), list[OneWorker]()

    def start(name: str) -> OneWorker:
        workers.append(OneWorker(server, chatml, name))
        return workers[-1]

    yield start
    for worker in workers:
        await worker.store.close()


async def test_a_doubt_holds_in_all_workers_and_outlasts_them(
    started: Callable[[str], OneWorker], renderings: Renderings
) -> None:
    one, two, three = started("w1"), started("w2"), started("w3")
    # The third one has the template, and has made no delta yet; the second one has.
    (right,) = two.deltas(1)
    three.cache.load(one._tokenizer)
    find_doubt(one, renderings)
    for worker in (one, two, three):
        await worker.beat()
    later = started("w4")
    await later.shared.exchange()
    # In each of them the short cut would give the same as the rule, so only what it has heard can keep it from it.
    for worker in (one, two, three, later):
        renderings.by_rule = 0
        assert worker.deltas(40) == [right] * 40
        assert renderings.by_rule == 40
        assert worker.cache.load(one._tokenizer).deltas_read_history


async def test_since_when_is_the_earliest_time_of_all_that_have_used_it(
    started: Callable[[str], OneWorker], renderings: Renderings
) -> None:
    two, one = started("w2"), started("w1")
    two.deltas(2)
    find_doubt(one, renderings)
    await one.beat()
    (alone,) = await one.store.doubts.listed()
    await two.beat()
    (doubt,) = await one.store.doubts.listed()
    assert (doubt.worker_id, doubt.found_ms) == ("w1", alone.found_ms)
    assert doubt.since_ms < alone.since_ms


async def test_what_redis_forgot_is_told_again_and_a_beat_without_news_asks_nothing(
    started: Callable[[str], OneWorker], renderings: Renderings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = started("w1")
    find_doubt(one, renderings)
    await one.beat()
    await FakeAsyncRedis(server=one.store.connection._server).delete(keys.DOUBTS)  # type: ignore[attr-defined]
    await one.beat(epoch=2)
    await one.beat(epoch=2)
    assert len(await one.store.doubts.listed()) == 1

    async def exchange() -> None:
        raise AssertionError("there was nothing to tell")

    monkeypatch.setattr(one.shared, "exchange", exchange)
    await one.beat(epoch=2)


@AGENTS.named(AGENT)
async def three_turns(conversation: Conversation) -> FinishReason:
    """Before this turn of the task's choice, the worker hears of a doubt in all that it has used."""
    for turn in range(3):
        if turn == conversation.spec.metadata["doubted_before"]:
            doubts = conversation.tokens._tokenizer.doubts
            doubts.hear(list(doubts._shapes))
        await conversation.sample()
        await conversation.append_messages(MORE)
    return FinishReason.STOP


@pytest.mark.parametrize(
    ("before", "warnings"),
    [
        (1, ["delta_doubted"]),
        # The second delta was compared, and vouches for the first one.
        (2, []),
        (3, []),
    ],
)
async def test_a_rollout_in_flight_is_warned(fake_redis: str, chatml: Path, before: int, warnings: list[str]) -> None:
    tokenizers = TokenizerCache(1)
    tokenizer = tokenizers.load(str(chatml))
    script = [say(f"It is {n}.") for n in range(6)]
    async with (
        inside_worker(fake_redis, tokenizers, infra_retries=0) as worker,
        scripted_trainer(tokenizer, *script) as trainer,
    ):
        rollout = {"agent": AGENT, "messages": MORE, "tokenizer_name": str(chatml), "server_url": trainer.url}
        # Its deltas are all made or compared by the rule; the next rollout begins with the third use.
        first = await worker.run_one(**rollout, metadata={"doubted_before": 3})
        result = await worker.run_one(**rollout, metadata={"doubted_before": before})
    assert result.status is RolloutStatus.COMPLETED, result.failure
    assert (first.warnings, result.warnings) == ([], warnings)


async def test_a_rollout_that_goes_on_elsewhere_is_warned_of_any_doubt_of_its_template(chatml: Path) -> None:
    tokenizer = TokenizerCache(1).load(str(chatml))
    whole = InsideConversation(tokenizer)
    whole.answer("It is 38.")
    await whole.conversation.sample()
    # Which short cuts an earlier attempt has used, no record says.
    again = InsideConversation(tokenizer, whole.store)
    await again.conversation.sample()
    engine = EngineTokens(spec_of(), tokenizer, [], TurnParser.of(tokenizer, []))
    engine.resume(TrainerKind.UNKNOWN, [])
    tokenizer.doubts.hear(["0" * 16 + ".another"])
    assert (whole.tokens.warnings, again.tokens.warnings, engine.warnings) == ((), (), ())
    tokenizer.doubts.hear([tokenizer.fingerprint.template_sha256[:16] + ".any"])
    doubted = ("delta_doubted",)
    assert (whole.tokens.warnings, again.tokens.warnings, engine.warnings) == ((), doubted, doubted)


async def test_a_worker_reads_doubts_before_it_takes_work_and_with_its_beats(fake_redis: str, store: Store) -> None:
    await store.doubts.add("w0", {"t.1": 1.0})
    worker = WorkerProcess(WorkerSettings(redis_url=fake_redis))
    doubts = worker.services.tokenizers.doubts
    await worker.prepare()
    assert "t.1" in doubts
    await worker.start()
    await store.doubts.add("w0", {"t.2": 1.0})
    worker.pulse.turn(Beat(running=0, tokenizers={}))
    told = worker.pulse.beat()
    assert told is not None
    worker.pulse.hear(await store.connection.script("beat", *told))
    await until_true(lambda: "t.2" in doubts)
    await worker.stop()
