"""verifiers' own client runs its tasks in a pool, against an imitated vLLM: `make test-trainers`."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.newest_batch import newest_when_complete
from tests.support.trainer_script import ADD
from tests.support.vllm_server import VllmServer, vllm_server

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import LocalPool
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.verifiers import PoolEnvServer
from rolloutpool_trainer.client.results import FinishedRollout

pytest.importorskip("verifiers", reason="verifiers has an environment of its own: make test-trainers")

from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.types import SamplingConfig

# Deprecations inside these libraries are not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(180)]

ANSWER = "It is 38."
TASK = {"prompt": "Calculate 15 + 23", "system_prompt": "Be brief.", "answer": "38"}
SAMPLING = SamplingConfig(temperature=0.7, max_tokens=200)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with LocalPool(workers=1, flower=False, tokenizers=[str(TINY_TOKENIZER)]) as running:
        yield running


@pytest.fixture
async def engine() -> AsyncIterator[VllmServer]:
    async with vllm_server(load_tokenizer(str(TINY_TOKENIZER)), ADD, ANSWER) as server:
        yield server


@pytest.fixture
async def server(pool: LocalPool) -> AsyncIterator[PoolEnvServer]:
    def reward(result: FinishedRollout, task: dict[str, Any]) -> float:
        return float(task["answer"] in str(result.messages[-1].content))

    driver = PoolDriver(pool.url, retries=0, defaults={"tokenizer_name": "rolloutpool/tiny"})
    made = PoolEnvServer(driver, "tcp://127.0.0.1:0", reward=reward)
    serving = asyncio.create_task(made.serve())
    yield made
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


@pytest.fixture
async def client(server: PoolEnvServer) -> AsyncIterator[Any]:
    made = EnvClient(server.address)
    await made.wait_for_server_startup(timeout=20)
    yield made
    await made.close()


def at(engine: VllmServer) -> Any:
    return TrainClientConfig(base_url=f"{engine.url}/v1", api_key_var="NO_SUCH_KEY")


async def test_an_episode_has_the_ids_that_the_engine_sampled(client: Any, engine: VllmServer) -> None:
    deltas: list[dict[str, Any]] = []
    episode = await client.run(at(engine), "policy", SAMPLING, TASK, on_delta=deltas.append)
    assert (episode.ok, episode.errors, episode.env.id) == (True, [], "rolloutpool")
    assert episode.task.data.answer == "38"
    (trace,) = episode.traces
    (branch,) = trace.branches
    first, last = engine.ids_of(1), engine.ids_of(2)
    sampled = [token for token, flag in zip(branch.token_ids, branch.sampled_mask, strict=True) if flag]
    assert sampled == [*first, *last]
    assert branch.token_ids[-len(last) :] == last
    assert trace.reward == 1.0
    assert [node.message.role for node in trace.nodes] == ["system", "user", "assistant", "tool", "assistant"]
    assert len(deltas) == 1
    # The request says where the policy is and how it samples.
    assert {asked.document["sampling_params"]["temperature"] for asked in engine.asked} == {0.7}
    assert {asked.document["model"] for asked in engine.asked} == {"policy"}


async def test_the_example_serves(pool: LocalPool, engine: VllmServer) -> None:
    env = {**os.environ, "POOL_URL": pool.url, "POOL_TOKENIZER": "rolloutpool/tiny"}
    program = Path(__file__).parents[2] / "examples" / "trainers" / "verifiers_env_server.py"
    arguments = (str(program), "tcp://127.0.0.1:0")
    serving = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=env, stdout=asyncio.subprocess.PIPE)
    try:
        assert serving.stdout is not None
        made = EnvClient((await asyncio.wait_for(serving.stdout.readline(), 60)).decode().strip())
        await made.wait_for_server_startup(timeout=20)
        episode = await made.run(at(engine), "policy", SAMPLING, TASK)
        await made.close()
    finally:
        serving.kill()
        await serving.wait()
    assert (episode.ok, episode.traces[0].reward) == (True, 1.0)


async def test_many_episodes_run_at_the_same_time(client: Any, engine: VllmServer) -> None:
    episodes = await asyncio.gather(*(client.run(at(engine), "policy", SAMPLING, TASK) for _ in range(8)))
    assert [episode.ok for episode in episodes] == [True] * 8
    assert len({episode.id for episode in episodes}) == 8


async def test_what_the_pool_cannot_run_is_refused_and_the_others_go_on(client: Any, engine: VllmServer) -> None:
    refused = [
        (EvalClientConfig(base_url=f"{engine.url}/v1"), TASK, "returns no token ids"),
        (at(engine), {"answer": "38"}, "has no prompt"),
        (at(engine), {"prompt": []}, "422"),
    ]
    for config, task, said in refused:
        with pytest.raises(RuntimeError, match=said):
            await client.run(config, "policy", SAMPLING, task)
    assert await client.health()
    assert (await client.run(at(engine), "policy", SAMPLING, TASK)).ok


async def test_a_failure_of_the_infrastructure_is_no_trace(client: Any, engine: VllmServer) -> None:
    gone = TrainClientConfig(base_url="http://127.0.0.1:9/v1", api_key_var="NO_SUCH_KEY")
    waiting = asyncio.create_task(client.run(gone, "policy", SAMPLING, TASK))
    # The pool waits for an engine that is away, so the client gives up first.
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    engine.change = lambda reply: reply.clear()
    episode = await client.run(at(engine), "policy", SAMPLING, TASK)
    assert (episode.ok, episode.traces) == (False, [])
    assert episode.errors[0].type == "trainer_protocol_error"


async def test_a_client_that_gives_up_cancels_its_rollout(client: Any, engine: VllmServer, pool: LocalPool) -> None:
    asked = asyncio.Event()

    async def hang(_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    engine.before = hang
    waiting = asyncio.create_task(client.run(at(engine), "policy", SAMPLING, TASK))
    await asyncio.wait_for(asked.wait(), 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    newest = await newest_when_complete(pool)
    assert newest.counts[RolloutStatus.CANCELLED] == 1


async def test_nonsense_is_answered_or_dropped(client: Any, server: PoolEnvServer, engine: VllmServer) -> None:
    import zmq.asyncio

    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(server.address)
    try:
        await socket.send_multipart([b"one frame"])
        await socket.send_multipart([b"1", b"dance", b"\xc0"])
        await socket.send_multipart([b"2", b"run", b"\xc1 not msgpack"])
        answers = [await asyncio.wait_for(socket.recv_multipart(), 10) for _ in range(2)]
    finally:
        socket.close(0)
        context.term()
    assert [(answer[0], answer[1]) for answer in sorted(answers)] == [(b"1", b"reply"), (b"2", b"reply")]
    assert await client.health()
