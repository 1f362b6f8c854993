"""For NeMo Gym and NeMo-RL: an agent server that runs its rollouts in a pool (read from nemo-gym 0.4.0).

    # app.py, the `entrypoint` of a `responses_api_agents` in NeMo Gym's configuration
    app = nemo_gym_agent(PoolDriver(url, trainer=..., defaults=...), environment="calculator")

NeMo Gym posts a row of a data set to `/run` and waits. The agent makes a rollout of it:

1. The row's `responses_create_params.input` becomes the messages; `instructions` stand in front of them. Temperature,
   `top_p` and `max_output_tokens` are the row's.
2. With `environment`, the whole row is the task of this environment of the pool: a resources server, whose session,
   tools and `/verify` the pool's workers ask themselves. Without one, the tools are those of the pool that the row
   names, and the reward comes from a grader of the pool or from `reward`.
3. The answer is the row with `response`, whose items carry token ids (`rolloutpool_rl.nemo_gym_response`), and with
   `reward`.

A row that is wrong, a rollout that forked, or one without a reward is 422: NeMo-RL counts it as a fault of the data.
One that the infrastructure failed after all retries is 503, and never a reward of 0. Whoever goes away before the
answer cancels the rollout. A rollout has no place for `tool_choice`, `parallel_tool_calls` and `reasoning`, which make
no difference here; nor for images, which are refused.
"""

import asyncio
import contextlib
import json
import math
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolloutpool_common.outcomes import FailureKind
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.nemo_gym_response import nemo_gym_response
from rolloutpool_trainer.adapters.driver import PoolDriver, is_sample
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.errors import ClientError

Reward = Callable[[FinishedRollout, dict[str, Any]], float | None]

_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_tokens"}
_TEXTS = frozenset({"input_text", "output_text", "text"})


class RowRefused(ValueError):
    """The row can't be a rollout."""


def nemo_gym_agent(driver: PoolDriver, *, environment: str | None = None, reward: Reward | None = None) -> Starlette:
    """Makes the agent server.

    Args:
        driver: Its `trainer` and `defaults` say where the policy is served. NeMo-RL's own vLLM is an engine:
            `"protocol": "vllm"`.
        environment: Name of the pool's environment in which the rows are solved.
        reward: Of a rollout, and its row. None takes the rollout's own reward: its grader's, or its environment's.

    Returns:
        An ASGI app with `/run`, `/v1/responses` and `/aggregate_metrics`.
    """

    async def solve(row: dict[str, Any]) -> tuple[FinishedRollout, dict[str, Any]]:
        try:
            item = _item(row, environment)
        except (KeyError, TypeError, AttributeError) as error:
            raise RowRefused(f"the row has another form: {type(error).__name__}: {error}") from None
        (result,) = await driver.run([item])
        if not is_sample(result):
            if result.failure is not None and result.failure.kind is FailureKind.REQUEST:
                raise RowRefused(result.failure.message)
            raise _NotRun(result)
        return result, nemo_gym_response(result, row["responses_create_params"])

    async def run(row: dict[str, Any]) -> dict[str, Any]:
        result, response = await solve(row)
        gained = result.reward if reward is None else reward(result, row)
        if gained is None:
            raise ExportRefused(
                f"Rollout {result.rollout_id} has no reward; give the agent an environment or a reward function, or "
                "name a grader in the driver's defaults."
            )
        answer = {**row, "response": response, "reward": float(gained), "rollout_uid": result.uid}
        parts = result.reward_parts
        # NeMo-RL asserts that they add up.
        if parts and math.isclose(sum(parts.values()), gained, rel_tol=1e-5, abs_tol=1e-6):
            answer["reward_components"] = parts
        return answer

    async def respond(params: dict[str, Any]) -> dict[str, Any]:
        _, response = await solve({"responses_create_params": params})
        return response

    routes = {"/run": run, "/v1/responses": respond, "/aggregate_metrics": _aggregate}
    return Starlette(routes=[Route(at, _endpoint(work), methods=["POST"]) for at, work in routes.items()])


async def _aggregate(body: dict[str, Any]) -> dict[str, Any]:
    try:
        rewards = [float(one["reward"]) for one in body["verify_responses"]]
    except (KeyError, TypeError, ValueError) as error:
        raise RowRefused(f"these are no results of rows: {type(error).__name__}: {error}") from None
    means = {"mean/reward": sum(rewards) / len(rewards)} if rewards else {}
    return {"group_level_metrics": [], "agent_metrics": means, "key_metrics": means}


class _NotRun(Exception):
    """The infrastructure failed a rollout, and it was not run again."""

    def __init__(self, result: FinishedRollout) -> None:
        failure = result.failure
        why = str(result.status) if failure is None else f"{failure.category}: {failure.message}"
        super().__init__(f"rollout {result.rollout_id} was not run ({why})")


def _endpoint(work: Callable[[dict[str, Any]], Any]) -> Callable[[Request], Any]:
    """Makes a handler of what turns one document into another."""

    async def handle(request: Request) -> Response:
        try:
            document = json.loads(await request.body())
        except ValueError as error:
            return JSONResponse({"detail": f"the body is no JSON: {error}"}, 422)
        working = asyncio.ensure_future(work(document))
        leaving = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
            return JSONResponse(await working)
        except (RowRefused, ExportRefused) as error:
            return JSONResponse({"detail": str(error)}, 422)
        except (_NotRun, ClientError) as error:
            status = getattr(error, "status", None)
            refused = isinstance(status, int) and 400 <= status < 500
            return JSONResponse({"detail": str(error)}, 422 if refused else 503)
        except asyncio.CancelledError:
            if working.cancelled() and leaving.done():
                return Response(status_code=499)
            raise
        finally:
            leaving.cancel()
            # This request ends before its answer where the server stops; the driver then cancels the batch.
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await working

    return handle


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _item(row: dict[str, Any], environment: str | None) -> dict[str, Any]:
    """Makes the submission of one row."""
    params = row.get("responses_create_params")
    if not isinstance(params, dict):
        raise RowRefused("the row has no `responses_create_params`")
    item: dict[str, Any] = {
        "messages": prompt_of(params),
        "sampling_params": {own: params[name] for name, own in _SAMPLING.items() if params.get(name) is not None},
        # The session has the row's tools. The pool's own would stand beside them.
        "tools": [] if environment is not None else [tool["name"] for tool in params.get("tools") or ()],
    }
    if environment is not None:
        item["environment"] = {"name": environment, "task": row}
    if params.get("model"):
        item["model"] = params["model"]
    return item


def prompt_of(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Makes messages of the input of `responses_create_params`.

    Raises:
        RowRefused: It has an item that no chat template could show.
    """
    given = params.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not items or not isinstance(items, list):
        raise RowRefused("`responses_create_params.input` is neither a text nor a list of items")
    messages = [{"role": "system", "content": params["instructions"]}] if params.get("instructions") else []
    for item in items:
        match item.get("type", "message"):
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": _text(item["content"])})
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                # What was said and each call of one turn are items that follow each other.
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append({"role": "tool", "content": _text(item["output"]), "tool_call_id": item["call_id"]})
            case other:
                raise RowRefused(f"an item of type {str(other)[:100]!r} can't be a message")
    return messages


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or any(part.get("type") not in _TEXTS for part in content):
        raise RowRefused("only text can be a message's content")
    return "".join(part["text"] for part in content)
