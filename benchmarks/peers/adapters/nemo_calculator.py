"""NeMo Gym's resources server of the benchmark: one tool, and a reward for everybody.

    python -m benchmarks.peers.adapters.nemo_calculator

NeMo Gym runs it as a process of its own, as it does with every environment's tools.
"""

from benchmarks.peers.adapters.commands import add
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from pydantic import BaseModel


class _Numbers(BaseModel):
    a: int
    b: int


class CalculatorServer(SimpleResourcesServer):
    """Adds two numbers."""

    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        """Adds the tool's route."""
        app: FastAPI = super().setup_webserver()
        app.post("/add")(self.add)
        return app

    async def add(self, body: _Numbers) -> PlainTextResponse:
        """Returns the sum as a tool message shows it."""
        return PlainTextResponse(add(body.model_dump()))

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Rewards every rollout, because nothing here is about rewards."""
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    CalculatorServer.run_webserver()
