"""NeMo Gym's own collector asks our agent, whose pool plays in NeMo Gym's own resources server: `make test-trainers`.

The policy is an imitated vLLM. NeMo-RL is on no package index, so the rules by which it reads token ids are in
tests/unit/rl/test_nemo_gym_response.py.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel
from tests.support.newest_batch import newest_when_complete
from tests.support.trainer_script import ADD
from tests.support.vllm_server import VllmServer, vllm_server

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import LocalPool, serve_callback
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.nemo_gym import nemo_gym_agent

pytest.importorskip("nemo_gym", reason="NeMo Gym has an environment of its own: make test-trainers")

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import AggregateMetrics, BaseServerConfig
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.server_utils import (
    GlobalAIOHTTPAsyncClientConfig,
    ServerClient,
    set_global_aiohttp_client,
)
from omegaconf import OmegaConf

# Deprecations inside these libraries are not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(180)]

ANSWER = "It is 38."
TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": True,
}


class Numbers(BaseModel):
    """What the tool takes."""

    a: int
    b: int


class Calculator(SimpleResourcesServer):  # type: ignore[misc]  # NeMo Gym is not installed where this is checked
    """A resources server as its users write them."""

    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        """Adds the tool's route."""
        app: FastAPI = super().setup_webserver()
        app.post("/add")(self.add)
        return app

    async def add(self, body: Numbers) -> PlainTextResponse:
        """Returns the sum."""
        return PlainTextResponse(str(body.a + body.b))

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Rewards the right answer."""
        said = body.response.output[-1].content[0].text
        return BaseVerifyResponse(**body.model_dump(), reward=float("38" in said))


def servers(**ports: int) -> ServerClient:
    """NeMo Gym's client, which knows agents at these ports."""
    agents = {
        name: {"responses_api_agents": {"rolloutpool": {"host": "127.0.0.1", "port": port, "entrypoint": "app.py"}}}
        for name, port in ports.items()
    }
    head = BaseServerConfig(host="127.0.0.1", port=9)
    return ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(agents))


class Collector(RolloutCollectionHelper):  # type: ignore[misc]  # NeMo Gym is not installed where this is checked
    """Theirs, with a configuration that comes from no head server."""

    client: Any

    def setup_server_client(self, head_server_config: Any = None) -> Any:
        """Returns the client."""
        return self.client


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    config = BaseResourcesServerConfig(host="127.0.0.1", port=9, entrypoint="app.py", name="calculator", domain="agent")
    calculator = Calculator(config=config, server_client=servers())
    with serve_callback(calculator.setup_webserver(), [0]) as there:
        listed: Path = tmp_path_factory.mktemp("environments") / "environments.toml"
        listed.write_text(f'[calculator]\nkind = "http"\nurl = "{there.url}"\ncrash = "stateless"\n')
        listed.chmod(0o600)
        env = {"ROLLOUTPOOL_ENVIRONMENTS_FILE": str(listed)}
        with LocalPool(workers=1, flower=False, tokenizers=[str(TINY_TOKENIZER)], env=env) as running:
            yield running


@pytest.fixture
async def engine() -> AsyncIterator[VllmServer]:
    async with vllm_server(load_tokenizer(str(TINY_TOKENIZER)), ADD, ANSWER) as server:
        yield server


@pytest.fixture
def agent(pool: LocalPool, engine: VllmServer) -> Iterator[str]:
    where = {"server_url": engine.url, "protocol": "vllm", "model": "policy", "tokenizer_name": "rolloutpool/tiny"}
    app = nemo_gym_agent(PoolDriver(pool.url, retries=0, defaults=where), environment="calculator")
    with serve_callback(app, [0]) as served:
        yield served.url


@pytest.fixture
async def collector(agent: str) -> AsyncIterator[Collector]:
    made = Collector(client=servers(pool_agent=int(agent.rpartition(":")[2])))
    session = set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    yield made
    await session.close()


def row(question: str = "Calculate 15 + 23") -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": question}], "tools": [TOOL], "temperature": 0.7}
    return {"agent_ref": {"type": "responses_api_agents", "name": "pool_agent"}, "responses_create_params": params}


async def test_the_collector_gets_what_the_engine_sampled(collector: Collector, engine: VllmServer) -> None:
    results = [await ended for ended in collector.run_examples([row() for _ in range(4)])]
    assert len(results) == 4
    for given, result in results:
        verified = BaseVerifyResponse.model_validate(result)
        assert (verified.reward, given["agent_ref"]["name"]) == (1.0, "pool_agent")
        response = NeMoGymResponse.model_validate(result["response"])
        assert [item.type for item in response.output] == ["function_call", "function_call_output", "message"]
        call, answered, said = response.output
        assert (call.name, call.call_id, answered.output) == ("add", answered.call_id, "38")
        assert said.content[0].text == ANSWER
        # They are parsed as the types that are trained.
        assert {type(call).__name__, type(said).__name__} == {
            "NeMoGymResponseFunctionToolCallForTraining",
            "NeMoGymResponseOutputMessageForTraining",
        }
        assert call.generation_token_ids == engine.ids_of(1)
        assert said.generation_token_ids == engine.ids_of(2)
        first = [*call.prompt_token_ids, *call.generation_token_ids]
        assert said.prompt_token_ids[: len(first)] == first
        assert len(said.generation_log_probs) == len(said.generation_token_ids)
    assert {asked.document["sampling_params"]["temperature"] for asked in engine.asked} == {0.7}


async def test_an_engine_that_breaks_is_no_reward_of_0(agent: str, engine: VllmServer) -> None:
    engine.change = lambda reply: reply.clear()
    async with httpx.AsyncClient(base_url=agent, timeout=60, trust_env=False) as client:
        broken = await client.post("/run", json=row())
        engine.change = None
        whole = await client.post("/run", json=row())
    assert (broken.status_code, "reward" in broken.json()) == (503, False)
    assert whole.json()["reward"] == 1.0


async def test_a_row_that_the_pool_refuses_is_the_data_s_fault(agent: str) -> None:
    wrong = {"responses_create_params": {"input": "q", "tools": [{**TOOL, "name": "verify"}]}}
    async with httpx.AsyncClient(base_url=agent, timeout=60, trust_env=False) as client:
        answer = await client.post("/run", json=wrong)
        metrics = await client.post("/aggregate_metrics", json={"verify_responses": [{"reward": 1.0}]})
    assert answer.status_code == 422, answer.text
    assert AggregateMetrics.model_validate(metrics.json()).key_metrics == {"mean/reward": 1.0}


async def test_whoever_goes_away_leaves_nothing_running(agent: str, engine: VllmServer, pool: LocalPool) -> None:
    asked = asyncio.Event()

    async def hang(_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    engine.before = hang
    async with httpx.AsyncClient(base_url=agent, timeout=60, trust_env=False) as client:
        waiting = asyncio.create_task(client.post("/run", json=row()))
        await asyncio.wait_for(asked.wait(), 30)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    newest = await newest_when_complete(pool)
    assert newest.counts[RolloutStatus.CANCELLED] == 1
