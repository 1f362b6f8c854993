"""How the endpoint makes the prompt of a turn, in the manner of the trainer that it stands for.

A trainer that keeps ids continues its own: they are never rendered again, only what was appended is. A trainer that
does not renders the whole history each turn, and what it gets may differ from what was sampled. An edited history is
rendered whole by both: there is nothing to continue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import ValidationError

from rolloutpool_common.protocol.tools import ToolDefinition, ToolsResponse
from rolloutpool_common.rendering import ChatTokenizer, Delta, rerender
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_trainer.endpoint.errors import EndpointError

__all__ = ["Prompt", "Prompter", "ToolSource"]

TOOLS_TIMEOUT = 30.0
"""Seconds; a pool waits up to ten for its first worker before it knows its tools."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the policy will see."""

    ids: list[int]
    """[P]"""
    delta: Delta | None
    """What was put behind the last sampled token; None where the whole prompt was rendered."""


@dataclass(frozen=True, slots=True)
class Prompter:
    """Renders prompts; immutable, so it may be called in a thread."""

    tokenizer: ChatTokenizer
    keeps_ids: bool
    template_kwargs: dict[str, Any]

    def prompt(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        ledger: TokenLedger,
        appended: int | None,
    ) -> Prompt:
        """The prompt for a conversation.

        Args:
            messages: the whole conversation, in normal form.
            tools: what the policy may call.
            ledger: the tokens so far; empty before turn 1.
            appended: how many of the messages are new since the reply of the turn before; None where that cannot be
                said, because this is turn 1 or because what came before was edited.

        Raises:
            TemplateRefused: the template cannot render the conversation.
        """
        if not self.keeps_ids:
            # As `apply_chat_template` does it, care for nothing: that is what this kind of trainer is.
            ids = rerender(self.tokenizer, messages, tools=tools, template_kwargs=self.template_kwargs)
            return Prompt(ids, None)
        if appended is None:
            ids = self.tokenizer.render_prompt(messages, tools=tools, template_kwargs=self.template_kwargs)
            return Prompt(list(ids), None)
        context = ledger.context
        delta = self.tokenizer.render_delta(
            messages[len(messages) - appended :],
            last_sampled_id=context[-1],
            tools=tools,
            template_kwargs=self.template_kwargs,
        )
        return Prompt([*context, *delta.close_ids, *delta.glue_ids], delta)


class ToolSource:
    """The tools in the prompts: given, or asked of the pool once."""

    def __init__(
        self, tools: Sequence[dict[str, Any] | ToolDefinition] | str | None, api_key: str | None = None
    ) -> None:
        """`tools`: definitions in OpenAI's form, or the pool's base URL, for which `api_key` is."""
        self._api_key = api_key
        self._url = tools.rstrip("/") + "/tools" if isinstance(tools, str) else None
        self._tools = None if tools is None or isinstance(tools, str) else [_plain(tool) for tool in tools]

    async def get(self) -> list[dict[str, Any]] | None:
        """The tools, None without any. Two first callers may both ask the pool; both get the same.

        Raises:
            EndpointError: 503, the pool did not answer with its tools; the next call asks again.
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
    # As they came: another order of keys would be another prompt than the real trainer's.
    tools: list[dict[str, Any]] = document["tools"]
    return tools


def _reason(error: Exception) -> str:
    return str(error.response.status_code) if isinstance(error, httpx.HTTPStatusError) else type(error).__name__


def _plain(tool: dict[str, Any] | ToolDefinition) -> dict[str, Any]:
    return tool.model_dump() if isinstance(tool, ToolDefinition) else tool
