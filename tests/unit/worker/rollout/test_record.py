"""The record in a result: the very journal, small, without secrets, and left out where nobody wants it."""

import json
import random
import secrets
from array import array
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from tests.support.inside_worker import REPLAY, InsideWorker
from tests.support.journals import observation_record, turn_record
from tests.support.replays import replayed
from tests.support.scripted_trainer import scripted_trainer
from tests.support.secrets import SECRETS
from tests.support.trainer_script import ADD, ADD_COMPACT, say, status

from rolloutpool_common.outcomes import FinishReason
from rolloutpool_common.protocol.environments import EnvironmentFacts
from rolloutpool_common.protocol.journal import JournalRecord, ObservationRecord
from rolloutpool_common.protocol.kept_journal import keep_journal, read_journal
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store.records import compress
from rolloutpool_common.tokens.arrays import unpack
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.rollout import outcome
from rolloutpool_worker.rollout.outcome import KEPT_OPTIONS, MOST_SNAPSHOTS, without_old_snapshots

KEY = "a very secret key"
OPTIONS = {"max_turns": 64, "max_tokens_total": 100_000, "sampling_params": {"temperature": 0.7, "top_k": 5}}
QUESTION = [{"role": "system", "content": "You calculate."}, {"role": "user", "content": "Calculate 15 + 23"}]
CONTEXT = {"context": {"limit_tokens": 95, "on_limit": "truncate"}}
STEPS = [{"sample": {"train": False}}, {"say": [{"role": "user", "content": "Añd?\u2028"}]}, {"sample": {}}]

