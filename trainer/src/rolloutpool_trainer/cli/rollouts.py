"""Single rollouts from the command line: `show`, and `cancel`, which also takes batches."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpool_trainer.cli import completion, options

if TYPE_CHECKING:
    from rolloutpool_common.protocol.result import RolloutResult
    from rolloutpool_common.rendering import ChatTokenizer


def show(
    rollout_id: Annotated[
        str, typer.Argument(help="The pool's uid, or the caller's own id.", autocompletion=completion.ids)
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="Shows tokens as text, not as ids; needs the extra `callback`.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Writes one self-contained page to this file instead of the terminal."),
    ] = None,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Show one rollout: how it went, and which of its tokens are trained."""
    from rolloutpool_common.protocol.result import RolloutResult
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.errors import TrainerError

    with console.client(url, api_key) as client:
        view = client.get_rollout(rollout_id)
    result = None if view.result is None else RolloutResult.model_validate(view.result)
    if html is not None:
        if result is None:
            raise TrainerError(f"rollout {view.uid} is {view.status}; there is a page of it once it has ended")
        _write_page(result, tokenizer, html)
        return
    if as_json:
        console.document(view)
        return
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
            **({} if view.waiting is None else {"waits for": view.waiting.message}),
        }
    )
    if result is not None:
        _show_outcome(result)
        _show_messages(result)
        _show_tokens(result, tokenizer)


def cancel(
    identity: Annotated[str, typer.Argument(metavar="ID", help="A batch or a rollout.", autocompletion=completion.ids)],
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """End a batch or one rollout. Rollouts that had ended before keep their result."""
    from rolloutpool_common.protocol.ids import is_batch_id
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import CancelDocument

    with console.client(url, api_key) as client:
        if is_batch_id(identity):
            client.batch(identity).cancel()
            known = True
        else:
            known = client.cancel_rollout(identity)
    if as_json:
        console.document(CancelDocument(id=identity, submitted=known))
    elif known:
        console.line(f"cancelled {identity}")
    else:
        console.line(f"{identity} was not submitted yet; if it comes within 10 minutes, it is cancelled")


def _show_outcome(result: "RolloutResult") -> None:
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.viewer.terminal import TURN_COLUMNS, turn_rows

    failure = result.failure
    trained = sum(sum(sample.response_mask) for sample in result.samples)
    total = sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in result.samples)
    at = "" if failure is None or failure.turn is None else f", turn {failure.turn}"
    console.pairs(
        {
            "ended by": result.finish_reason,
            **(
                {"failure": f"{failure.category}, {failure.kind} at {failure.boundary}{at}: {failure.message}"}
                if failure
                else {}
            ),
            **({} if result.stale_versions is None else {"too old": result.stale_versions.message}),
            **({"labels": ", ".join(f"{k}={v}" for k, v in result.labels.items())} if result.labels else {}),
            "alignment": result.alignment or "nothing sampled",
            "drift": ", ".join(f"{name} {count}" for name, count in result.drift.items()) or "none",
            "warnings": ", ".join(result.warnings) or "none",
            "calls": f"{result.num_llm_calls} of the model, {result.num_tool_calls} of tools",
            "tokens": f"{result.response_tokens:,} sampled; trained {trained:,} of {total:,} "
            f"in {len(result.samples)} sample{'' if len(result.samples) == 1 else 's'}",
            "time": _times(result),
        }
    )
    if result.turns:
        console.line()
        console.table(TURN_COLUMNS, turn_rows(result.turns), lines=False)


def _times(result: "RolloutResult") -> str:
    """Says where the time of the last attempt went, and what was before it."""
    spans = result.spans
    # A turn's times are from acceptance on, and so is the claim that finished it.
    earlier = [turn for turn in result.turns if turn.start_ms is not None and turn.start_ms < spans.queued_ms]
    model_before = sum(turn.llm_ms or 0 for turn in earlier)
    # The tools of a turn run at the same time.
    tools_before = sum(max((tool.ms for tool in turn.tools), default=0) for turn in earlier)
    parts = {
        "model": max(spans.llm_ms - model_before, 0),
        "tools": max(spans.tools_ms - tools_before, 0),
        "tokenizer": spans.tokenizer_ms,
    }
    if spans.loop_ms is None or spans.redis_ms is None:
        parts["other"] = max(spans.total_ms - sum(parts.values()), 0)
    else:
        waits = spans.loop_ms + spans.redis_ms
        parts["worker's own work"] = max(spans.total_ms - sum(parts.values()) - waits, 0)
        parts["waited for the worker"], parts["waited for Redis"] = spans.loop_ms, spans.redis_ms
    at_once = " (several at once)" if sum(parts.values()) > spans.total_ms + 1 else ""
    said = ", ".join(f"{name} {ms:,.0f}" for name, ms in parts.items())
    before = f"queued {spans.queued_ms:,.0f} before"
    if result.attempt > 1:
        before = (
            f"{spans.queued_ms:,.0f} before attempt {result.attempt}, queued and in earlier attempts "
            f"(model {model_before:,.0f}, tools {tools_before:,.0f})"
        )
    return f"{spans.total_ms:,.0f} ms: {said}{at_once}; {before}"


def _show_messages(result: "RolloutResult") -> None:
    from rolloutpool_trainer.cli import console

    for message in result.messages:
        console.line()
        console.line(f"{message.role}:", style="bold")
        if message.content:
            console.line(message.content if isinstance(message.content, str) else str(message.content))
        for call in message.tool_calls or ():
            console.line(f"  calls {call.function.name} {call.function.arguments}")


def _show_tokens(result: "RolloutResult", tokenizer: str | None) -> None:
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.viewer.runs import view_samples
    from rolloutpool_trainer.viewer.terminal import legend, token_view

    loaded, note = _load(tokenizer, result)
    if note:
        console.note(note)
    for view in view_samples(result, None if loaded is None else loaded.decode):
        console.line()
        console.line(f"sample {view.number} of {len(result.samples)}", style="bold")
        console.out.print(legend(view))
        console.out.print(token_view(view))


def _write_page(result: "RolloutResult", tokenizer: str | None, file: Path) -> None:
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.viewer.html import rollout_page

    loaded, note = _load(tokenizer, result)
    if loaded is None:
        page = rollout_page(result, None, note=note)
    else:
        from rolloutpool_common.rendering.pieces import find_pieces

        page = rollout_page(result, loaded.decode, pieces=find_pieces(loaded), note=note)
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {file}: {error.strerror}", param_hint="--html") from None
    console.line(str(file))


def _load(tokenizer: str | None, result: "RolloutResult") -> "tuple[ChatTokenizer | None, str | None]":
    """Returns what turns ids into text, None if this installation can't, and what a reader has to know about it."""
    from rolloutpool_trainer.cli import tokenizers
    from rolloutpool_trainer.errors import MissingExtra

    if tokenizer is None:
        return None, "tokens as ids; --tokenizer NAME shows their text"
    try:
        loaded = tokenizers.load(tokenizer)
    except MissingExtra as error:
        return None, f"tokens as ids: {error}"
    made_with, have = result.tokenizer.get("tokenizer_sha256"), loaded.fingerprint.tokenizer_sha256
    if made_with is None or made_with == have:
        return loaded, None
    return loaded, (
        f"the text may be wrong: tokenizer.json of {tokenizer} is {have[:12]}, the worker's was {made_with[:12]}"
    )
