"""Says which tools the endpoint shows the policy: definitions that the trainer gave, or the pool's own, read once.

A prompt without the tools that the rollout can call is another prompt, so an endpoint that cannot read them refuses
the turn instead of sampling without them.
"""

from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import ValidationError

from rolloutpool_common.protocol.tools import ToolDefinition, ToolsResponse
from rolloutpool_trainer.endpoint.errors import EndpointError

TOOLS_TIMEOUT = 30.0
"""Seconds. A pool that has just started waits up to ten for its first worker before it knows its tools."""


class ToolSource:
    """The tools in the prompts."""

    def __init__(
        self,
        tools: Sequence[dict[str, Any] | ToolDefinition] | str | None,
        api_key: str | None = None,
        only: Sequence[str] | None = None,
    ) -> None:
        """Keeps where the tools come from, the pool's URL or definitions in OpenAI's form; nothing is read yet.

        With `only`, tools with these names are shown, in the order of `tools`. Raises `ValueError` where one is
        unknown.
        """
        self._api_key = api_key
        self._only = None if only is None else frozenset(only)
        self._url = tools.rstrip("/") + "/tools" if isinstance(tools, str) else None
        self._tools: list[dict[str, Any]] | None = None
        if not isinstance(tools, str) and (tools is not None or only):
            self._tools, missing = self._shown([_document(tool) for tool in tools or ()])
            if missing:
                raise ValueError(f"only={sorted(self._only or ())}: {missing}")

    async def get(self) -> list[dict[str, Any]] | None:
        """Reads the tools at the first call. Two first calls at once may both ask the pool; both get the same.

        Raises 503 where the pool did not answer with its tools, or lacks one that is to be shown. The next call asks
        again.
        """
        if self._url is not None and self._tools is None:
            tools, missing = self._shown(await _fetch(self._url, self._api_key))
            if missing:
                raise EndpointError(503, "tools_unavailable", f"{self._url}: {missing}")
            self._tools = tools
        return self._tools or None

    def _shown(self, tools: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """Returns those that are shown, and what is wrong with their names in words."""
        if self._only is None:
            return tools, ""
        names = [str(tool.get("function", {}).get("name")) for tool in tools]
        missing = sorted(self._only.difference(names))
        shown = [tool for tool, name in zip(tools, names, strict=True) if name in self._only]
        wrong = f"there is no tool {', '.join(missing)}; there are {', '.join(names) or 'none'}"
        return shown, wrong if missing else ""


async def _fetch(url: str, api_key: str | None) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with httpx.AsyncClient(timeout=TOOLS_TIMEOUT, trust_env=False) as client:
            response = await client.get(url, headers=headers)
        response.raise_for_status()
        document = response.json()
        ToolsResponse.model_validate(document)
    except (httpx.HTTPError, httpx.InvalidURL, ValidationError, ValueError) as error:
        raise EndpointError(
            503,
            "tools_unavailable",
            f"the pool's tools could not be read from {url} ({_reason(error)}); is it up?",
        ) from error
    # The document itself, not the model's dump of it: another order of keys would be another prompt.
    tools: list[dict[str, Any]] = document["tools"]
    return tools


def _reason(error: Exception) -> str:
    return str(error.response.status_code) if isinstance(error, httpx.HTTPStatusError) else type(error).__name__


def _document(tool: dict[str, Any] | ToolDefinition) -> dict[str, Any]:
    return tool.model_dump() if isinstance(tool, ToolDefinition) else tool
