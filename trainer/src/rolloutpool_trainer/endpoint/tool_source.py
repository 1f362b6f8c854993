"""Which tools the endpoint shows the policy: definitions that the trainer gave, or the pool's own, read once.

A prompt without the tools that the rollout can call is another prompt, so an endpoint that cannot read them refuses
the turn instead of sampling without them.
"""

from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import ValidationError

from rolloutpool_common.protocol.tools import ToolDefinition, ToolsResponse
from rolloutpool_trainer.endpoint.errors import EndpointError

__all__ = ["ToolSource"]

TOOLS_TIMEOUT = 30.0
"""Seconds. A pool that has just started waits up to ten for its first worker before it knows its tools."""


class ToolSource:
    """The tools in the prompts."""

    def __init__(
        self, tools: Sequence[dict[str, Any] | ToolDefinition] | str | None, api_key: str | None = None
    ) -> None:
        """Keeps where the tools come from; nothing is read yet.

        Args:
            tools: Definitions in OpenAI's form, or the pool's base URL, or None for no tools.
            api_key: The pool's key, where `tools` is its URL.
        """
        self._api_key = api_key
        self._url = tools.rstrip("/") + "/tools" if isinstance(tools, str) else None
        self._tools = None if tools is None or isinstance(tools, str) else [_document(tool) for tool in tools]

    async def get(self) -> list[dict[str, Any]] | None:
        """Reads the tools at the first call. Two first calls at once may both ask the pool; both get the same.

        Returns:
            The definitions; None if there are none.

        Raises:
            EndpointError: 503, because the pool did not answer with its tools. The next call asks again.
        """
        if self._url is not None and self._tools is None:
            self._tools = await _fetch(self._url, self._api_key)
        return self._tools or None


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
