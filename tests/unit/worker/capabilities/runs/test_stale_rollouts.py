"""What becomes of rollouts whose weights are too old for their batch."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.batches import OWNER, status_of, view_of
from tests.support.inside_worker import InsideWorker
from tests.support.rollouts_of_a_run import ADD, RUN, submit_to_run
from tests.support.sglang_server import sglang_server
from tests.support.vllm_server import vllm_server

from rolloutpool_common.capabilities.runs.metrics import RUNNING_LAG
from rolloutpool_common.capabilities.runs.steering import Runs
from rolloutpool_common.capabilities.runs.wire import OnStale, StaleEnd, StaleVersions
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.rows import ENDED_FIELDS, row_values
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Store
from rolloutpool_common.tokens.entries import SampledEntry
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_common.tokens.versions import version_bounds
from rolloutpool_worker.capabilities.engines.engines import Engines
from rolloutpool_worker.capabilities.engines.opened import OpenEngines
from rolloutpool_worker.capabilities.runs.gate import MOST_RESTARTS, RunGate


def forget_weights(inside: InsideWorker) -> None:
    """Has the worker ask the engine for its weights again."""
    cast(OpenEngines, inside.services.capabilities["engines"]).engines = Engines()


class TestStaleness:
    async def run_over_updates(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, on_stale: OnStale, *announced: int
    ) -> str:
        """Runs three turns; before the reply of each, the next of these versions is announced."""
        versions = list(announced)
        async with vllm_server(tokenizer, ADD, ADD, "It is 8.") as engine:
            engine.version = "10"
            await Runs(store).announce(OWNER, RUN, 10)

            async def announce(asked: Any) -> None:
                if versions:
                    await Runs(store).announce(OWNER, RUN, versions.pop(0))

            engine.before = announce
            (uid,) = await submit_to_run(inside, engine.url, "vllm", max_staleness=2, on_stale=on_stale)
            outcome = await inside.take(uid)
            self.calls = len(engine.asked)
            if outcome == "restarted":
                engine.version = "13"
                forget_weights(inside)
                outcome = await inside.take(uid)
        self.result = await inside.result(uid)
        self.status = await status_of(store, uid)
        return outcome

    @pytest.mark.parametrize(
        ("on_stale", "announced", "outcome", "staleness", "stale", "counted"),
        [
            (OnStale.DROP, (11, 12, 12), "completed", 2, None, {}),
            # Too old at its end.
            (OnStale.DROP, (11, 12, 13), "cancelled", 3, StaleEnd.DROPPED, {"dropped": 1}),
            (OnStale.FINISH, (13,), "completed", 3, StaleEnd.FINISHED, {"finished": 1}),
            # It begins again, with new weights.
            (OnStale.RESTART, (13,), "completed", 0, None, {"restarted": 1}),
        ],
        ids=["fresh", "dropped", "finished", "restarted"],
    )
    async def test_what_becomes_of_a_rollout_over_updates(
        self,
        inside: InsideWorker,
        store: Store,
        tokenizer: ChatTokenizer,
        on_stale: OnStale,
        announced: tuple[int, ...],
        outcome: str,
        staleness: int,
        stale: StaleEnd | None,
        counted: dict[str, int],
    ) -> None:
        assert await self.run_over_updates(inside, store, tokenizer, on_stale, *announced) == outcome
        assert (self.result.staleness, self.result.stale, self.status.stale) == (staleness, stale, counted)
        restarted = on_stale is OnStale.RESTART
        assert [sample.version_min for sample in self.result.samples] == [13 if restarted else 10] * (
            outcome == "completed"
        )
        assert (self.result.num_llm_calls, self.result.attempt) == (3, 1 + restarted)
        assert ("stale_versions" in self.result.model_dump_json()) is (stale is not None)

    async def test_what_becomes_too_old_is_dropped_at_its_next_call(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        assert await self.run_over_updates(inside, store, tokenizer, OnStale.DROP, 11, 13) == "cancelled"
        result = self.result
        assert (result.status, result.finish_reason) == (RolloutStatus.CANCELLED, FinishReason.STALE)
        assert (result.staleness, result.stale, self.calls) == (3, StaleEnd.DROPPED, 2)
        assert result.stale_versions == StaleVersions(sampled=10, run=13, allowed=11)
        row = dict(zip(list(ENDED_FIELDS)[2:], row_values(result), strict=True))
        assert row["message"] == "sampled by version 10; the run is at 13, and version 11 is allowed"
        assert (result.samples, result.messages, result.alignment) == ([], [], None)
        assert [turn.policy_version for turn in result.turns] == ["10", "10"]
        assert self.status.stale == {"dropped": 1}
        assert (await store.totals.read()).totals["stale:dropped"] == 1

    async def test_an_engine_that_keeps_old_weights_ends_the_restarts(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        async with vllm_server(tokenizer, "It is 8.") as engine:
            engine.version, engine.tells_version = "10", False
            await Runs(store).announce(OWNER, RUN, 20)
            (uid,) = await submit_to_run(inside, engine.url, "vllm", max_staleness=2, on_stale=OnStale.RESTART)
            outcomes = [await inside.take(uid) for _ in range(MOST_RESTARTS + 1)]
        assert outcomes == ["restarted"] * MOST_RESTARTS + ["cancelled"]
        assert (await status_of(store, uid)).stale == {"restarted": MOST_RESTARTS, "dropped": 1}

    async def test_what_is_too_old_in_the_queue_is_not_started(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        async with vllm_server(tokenizer, ADD, "It is 8.") as engine:
            engine.version = "10"
            await Runs(store).announce(OWNER, RUN, 10)

            async def drain(asked: Any) -> None:
                inside.services.drain.begin()

            engine.before = drain
            (uid,) = await submit_to_run(inside, engine.url, "vllm", max_staleness=2)
            assert await inside.take(uid) == "drained"
            engine.before = None
            inside.services.drain._begun.clear()
            inside.services.drain.begun = False
            await Runs(store).announce(OWNER, RUN, 13)
            assert await inside.take(uid) == "cancelled"
            assert len(engine.asked) == 1
        assert (await inside.result(uid)).stale is StaleEnd.NOT_STARTED
        assert (await status_of(store, uid)).stale == {"not_started": 1}

    async def test_the_versions_of_engines_count_where_nothing_is_announced(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        async with vllm_server(tokenizer, "It is 8.") as old, vllm_server(tokenizer, "It is 8.") as new:
            old.version, new.version, old.tells_version = "10", "14", False
            (at_new,) = await submit_to_run(inside, new.url, "vllm", max_staleness=2)
            assert await inside.take(at_new) == "completed"
            (at_old,) = await submit_to_run(inside, old.url, "vllm", max_staleness=2)
            assert await inside.take(at_old) == "cancelled"
        assert (await Runs(store).read(OWNER, RUN)).reported_version == 14
        assert (await inside.result(at_old)).staleness == 4

    @pytest.mark.parametrize("server", [vllm_server, sglang_server])
    async def test_nothing_begins_at_an_engine_whose_weights_are_too_old(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, server: Any
    ) -> None:
        async with server(tokenizer, "It is 8.") as engine:
            protocol = "vllm" if server is vllm_server else "sglang"
            engine.version = "10"
            await Runs(store).announce(OWNER, RUN, 13)
            (uid,) = await submit_to_run(inside, engine.url, protocol, max_staleness=2)
            assert await inside.take(uid) == "deferred"
            assert engine.asked == []
            view = await view_of(store, uid)
            assert view.waiting is not None
            assert view.waiting.message == "the engine has version 10; the run is at 13, and version 11 is allowed"
            # It was updated meanwhile.
            engine.version = "13"
            forget_weights(inside)
            assert await inside.take(uid) == "completed"
            engine.version = "10"
            forget_weights(inside)
            (uid,) = await submit_to_run(inside, engine.url, protocol, max_staleness=2, on_stale=OnStale.FINISH)
            assert await inside.take(uid) == "completed"
        assert (await inside.result(uid)).stale is StaleEnd.FINISHED
        assert (await store.totals.read()).totals["requeued:weights"] == 1

    async def test_versions_that_are_no_numbers_are_as_old_as_the_attempt_and_warn(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        async with vllm_server(tokenizer, ADD, "It is 8.") as engine:
            engine.version = "step-10"
            await Runs(store).announce(OWNER, RUN, 10)
            (uid,) = await submit_to_run(inside, engine.url, "vllm", max_staleness=2)
            assert await inside.take(uid) == "completed"
            result = await inside.result(uid)
            assert (result.staleness, "version_unreadable" in result.warnings) == (0, True)

            async def announce(asked: Any) -> None:
                await Runs(store).announce(OWNER, RUN, 13)

            engine.before = announce
            (uid,) = await submit_to_run(inside, engine.url, "vllm", max_staleness=2)
            assert await inside.take(uid) == "cancelled"

    @pytest.mark.parametrize(
        ("weights", "announced", "meanwhile", "limit", "staleness"),
        [
            # It waits in the queue while the weights become newer, and then begins with the newest.
            (13, [10], [13], {"max_staleness": 0}, 0),
            (15, [15, 10], [], {"max_staleness": 0}, -5),
            (10, [99], [], {}, 89),
        ],
        ids=["as old as its attempt", "newer than announced", "without a limit"],
    )
    async def test_what_is_not_too_old_has_its_figure(
        self,
        inside: InsideWorker,
        store: Store,
        tokenizer: ChatTokenizer,
        weights: int,
        announced: list[int],
        meanwhile: list[int],
        limit: dict[str, int],
        staleness: int,
    ) -> None:
        async with vllm_server(tokenizer, "It is 8.") as engine:
            engine.version = str(weights)
            for version in announced:
                await Runs(store).announce(OWNER, RUN, version, rollback=True)
            (uid,) = await submit_to_run(inside, engine.url, "vllm", **limit)
            for version in meanwhile:
                await Runs(store).announce(OWNER, RUN, version)
            assert await inside.take(uid) == "completed"
        result = await inside.result(uid)
        assert (result.staleness, result.stale) == (staleness, None)

    async def test_the_lag_of_what_runs_is_measured(
        self, inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
    ) -> None:
        lags = []
        async with vllm_server(tokenizer, ADD, "It is 8.") as engine:
            engine.version = "10"
            await Runs(store).announce(OWNER, RUN, 10)

            async def look(asked: Any) -> None:
                lags.append(RUNNING_LAG.read())
                await Runs(store).announce(OWNER, RUN, 13)

            engine.before = look
            (uid,) = await submit_to_run(inside, engine.url, "vllm")
            await inside.take(uid)
        assert lags == [0, 3]
        assert RUNNING_LAG.read() == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_of_a_ledger_step_by_step_is_what_is_read_at_once(seed: int) -> None:
    """Through forks, which close a sample and keep its entries; and for versions that are no numbers."""
    draw = random.Random(seed)
    ledger = TokenLedger()
    branch = SimpleNamespace(number=0, tokens=SimpleNamespace(ledger=ledger))
    talk = SimpleNamespace(branches=[branch])
    notes = {"run": b"r", "max_staleness": b"", "on_stale": b"", "restarts": 0}
    gate = RunGate(*cast(Any, [None, None, None, SimpleNamespace(notes=notes), None, None]))
    gate._read_ledger()
    gate.guard(cast(Any, talk), cast(Any, None))
    ledger.seed([1, 2, 3])
    versions = ["9", "10", "<=11", "12", *(["step-3", None] if seed % 2 else [])]
    for turn in range(1, 31):
        for _ in range(draw.randint(1, 2)):
            ledger.append_sampled([turn], [-0.5], turn=turn, policy_version=draw.choice(versions))
        ledger.append_glue([7] * draw.randint(0, 2), turn=turn)
        if draw.random() < 0.2:
            ledger.accept_echo([1, 2, 100 + turn])
        # Not after each change: several may come before the next call.
        if draw.random() < 0.7:
            gate._read_ledger()
            walked = [entry.policy_version for entry in ledger.entries if isinstance(entry, SampledEntry)]
            assert version_bounds(gate._sampled_by) == version_bounds(walked)
            assert bool(gate._sampled_by) == bool(walked)
            assert gate._entries_read[0] == len(ledger.entries)
