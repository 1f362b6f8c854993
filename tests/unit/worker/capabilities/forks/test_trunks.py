"""Forks share their parent's tokens id by id, and sample the rest themselves."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.support import games
from tests.support.engine_channels import BOTH
from tests.support.forks import context_before, fork, planned, submitted
from tests.support.games import RIGHT, SEED, WRONG, guess
from tests.support.inside_worker import InsideWorker, inside_worker, sampled_with_mask_1
from tests.support.kept_journals import OF_RELEASE_0_2, kept_again
from tests.support.replays import reproduced
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.secrets import SECRETS
from tests.support.trainer_script import ADD, ADD_COMPACT, Step, call, say, status

from rolloutpool_api.errors import Conflict
from rolloutpool_common.capabilities.forks.origin import ForkOrigin
from rolloutpool_common.errors import RequestFault
from rolloutpool_common.outcomes import Category, FinishReason, RolloutStatus
from rolloutpool_common.protocol.journal import ObservationRecord
from rolloutpool_common.protocol.kept_journal import read_journal
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import Alignment, RolloutResult, encode_result
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.tokens.arrays import id_bytes, pack_bytes, unpack
from rolloutpool_worker.capabilities.forks.trunks import read_trunk
from rolloutpool_worker.rollout import outcome

QUESTION = [{"role": "system", "content": "You calculate."}, {"role": "user", "content": "Calculate 15 + 23"}]
AGAIN = "Again. " + ADD_COMPACT


@pytest.fixture
async def worker(fake_redis: str, tokenizers: TokenizerCache) -> AsyncIterator[InsideWorker]:
    async with inside_worker(fake_redis, tokenizers, infra_retries=0, trainer_attempts=1) as made:
        yield made


async def run_parent(inside: InsideWorker, tokenizer: ChatTokenizer, *lines: str, **options: Any) -> RolloutResult:
    async with scripted_trainer(tokenizer, *map(say, lines or (ADD_COMPACT, AGAIN, "38."))) as trainer:
        result = await inside.run_one(server_url=trainer.url, messages=QUESTION, **options)
    assert result.status is RolloutStatus.COMPLETED, result.failure
    return result


def check(child: RolloutResult, parent: RolloutResult, turn: int, trainer: ScriptedTrainer | None = None) -> None:
    """The fork has completed, with the parent's ids before the turn; only its own turns are trained."""
    assert child.status is RolloutStatus.COMPLETED, child.failure
    assert child.forked_from is not None
    assert (child.forked_from.uid, child.forked_from.turn) == (parent.uid, turn)
    if turn <= len(parent.turns):
        assert context_before(child.samples, turn) == context_before(parent.samples, turn)
    own = [s.turn for sample in child.samples for s in sample.segments if s.kind == "sampled" and s.turn >= turn]
    sampled = sum(child.turns[number - 1].sampled_tokens for number in set(own))
    assert sum(sum(sample.response_mask) for sample in child.samples) == sampled
    if trainer is not None:
        said = [token for logged in trainer.app.sampling_log.of(child.rollout_id) for token in logged.token_ids]
        assert sampled_with_mask_1(child.samples) == said


def trunk_logprobs(child: RolloutResult, turn: int) -> set[float]:
    """Log-probabilities that a fork has journaled of its parent's turns."""
    records = [record for record in read_journal(child).records if record.kind == "turn" and record.summary.turn < turn]
    assert len(records) == turn - 1
    sampled = [entry for record in records for entry in record.entries if entry.op == "sampled"]
    return {value for entry in sampled for value in unpack(entry.logprobs, array("d"))}


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_a_strict_trainer_samples_after_the_very_ids(
    worker: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, turn: int
) -> None:
    # Sampled without spaces: a trainer that rendered the messages would have other ids.
    parent = await run_parent(worker, tokenizer)
    async with scripted_trainer(tokenizer, say(ADD), say("It is 38.")) as trainer:
        first, second = await fork(worker, parent, turn, n=2, server_url=trainer.url)
        for child in (first, second):
            check(child, parent, turn, trainer)
            assert child.alignment is Alignment.EXACT
            assert child.group == f"{parent.uid}/{turn}"
            assert len(child.turns) == turn + 1
            assert trunk_logprobs(child, turn) == ({0.0} if turn > 1 else set())
            assert "zero_logprobs" not in child.warnings
            await reproduced(child, tokenizers)
        asked = trainer.of(first.uid)
        assert [exchange.turn for exchange in asked] == [turn, turn + 1]
        assert asked[0].header("x-forked-from") == f"{parent.uid}/{turn}"
        assert asked[0].document["prompt_token_ids"] == context_before(parent.samples, turn)
        assert asked[0].document["response_mask"] is None
        assert "prompt_token_ids" not in asked[1].document
        session = trainer.app.get_session(first.rollout_id, first.uid)
        assert (session.turns, session.mismatches) == (turn + 1, 0)
        assert session.samples[-1].response_ids == whole_after(first, turn)


