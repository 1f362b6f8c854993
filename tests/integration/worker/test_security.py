"""What a worker process does with hosts that it may not call, and with secrets that it cannot read."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from tests.support.batches import NOWHERE
from tests.support.pool import Pool, opened_pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say, status
from tests.support.worker_process import started_worker

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.v1.response import to_v1
from rolloutpool_common.rendering import ChatTokenizer


@pytest.mark.parametrize("v1", [False, True])
@pytest.mark.parametrize("host", ["10.0.0.1:8081", "169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]:80"])
async def test_a_host_that_may_not_be_called_fails_the_rollout_for_good(pool: Pool, host: str, v1: bool) -> None:
    (result,) = await pool.run(shared={"server_url": f"http://{host}", "v1": v1})
    assert result.status is RolloutStatus.FAILED
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.boundary) == (FailureKind.REQUEST, Boundary.TRAINER)
    assert failure.category is Category.TARGET_REFUSED
    assert not failure.retryable
    assert result.attempt == 1
    assert to_v1(result, tokenizer_name="t", timeout_seconds=1.0).status == "ERROR"


async def test_a_worker_without_the_key_names_both_sides(
    redis_url: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    other = tmp_path / "keys"
    other.touch(0o600)
    other.write_text(Fernet.generate_key().decode())
    shared: dict[str, Any] = {"callback_api_key": "MARKER"}
    async with opened_pool(redis_url) as pool, scripted_trainer(tokenizer, status(500)) as trainer:
        for secrets_file, has in (
            (str(other), f"ROLLOUTPOOL_SECRETS_FILE={other}"),
            ("", "no ROLLOUTPOOL_SECRETS_FILE"),
        ):
            settings = {"ROLLOUTPOOL_SECRETS_FILE": secrets_file, "ROLLOUTPOOL_INFRA_RETRIES": "0"}
            with started_worker(redis_url, [], **settings) as worker:
                await worker.announced(pool.store)
                (result,) = await pool.run(shared={**shared, "server_url": trainer.url})
                log = worker.log()
            failure = result.failure
            assert failure is not None
            assert (failure.kind, failure.boundary) == (FailureKind.INFRA, Boundary.WORKER)
            assert "by the API" in failure.message
            assert has in failure.message
            assert "MARKER" not in failure.message + log
        assert trainer.exchanges == []


async def test_a_worker_calls_loopback_alone_unless_told(redis_url: str) -> None:
    async with opened_pool(redis_url) as pool:
        with started_worker(redis_url, ROLLOUTPOOL_ALLOWED_TARGETS="", ROLLOUTPOOL_TRAINER_ATTEMPTS="1") as worker:
            await worker.announced(pool.store)
            here, there, name = await pool.run(
                [{"server_url": url} for url in (NOWHERE, "http://8.8.8.8", "http://trainer.example")],
                shared={"v1": True},
            )
    found = [result.failure.category for result in (here, there, name) if result.failure]
    assert found == [Category.NETWORK_ERROR, Category.TARGET_REFUSED, Category.TARGET_REFUSED]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ROLLOUTPOOL_SECRETS_FILE": "/no/such/file"}, "ROLLOUTPOOL_SECRETS_FILE: /no/such/file cannot be read"),
        (
            {"ROLLOUTPOOL_ALLOWED_TARGETS": "a,http://b"},
            "ROLLOUTPOOL_ALLOWED_TARGETS: 'http://b' is neither",
        ),
    ],
)
async def test_settings_that_cannot_be_used_end_the_worker(redis_url: str, settings: dict[str, str], said: str) -> None:
    with started_worker(redis_url, [], **settings) as worker:
        assert await worker.ended() == 2
        assert said in worker.log()
        assert "Traceback" not in worker.log()


@pytest.mark.parametrize("form", ["json", "console"])
async def test_ids_cannot_forge_lines_in_a_workers_log(redis_url: str, tokenizer: ChatTokenizer, form: str) -> None:
    forged = 'x"}\r\n{"event": "forged"}\n2026-01-01T00:00:00Z [info     ] forged\x1b[31m\u2028'

    settings = {"ROLLOUTPOOL_LOG_LEVEL": "debug", "ROLLOUTPOOL_LOG_FORMAT": form}
    async with opened_pool(redis_url) as pool, scripted_trainer(tokenizer, say("8")) as trainer:
        with started_worker(redis_url, [], **settings) as worker:
            await worker.announced(pool.store)
            # In every place that a caller names something.
            fields = {"rollout_id": forged, "labels": {forged: forged}, "metadata": {"who": forged}}
            good, bad = await pool.run(
                [fields, {**fields, "tokenizer_name": forged}],
                shared={"server_url": trainer.url},
                groups=[forged, forged],
            )
            log = worker.log()
    assert [good.status, bad.status] == [RolloutStatus.COMPLETED, RolloutStatus.FAILED]
    assert good.uid in log
    assert "\x1b" not in log
    assert not [line for line in log.splitlines() if line.startswith(('{"event": "forged"', "2026-01-01"))]
