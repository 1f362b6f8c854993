"""Single rollouts from the command line: `show`, and `cancel`, which takes batches too."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpool_trainer.cli import options
from rolloutpool_trainer.cli.batches import DEFAULT_URL

if TYPE_CHECKING:
    from rolloutpool_common.protocol.result import RolloutResult
    from rolloutpool_trainer.token_view import Decode

__all__ = ["cancel", "show"]

BATCH_ID = re.compile(r"b[0-9a-f]{32}")


def show(
    rollout_id: Annotated[str, typer.Argument(help="The pool's uid, or the caller's own id.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="Shows tokens as text; needs the extra `callback`. Ids where absent.")
    ] = None,
    url: options.Url = DEFAULT_URL,
    api_key: options.ApiKey = None,
) -> None:
    """Show one rollout: how it went, and which of its tokens are trained."""
    from rolloutpool_common.protocol.result import RolloutResult
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.token_view import legend, token_view

    with console.client(url, api_key) as client:
        view = client.get_rollout(rollout_id)
    console.pairs(
        {
            "uid": view.uid,
            "rollout": view.rollout_id,
            "batch": f"{view.batch_id} [{view.index}]",
            "group": view.group or "none",
            "status": view.status,
            "attempt": view.attempt,
            "worker": view.worker or "none",
            "turns": view.turns,
        }
    )
    if view.result is None:
        return
    result = RolloutResult.model_validate(view.result)
    _show_outcome(result)
    decode = _decoder(tokenizer)
    for number, sample in enumerate(result.samples, 1):
        console.line()
        console.line(f"sample {number} of {len(result.samples)}", style="bold")
        console.out.print(legend(sample))
        console.out.print(token_view(sample, decode))


def cancel(
    identity: Annotated[str, typer.Argument(metavar="ID", help="A batch or a rollout.")],
    url: options.Url = DEFAULT_URL,
    api_key: options.ApiKey = None,
) -> None:
    """End a batch or one rollout; what has ended before keeps its result."""
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        if BATCH_ID.fullmatch(identity):
            client.batch(identity).cancel()
        else:
            client.cancel_rollout(identity)
    console.line(f"cancelled {identity}")


def _show_outcome(result: "RolloutResult") -> None:
    from rolloutpool_trainer.cli import console

    failure = result.failure
    console.pairs(
        {
            "ended by": result.finish_reason,
            **({"failure": f"{failure.kind} at {failure.boundary}: {failure.message}"} if failure else {}),
            "alignment": result.alignment or "nothing sampled",
            "drift": ", ".join(f"{name} {count}" for name, count in result.drift.items()) or "none",
            "calls": f"{result.num_llm_calls} of the model, {result.num_tool_calls} of tools",
            "tokens": f"{result.response_tokens:,} sampled",
            "time": f"{result.spans.total_ms:,.0f} ms: model {result.spans.llm_ms:,.0f}, "
            f"tools {result.spans.tools_ms:,.0f}, tokenizer {result.spans.tokenizer_ms:,.0f}; "
            f"queued {result.spans.queued_ms:,.0f} before",
        }
    )
    for message in result.messages:
        console.line(f"{message.role}:", style="bold")
        if message.content:
            console.line(message.content if isinstance(message.content, str) else str(message.content))
        for call in message.tool_calls or ():
            console.line(f"  calls {call.function.name} {call.function.arguments}")


def _decoder(tokenizer: str | None) -> "Decode | None":
    """How to turn ids into text; None, with a note, where this installation cannot."""
    from rolloutpool_trainer.cli import console, tokenizers
    from rolloutpool_trainer.errors import MissingExtra

    if tokenizer is None:
        console.note("tokens as ids; --tokenizer NAME shows their text")
        return None
    try:
        return tokenizers.load(tokenizer).decode
    except MissingExtra as error:
        console.note(f"tokens as ids: {error}")
        return None