def whole_after(child: RolloutResult, turn: int) -> list[int]:
    """The ids of a fork's last sample from its first own one on."""
    sample = child.samples[-1]
    start = next(s.start for s in sample.segments if s.kind == "sampled" and s.turn >= turn)
    return sample.response_ids[start:]


async def test_a_trainer_that_renders_again_is_followed_by_its_echo(
    worker: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    async with scripted_trainer(tokenizer, say(ADD_COMPACT), say(AGAIN), say(), keeps_ids=False) as trainer:
        parent = await worker.run_one(server_url=trainer.url, messages=QUESTION)
        assert parent.alignment is Alignment.FORKED
        for turn in (1, 2, 3):
            (child,) = await fork(worker, parent, turn, server_url=trainer.url)
            check(child, parent, turn)
            await reproduced(child, tokenizers)


async def test_a_trainer_that_refuses_the_key_renders_the_messages(
    worker: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    parent = await run_parent(worker, tokenizer, ADD, "38.")
    async with scripted_trainer(tokenizer, status(400), say("39."), hides=("x-keeps-token-ids",)) as trainer:
        (child,) = await fork(worker, parent, 2, server_url=trainer.url)
        assert [exchange.key for exchange in trainer.of(child.uid)] == ["2", "2/2"]
        assert "prompt_token_ids" not in trainer.of(child.uid)[1].document
    check(child, parent, 2)


async def test_the_trunk_can_be_trained_too(
    worker: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    parent = await run_parent(worker, tokenizer)
    async with scripted_trainer(tokenizer, say("It is 39.")) as trainer:
        (child,) = await fork(worker, parent, 3, server_url=trainer.url, train_trunk=True)
        (untrained,) = await fork(worker, child, 2, server_url=trainer.url)
        # What has no log-probabilities is not trained, whatever is asked.
        (grandchild,) = await fork(worker, untrained, 2, server_url=trainer.url, train_trunk=True)
    trained = [sum(turn.sampled_tokens for turn in result.turns) for result in (child, grandchild)]
    masks = [sum(sum(sample.response_mask) for sample in result.samples) for result in (child, grandchild)]
    assert masks == [trained[0], grandchild.turns[1].sampled_tokens]
    trunk = slice(trained[0] - child.turns[2].sampled_tokens)
    assert sampled_with_mask_1(child.samples)[trunk] == sampled_with_mask_1(parent.samples)[trunk]
    assert 0.0 not in trunk_logprobs(child, 3)
    assert trunk_logprobs(grandchild, 2) == {0.0}
    for result in (child, untrained, grandchild):
        assert result.status is RolloutStatus.COMPLETED, result.failure
        await reproduced(result, tokenizers)


async def test_forks_of_forks(worker: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache) -> None:
    for keeps in (True, False):
        async with scripted_trainer(tokenizer, *map(say, (ADD_COMPACT, AGAIN, ADD, "38.")), keeps_ids=keeps) as trainer:
            parent = await worker.run_one(server_url=trainer.url, messages=QUESTION)
            for turn in (2, 3, 4):
                (child,) = await fork(worker, parent, turn, server_url=trainer.url)
                check(child, parent, turn)
                assert [one.mask_sent is None for one in child.turns] == [True] * turn + [False] * 3
                await reproduced(child, tokenizers)
                parent = child


async def test_past_the_last_turn_where_a_limit_has_ended_it(worker: InsideWorker, tokenizer: ChatTokenizer) -> None:
    parent = await run_parent(worker, tokenizer, ADD_COMPACT, AGAIN, max_turns=2)
    assert parent.finish_reason is FinishReason.MAX_TURNS
    async with scripted_trainer(tokenizer, say("It is 38.")) as trainer:
        (child,) = await fork(worker, parent, 3, server_url=trainer.url, max_turns=5)
        check(child, parent, 3, trainer)
    assert [turn.sampled_tokens for turn in child.turns[:2]] == [turn.sampled_tokens for turn in parent.turns]
    # Its tools were not run when the budget was used up, so they run now.
    spent = await run_parent(worker, tokenizer, ADD_COMPACT, max_tokens_total=1)
    assert spent.finish_reason is FinishReason.MAX_TOKENS
    async with scripted_trainer(tokenizer, say("It is 38.")) as trainer:
        (child,) = await fork(worker, spent, 2, server_url=trainer.url, max_tokens_total=1000)
        check(child, spent, 2, trainer)
    assert [message.content for message in child.messages if message.role == "tool"] == ["38"]


@pytest.mark.parametrize(
    ("script", "turn", "ended"),
    [
        ([say("It is", finish="length")], 2, FinishReason.LENGTH),
        ([say(AGAIN), status(500)], 3, FinishReason.ERROR),
    ],
    ids=["cut by length", "failed"],
)
async def test_the_turn_that_ended_the_parent_is_sampled_again(
    worker: InsideWorker, tokenizer: ChatTokenizer, script: list[Step], turn: int, ended: FinishReason
) -> None:
    async with scripted_trainer(tokenizer, say(ADD_COMPACT), *script) as trainer:
        parent = await worker.run_one(server_url=trainer.url, messages=QUESTION)
    assert parent.finish_reason is ended
    async with scripted_trainer(tokenizer, say("It is 38.")) as trainer:
        (child,) = await fork(worker, parent, turn, server_url=trainer.url)
        check(child, parent, turn, trainer)
    assert child.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("on_limit", ["truncate", "summarise"])
async def test_after_an_edit(
    worker: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, on_limit: str
) -> None:
    context = {"limit_tokens": 95, "on_limit": on_limit}
    parent = await run_parent(worker, tokenizer, ADD, AGAIN, "And again. " + ADD_COMPACT, "38.", context=context)
    assert any(record.kind == "edit" for record in read_journal(parent).records)
    for turn in range(1, len(parent.turns) + 1):
        async with scripted_trainer(tokenizer, say("It is 38.")) as trainer:
            (child,) = await fork(worker, parent, turn, server_url=trainer.url)
            check(child, parent, turn, trainer)
            await reproduced(child, tokenizers)


async def test_a_worker_that_dies_in_the_trunk_or_after_it(worker: InsideWorker, tokenizer: ChatTokenizer) -> None:
    parent = await run_parent(worker, tokenizer)
    async with scripted_trainer(tokenizer, say(ADD), say("It is 38.")) as trainer:
        (uid,) = await submitted(worker, parent, 3, server_url=trainer.url)
        child = await worker.take_in_pieces(uid)
        check(child, parent, 3, trainer)
        assert child.attempt == 7
        # No turn was asked twice.
        assert [exchange.turn for exchange in trainer.of(uid)] == [3, 4]


@BOTH
async def test_over_an_engine(
    worker: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, protocol: str, server: Any
) -> None:
    async with server(tokenizer, ADD_COMPACT, ADD, "38.") as engine:
        engine.version = "12"
        engine.abort_after(4)
        parent = await worker.run_one(server_url=engine.url, protocol=protocol, messages=QUESTION)
    for turn in (1, 2, 3):
        async with server(tokenizer, ADD_COMPACT, ADD, "It is 39.") as engine:
            engine.version = "15"
            (child,) = await fork(worker, parent, turn, server_url=engine.url, seed=7)
            check(child, parent, turn)
            assert child.alignment is Alignment.EXACT
            # Older weights have computed what was cached under the parent's salt.
            assert set(engine.salts) == {"15"}
            assert len(engine.asked) == len(child.turns) - turn + 1
            await reproduced(child, tokenizers)


@BOTH
async def test_an_engine_s_fork_is_refused_where_its_prompt_is_another(
    worker: InsideWorker, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, ADD_COMPACT, "38.") as engine:
        parent = await worker.run_one(server_url=engine.url, protocol=protocol, messages=QUESTION)
        # As if a worker with another template had rendered it.
        first, *others = read_journal(parent).records
        seed, *later = first.entries
        ids = unpack(seed.ids, array("I"))
        ids[0] ^= 1
        first = replace(first, entries=(replace(seed, ids=pack_bytes(id_bytes(ids))), *later))
        for turn in (1, 2):
            other = kept_again(parent, parent, [first, *others])
            (child,) = await fork(worker, other, turn, server_url=engine.url)
            assert child.failure is not None
            assert (child.failure.category, child.failure.kind) == (Category.VALIDATION_ERROR, "request")
            assert "sampled after" in child.failure.message


@pytest.mark.parametrize("name", ["game_stateless", "game_restartable", "game_snapshot", "text_game"])
async def test_in_an_environment_whichever_record_was_the_last_of_a_worker(
    worker: InsideWorker, fake_redis: str, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, name: str
) -> None:
    async with scripted_trainer(tokenizer, *(guess(name, n) for n in (WRONG, WRONG, RIGHT))) as trainer:
        parent = await worker.run_one(
            server_url=trainer.url, messages=QUESTION, environment={"name": name, "seed": SEED}
        )
    assert parent.finish_reason is FinishReason.ENVIRONMENT
    for turn in (1, 2, 3):
        async with scripted_trainer(tokenizer, guess(name, RIGHT)) as trainer:
            for records, uid in enumerate(await submitted(worker, parent, turn, n=8, server_url=trainer.url), 1):
                async with inside_worker(fake_redis, tokenizers) as first:
                    first.stop_after(records)
                    await first.take(uid)
                await worker.take(uid)
                child = await worker.result(uid)
                check(child, parent, turn, trainer)
                assert child.environment is not None
                assert child.environment.reward == 1.0
                assert child.environment.step_rewards == [-0.5] * (turn - 1) + [1.0]
                assert child.environment.step_turns == [*range(1, turn + 1)]
                # A session that has seen the parent's guesses counts them.
                seen = 1 if name == "game_stateless" else turn
                assert child.messages[-1].content == f"right at guess {seen}"
                await reproduced(child, tokenizers)


async def test_an_environment_that_answers_otherwise_than_to_the_parent(
    worker: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    lines = [say(calls=[call("guess", {"number": n})]) for n in (WRONG, RIGHT)]
    async with scripted_trainer(tokenizer, *lines) as trainer:
        parent = await worker.run_one(
            server_url=trainer.url, messages=QUESTION, environment={"name": "game_restartable", "seed": SEED}
        )
        records = read_journal(parent).records
        place, seen = next((n, one) for n, one in enumerate(records) if isinstance(one, ObservationRecord))
        assert seen.environment is not None
        (step,) = seen.environment.steps
        records[place] = replace(seen, environment=replace(seen.environment, steps=(replace(step, reward=0.75),)))
        (child,) = await fork(worker, kept_again(parent, parent, records), 2, server_url=trainer.url)
    assert child.failure is not None
    assert child.failure.category is Category.ENVIRONMENT_DIVERGED


async def test_the_session_gets_the_parent_s_own_records(worker: InsideWorker, tokenizer: ChatTokenizer) -> None:
    assert games.INVITATION
    lines = [say(calls=[call("guess", {"number": n})]) for n in (WRONG, WRONG, RIGHT)]
    async with scripted_trainer(tokenizer, *lines) as trainer:
        parent = await worker.run_one(
            server_url=trainer.url, messages=QUESTION, environment={"name": "game_snapshot", "seed": SEED}
        )
    records = read_journal(parent).records
    assert [record.kind for record in records] == ["environment", *["turn", "observation"] * 3]
    for turn in (1, 2, 3):
        trunk = read_trunk(encode_result(parent), ForkOrigin(uid=parent.uid, turn=turn))
        assert trunk.session_records(()) == records[: 2 * turn - 1]
        # Once its own journal has the parent's turns, that says where the session is.
        assert trunk.session_records(records) is records


async def test_tools_that_are_too_long_for_the_record_are_known_by_their_digest(
    worker: InsideWorker, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert games.INVITATION
    monkeypatch.setattr(outcome, "MOST_TOOLS_BYTES", 2)
    lines = [say(calls=[call("guess", {"number": n})]) for n in (WRONG, RIGHT)]
    async with scripted_trainer(tokenizer, *lines) as trainer:
        parent = await worker.run_one(
            server_url=trainer.url, messages=QUESTION, environment={"name": "game_restartable", "seed": SEED}
        )
        assert parent.replay is not None
        assert parent.replay.tools == []
    async with scripted_trainer(tokenizer, lines[1]) as trainer:
        (child,) = await fork(worker, parent, 2, server_url=trainer.url)
        check(child, parent, 2, trainer)


async def test_a_parent_that_was_changed_or_is_of_release_0_2(worker: InsideWorker, tokenizer: ChatTokenizer) -> None:
    parent = await run_parent(worker, tokenizer)
    older = parent.model_copy(update={"replay": ReplayRecord.model_validate(OF_RELEASE_0_2)})
    changed = parent.model_copy(deep=True)
    changed.samples[0].response_ids[0] ^= 1
    for result, why in (
        (older, "release 0.2"),
        (changed, "changed since"),
        (parent.model_copy(update={"replay": None}), "no record"),
    ):
        with pytest.raises(Conflict, match=why):
            planned(result, 2, server_url="http://127.0.0.1:8081")
        # A batch of before the upgrade may have it.
        with pytest.raises(RequestFault, match=why):
            read_trunk(encode_result(result), ForkOrigin(uid=parent.uid, turn=2))


async def test_a_fork_has_a_key_of_its_own(worker: InsideWorker, tokenizer: ChatTokenizer) -> None:
    parent = await run_parent(worker, tokenizer, ADD, "38.", callback_api_key=SECRETS.encrypt("the parent's"))
    async with scripted_trainer(tokenizer, say("39.")) as trainer:
        (without,) = await fork(worker, parent, 2, server_url=trainer.url)
        (with_key,) = await fork(worker, parent, 2, server_url=trainer.url, callback_api_key="its own")
        keys = [trainer.of(child.uid)[0].header("authorization") for child in (without, with_key)]
    assert keys == [None, "Bearer its own"]


async def test_a_fork_outlives_its_parent_and_says_when_its_record_is_gone(
    worker: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    parent = await run_parent(worker, tokenizer, ADD, "38.")
    async with scripted_trainer(tokenizer, say("39.")) as trainer:
        kept, lost = [(await submitted(worker, parent, 2, server_url=trainer.url))[0] for _ in range(2)]
        await worker.services.store.batches.delete(parent.batch_id)
        await worker.take(kept)
        redis = worker.services.store.batches._redis
        await redis.delete(f"rp:batch:{lost.rpartition('-')[0]}:trunk")
        await worker.take(lost)
    assert (await worker.result(kept)).status is RolloutStatus.COMPLETED
    failure = (await worker.result(lost)).failure
    assert failure is not None
    assert "not kept" in failure.message
    # What the batch kept goes with it.
    await worker.services.store.batches.delete(kept.rpartition("-")[0])
    assert await redis.keys("*:trunk") == []


async def test_many_forks_of_one_parent_at_once(worker: InsideWorker, tokenizer: ChatTokenizer) -> None:
    parent = await run_parent(worker, tokenizer)
    async with scripted_trainer(tokenizer, say("It is 38.")) as trainer:
        uids = await submitted(worker, parent, 3, n=50, seed=1, server_url=trainer.url)
        await asyncio.gather(*map(worker.take, uids))
        children = [await worker.result(uid) for uid in uids]
        asked = [trainer.of(uid)[0].document["seed"] for uid in uids]
    for child in children:
        check(child, parent, 3)
    assert asked == list(range(1, 51))
