"""NeMo Gym: its agent, its model server and a resources server, one process each, and its collector of rollouts here.

    python -m benchmarks.peers.adapters.nemo_gym_loop

`ng_run` would install each server into an environment of its own with another installer, so the servers are started
here as it starts them: with the resolved configuration in `NEMO_GYM_CONFIG_DICT`. Rollouts are asked for through
`RolloutCollectionHelper.run_examples`. Ray, which NeMo Gym starts and these rollouts do not use, is not counted.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

# Ray reads these when it is imported: it listens on the loopback address alone, and reports no use of it.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from benchmarks.peers.adapters.commands import Sampled, serve
from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.server_utils import HeadServer, ServerClient
from omegaconf import OmegaConf, open_dict

STARTS_WITHIN_SECONDS = 180.0
MODULES = {
    "policy_model": "responses_api_models.vllm_model.app",
    "calculator": "benchmarks.peers.adapters.nemo_calculator",
    "calculator_agent": "responses_api_agents.simple_agent.app",
}
"""What each server runs; the names are those of the configuration."""


def _configuration(url: str) -> dict[str, Any]:
    entrypoint = {"entrypoint": "app.py"}
    model = {
        **entrypoint,
        "base_url": url,
        "api_key": "none",
        "model": "default",
        # As in the configuration for training that NeMo Gym ships.
        "return_token_id_information": True,
        "uses_reasoning_parser": True,
    }
    agent = {
        **entrypoint,
        "resources_server": {"type": "resources_servers", "name": "calculator"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return {
        "policy_model": {"responses_api_models": {"vllm_model": model}},
        "calculator": {"resources_servers": {"calculator": {**entrypoint, "domain": "agent", "verified": False}}},
        "calculator_agent": {"responses_api_agents": {"simple_agent": agent}},
    }


def _server(module: str, launch: str, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    launcher = [sys.executable, "-I", "-S", launch, str(os.getpid()), "0"]
    # Standard output is for the answers to commands alone.
    return subprocess.Popen([*launcher, sys.executable, "-m", module], env=environment, stdout=sys.stderr)


class NemoGym:
    """The servers and the collector."""

    packages: tuple[str, ...] = ("nemo-gym", "openai", "ray", "aiohttp", "fastapi", "uvicorn")

    async def start(self, options: dict[str, Any]) -> list[int]:
        """Starts Ray, the head server in a thread, and the three servers; waits until they answer."""
        self._servers: list[subprocess.Popen[bytes]] = []
        config = get_global_config_dict(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=OmegaConf.create(_configuration(options["url"])),
                skip_load_from_cli=True,
                skip_load_from_dotenv=True,
            )
        )
        ray.init(include_dashboard=False, num_cpus=1, log_to_driver=False)
        with open_dict(config):
            config["ray_head_node_address"] = ray.get_runtime_context().gcs_address
        self._head, self._thread, _ = HeadServer.run_webserver()
        environment = {**os.environ, "NEMO_GYM_CONFIG_DICT": OmegaConf.to_yaml(config)}
        for name, module in MODULES.items():
            self._servers.append(_server(module, options["launch"], {**environment, "NEMO_GYM_CONFIG_PATH": name}))
        client = ServerClient(head_server_config=ServerClient.load_head_server_config(), global_config_dict=config)
        self._wait(client)
        return [server.pid for server in self._servers]

    def _wait(self, client: ServerClient) -> None:
        waiting = ["head_server", *MODULES]
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while waiting:
            if time.monotonic() > deadline or any(server.poll() is not None for server in self._servers):
                raise RuntimeError(f"not started: {waiting}")
            waiting = [name for name in waiting if client.poll_for_status(name) != "success"]
            time.sleep(0.5)

    def prepare(self, load: dict[str, Any]) -> None:
        """Part of the protocol."""
        functions = [tool["function"] for tool in load["tools"]]
        tools = [{"type": "function", "strict": False, **function} for function in functions]
        self._in_flight = load["in_flight"]
        self._examples = [
            {
                "agent_ref": {"type": "responses_api_agents", "name": "calculator_agent"},
                "responses_create_params": {
                    "input": rollout["messages"],
                    "tools": tools,
                    "metadata": {"extra_body": json.dumps({"rollout_id": rollout["id"]})},
                },
            }
            for rollout in load["rollouts"]
        ]
        self._results: dict[str, dict[str, Any]] = {}

    async def run(self) -> None:
        """Part of the protocol."""
        slots = asyncio.Semaphore(self._in_flight)
        for ended in RolloutCollectionHelper().run_examples(self._examples, semaphore=slots):
            row, result = await ended
            self._results[row["responses_create_params"]["metadata"]["extra_body"]] = result["response"]

    def finished(self) -> int:
        """Part of the protocol."""
        return sum(response["output"][-1]["type"] == "message" for response in self._results.values())

    def samples(self, count: int) -> list[Sampled | None]:
        """Puts the ids of the turns one behind the other, as a trainer has to."""
        return [self._sample(example) for example in self._examples[:count]]

    def _sample(self, example: dict[str, Any]) -> Sampled:
        ids: list[int] = []
        mask: list[int] = []
        for item in self._results[example["responses_create_params"]["metadata"]["extra_body"]]["output"]:
            if "generation_token_ids" in item:
                prompt, sampled = item["prompt_token_ids"], item["generation_token_ids"]
                mask += [0] * (len(prompt) - len(ids)) + [1] * len(sampled)
                ids = [*map(int, prompt), *map(int, sampled)]
        return ids, mask

    async def stop(self) -> None:
        """Stops the servers, then Ray."""
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            try:
                await asyncio.to_thread(server.wait, 10.0)
            except subprocess.TimeoutExpired:
                server.kill()
        ray.shutdown()


if __name__ == "__main__":
    serve(NemoGym())