Written = list[tuple[list[JournalRecord], list[dict[str, Any]]]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    """The journals that workers have kept, with the submitted messages."""
    found: Written = []

    def keep(records: Sequence[JournalRecord], submitted: list[dict[str, Any]], result: RolloutResult) -> str:
        found.append((list(records), submitted))
        return keep_journal(records, submitted, result)

    monkeypatch.setattr(outcome, "keep_journal", keep)
    return found


def check(result: RolloutResult, written: Written) -> None:
    """The result gives back the journal, as it is and as another JSON library writes it."""
    records, submitted = written[-1]
    assert records
    text = encode_result(result)
    for document in (text, json.dumps(json.loads(text), indent=1).encode()):
        kept = read_journal(RolloutResult.model_validate_json(document))
        assert kept.records == records
        assert kept.submitted == submitted


@pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
@pytest.mark.parametrize("options", [{}, CONTEXT, {"v1": True}, {"max_turns": 2}], ids=str)
async def test_a_callback_s_journal_is_kept(
    inside: InsideWorker, tokenizer: ChatTokenizer, written: Written, keeps_ids: bool, options: dict[str, Any]
) -> None:
    lines = (say(ADD_COMPACT), say("Again.\n" + ADD_COMPACT), say("15 + 23 is 38."), say("It is 38."))
    async with scripted_trainer(tokenizer, *lines, keeps_ids=keeps_ids) as trainer:
        check(await inside.run_one(server_url=trainer.url, messages=QUESTION, **options), written)


async def test_also_of_a_failed_rollout_and_of_untrained_turns(
    inside: InsideWorker, tokenizer: ChatTokenizer, written: Written
) -> None:
    async with scripted_trainer(tokenizer, say(ADD), status(500)) as trainer:
        check(await inside.run_one(server_url=trainer.url, messages=QUESTION), written)
    async with scripted_trainer(tokenizer, say("Well."), say(finish="length", stop=False)) as trainer:
        result = await inside.run_one(
            server_url=trainer.url, messages=QUESTION, agent=REPLAY, metadata={"steps": STEPS}
        )
        check(result, written)
    # The result has zeros for an untrained turn; what its trainer said is in the journal.
    seed, sampled = written[-1][0][0].entries
    assert seed.op == "seed"
    assert sampled.op == "sampled"
    assert unpack(sampled.logprobs, array("d"))[0] < 0 == result.samples[0].response_logprobs[0]


@AGENTS.named("tests.two_lines")
async def two_lines(conversation: Conversation) -> FinishReason:
    """Talks in two branches, a turn each."""
    other = conversation.open_branch([{"role": "user", "content": "And 7 * 6?"}])
    await conversation.sample()
    await other.sample()
    return FinishReason.STOP


async def test_the_journals_of_several_branches_are_kept_and_not_replayed(
    inside: InsideWorker, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, written: Written
) -> None:
    async with scripted_trainer(tokenizer, say("It is 38.")) as trainer:
        result = await inside.run_one(server_url=trainer.url, messages=QUESTION, agent="tests.two_lines")
    check(result, written)
    assert [record.branch for record in written[-1][0]] == [0, 1]
    assert "several branches" in ((await replayed(result, tokenizers)).lacks or "")


async def rollout(
    inside: InsideWorker, tokenizer: ChatTokenizer, turns: int, *, keeps_ids: bool = True, **options: object
) -> RolloutResult:
    # No two turns say the same, as no policy's do; their log-probabilities are alike all the same.
    pick = random.Random(turns)
    lines = [*(say(f"{pick.getrandbits(96):x}\n{ADD_COMPACT}") for _ in range(1, turns)), say()]
    async with scripted_trainer(tokenizer, *lines, keeps_ids=keeps_ids) as trainer:
        return await inside.run_one(server_url=trainer.url, **OPTIONS, **options)


def of_release_0_2(result: RolloutResult) -> bytes:
    """The result as that release would have written it: digests in the place of the journal."""
    assert result.replay is not None
    digests = {
        "turns": [secrets.token_hex(8) for _ in result.turns],
        "samples": [secrets.token_hex(16) for _ in result.samples],
    }
    older = ReplayRecord.model_validate({**result.replay.model_dump(exclude={"journal"}), **digests})
    return encode_result(result.model_copy(update={"replay": older}))


@pytest.mark.parametrize("turns", [3, 32])
@pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
async def test_it_takes_little(inside: InsideWorker, tokenizer: ChatTokenizer, turns: int, keeps_ids: bool) -> None:
    result = await rollout(inside, tokenizer, turns, keeps_ids=keeps_ids)
    assert len(result.turns) == turns
    new, old = encode_result(result), of_release_0_2(result)
    # As it is delivered, and as it is stored.
    ratios = len(new) / len(old), len(compress(new)) / len(compress(old))
    assert ratios[0] < 1.1, ratios
    assert ratios[1] < 1.3, ratios
    assert orjson.loads(new)["replay"].keys() == {"options", "given", "tools_digest", "journal"}


async def test_neither_key_nor_endpoint_is_in_it(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    sealed = SECRETS.encrypt(KEY)
    result = await rollout(inside, tokenizer, 2, callback_api_key=sealed)
    kept = read_journal(result)
    text = encode_result(result).decode() + repr(kept)
    assert not any(part in text for part in (KEY, sealed, "callback_api_key", "127.0.0.1"))
    assert not KEPT_OPTIONS & {"callback_api_key", "server_url"}


def test_only_the_last_snapshots_are_kept() -> None:
    def snapshot(n: int, length: int) -> ObservationRecord:
        made = observation_record(n)
        made.environment = EnvironmentFacts((), "x" * length)
        return made

    third = MOST_SNAPSHOTS // 3
    records: list[JournalRecord] = [snapshot(0, third), turn_record(1), *(snapshot(n, third) for n in (1, 2, 3))]
    kept = without_old_snapshots(records)
    assert kept[1:] == records[1:]
    assert isinstance(kept[0], ObservationRecord)
    assert kept[0].environment == EnvironmentFacts(())
    # The journal itself is as it was.
    assert records[0] == snapshot(0, third)
    assert without_old_snapshots([snapshot(0, 1), snapshot(1, MOST_SNAPSHOTS + 1), snapshot(2, 1)])[:2] == [
        *(without_old_snapshots([snapshot(n, MOST_SNAPSHOTS + 1)])[0] for n in (0, 1))
    ]
