"""For verifiers and prime-rl: an env server (`EnvClient`, read from verifiers 0.4.0, verifiers/v1/serve).

Whoever has an `EnvClient` sends a task and where the policy is; the server runs the rollout in a pool, and streams its
trace back:

1. `run` has the task's data, a client, a model and sampling parameters. The client must be a `TrainClientConfig`: vLLM,
   asked with ids by the pool's workers. One for evaluation has no ids, and is refused.
2. The task's `prompt` and `system_prompt` are the first messages. Tools, agent and environment are the pool's.
3. The result becomes a trace (`rolloutpool_rl.verifiers_trace`), which goes out with verifiers' own streamer, then the
   reply. It comes whole and at the end, not turn by turn.
4. `cancel`, or the end of the client's own run, cancels the batch.

A rollout that the infrastructure failed after all retries is an episode with an error and no trace. The wire has no
place for policy versions; the client's headers, timeouts and renderer are not used, because the pool's workers ask.
The wire is internal to verifiers, so this module is for that version alone. It needs no package of ours beyond the
trainer's; verifiers brings pyzmq and msgpack.
"""

import asyncio
import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.verifiers_trace import verifiers_trace
from rolloutpool_trainer.adapters.driver import PoolDriver, conversation, is_sample
from rolloutpool_trainer.adapters.installed import needing
from rolloutpool_trainer.client.results import FinishedRollout

_log = logging.getLogger(__name__)

FRAMES = 4
"""Of a request: client, request, method, payload."""


class PoolEnvServer:
    """A ZMQ server that runs verifiers' tasks in a pool."""

    def __init__(
        self,
        driver: PoolDriver,
        address: str = "tcp://127.0.0.1:5000",
        *,
        reward: Callable[[FinishedRollout, dict[str, Any]], float | None] | None = None,
        name: str = "rolloutpool",
    ) -> None:
        """Binds the address; `serve` answers.

        Args:
            driver: Its `defaults` name the tokenizer; it needs no `trainer`, because each request says where to ask.
            address: For ZMQ; with port 0 `address` has the real one.
            reward: Of a rollout and its task's data. None takes what its grader or its environment says, if any.
            name: Of the environment, in each episode.
        """
        with needing("verifiers==0.4.0"):
            importlib.import_module("verifiers.v1.serve.types")
            import zmq.asyncio

        self._driver, self._reward, self._name = driver, reward, name
        self._running: dict[bytes, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        # What was sent to a client that is gone is an error here, and not lost in silence.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def serve(self) -> None:
        """Answers requests until it is cancelled; rollouts that run then are cancelled too."""
        try:
            while True:
                frames = await self._socket.recv_multipart()
                if len(frames) != FRAMES:
                    _log.warning("a message has %d frames, not %d", len(frames), FRAMES)
                    continue
                client, request, method, payload = frames
                task = asyncio.create_task(self._answer(client, request, method, payload))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                # Here and not in the task: a cancel that follows at once must find it.
                if method == b"run":
                    self._running[request] = task
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._socket.close()
            self._context.term()

    async def _answer(self, client: bytes, request: bytes, method: bytes, payload: bytes) -> None:
        import zmq
        from verifiers.v1.serve.delta import pack, unpack
        from verifiers.v1.serve.types import BaseResponse, CancelRequest, CancelResponse, HealthResponse

        try:
            document = unpack(payload)
            match method:
                case b"health":
                    response = HealthResponse()
                case b"cancel":
                    running = self._running.get(CancelRequest.model_validate(document).request_id.encode())
                    if running is not None:
                        running.cancel()
                    response = CancelResponse(cancelled=running is not None)
                case b"run":
                    response = await self._run(document, [client, request])
                case _:
                    response = BaseResponse(success=False, error=f"unknown method {method[:100]!r}")
        except asyncio.CancelledError:
            response = BaseResponse(success=False, error="Cancelled: rollout aborted")
        except Exception as error:
            # A request that failed is its client's to know; the others are served on.
            _log.warning("a request failed: %s: %s", type(error).__name__, error)
            response = BaseResponse(success=False, error=f"{type(error).__name__}: {error}")
        finally:
            self._running.pop(request, None)
        try:
            await self._socket.send_multipart([client, request, b"reply", pack(response)])
        except zmq.ZMQError as error:
            _log.warning("a reply was not sent: %s", error)

    async def _run(self, document: Any, route: list[bytes]) -> Any:
        from verifiers.v1.serve.delta import DeltaStreamer, TraceSummary, dump, pack
        from verifiers.v1.serve.types import RunRequest, RunResponse

        asked = RunRequest.model_validate(document)
        (result,) = await self._driver.run([_item(asked)])
        episode = self._episode(result, asked.task_data)

        async def send(delta: dict[str, Any]) -> None:
            await self._socket.send_multipart([*route, b"delta", pack(delta)])

        async with DeltaStreamer(lambda: episode.traces, send):
            # Leaving the block sends all that the trace has.
            pass
        return RunResponse(
            head=dump(episode, exclude={"traces"}),
            traces=[
                TraceSummary(id=trace.id, nodes=len(trace.nodes), calls=len(trace.calls)) for trace in episode.traces
            ],
        )

    def _episode(self, result: FinishedRollout, task: dict[str, Any]) -> Any:
        from verifiers.v1.episode import WireEpisode

        failure, traces = result.failure, []
        errors = [] if failure is None else [{"type": str(failure.category), "message": failure.message}]
        if is_sample(result):
            try:
                traces = [verifiers_trace(result, self._score(result, task), task=task)]
            except ExportRefused as refused:
                errors.append({"type": "ExportRefused", "message": str(refused)})
        elif failure is None:
            errors.append({"type": str(result.status), "message": f"the rollout is {result.status}"})
        return WireEpisode.model_validate(
            {
                "id": result.uid,
                "env": {"id": self._name},
                "task": {"type": "Task", "data": task},
                "ok": not errors,
                "is_timeout": result.status == "expired",
                "errors": errors,
                "traces": traces,
            }
        )

    def _score(self, result: FinishedRollout, task: dict[str, Any]) -> float | None:
        if self._reward is not None:
            return self._reward(result, task)
        return result.reward


def _item(asked: Any) -> dict[str, Any]:
    """Makes the submission of one task."""
    from verifiers.v1.configs.client import resolve_api_key

    client, task = asked.client, asked.task_data
    if client.type != "train":
        raise ValueError("the client must be a TrainClientConfig: one for evaluation returns no token ids")
    if task.get("prompt") is None:
        raise ValueError("the task has no prompt; the pool's rollouts begin with one")
    sampling = asked.sampling.model_dump(exclude_none=True)
    # The pool has a salt of its own for each weights.
    sampling.pop("cache_salt", None)
    system = [{"role": "system", "content": task["system_prompt"]}] if task.get("system_prompt") else []
    item = {
        "messages": [*system, *conversation(task["prompt"])],
        # verifiers writes OpenAI's base URL; the pool wants the server's.
        "server_url": client.base_url.rstrip("/").removesuffix("/v1"),
        "protocol": "vllm",
        "model": asked.model,
        "template_kwargs": sampling.pop("chat_template_kwargs", {}),
        "sampling_params": sampling,
    }
    if client.api_key_var in os.environ:
        item["callback_api_key"] = resolve_api_key(client)
    return item
