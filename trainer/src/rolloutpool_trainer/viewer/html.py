"""A finished rollout as one HTML file that can be opened anywhere, mailed and kept.

The file loads nothing. It has two parts:

1. The viewer's own modules as one script, and the result as JSON, in which they find what they would ask a pool for.
2. For a browser without JavaScript the same as static markup, in `<noscript>`. All text of a result passes `_text`,
   which makes it printable and escapes it. It is placed as text or in quoted attributes, never in a style or a script.

Its content security policy names styles and script by hash, so that nothing else runs. In the JSON every `<` is written
as an escape, so that no text can end it.
"""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from urllib.parse import quote

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.drift import NO_DRIFT
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult, TurnSummary
from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_common.viewer.assets import viewer_files
from rolloutpool_common.viewer.bundle import bundle
from rolloutpool_trainer.viewer.runs import PROMPT, SAMPLED, SHARED, Decode, Run, SampleView, view_samples
from rolloutpool_trainer.viewer.sanitize import printable, sanitize

_PAGES = files("rolloutpool_trainer.viewer").joinpath("pages")
_PAGE = Template(_PAGES.joinpath("rollout.html").read_text(encoding="utf-8"))
_STYLE = _PAGES.joinpath("rollout.css").read_text(encoding="utf-8")
_VIEWER = {name: content.decode() for name, (content, _) in viewer_files().items() if name.endswith((".js", ".css"))}
_VIEWER_STYLE = _VIEWER["style.css"]
_SCRIPT = bundle(_VIEWER)

LARGE = 5000
"""In a page with more tokens, a browser lays out only what is in view."""

_PROBABILITIES = (0.01, 0.1, 0.5, 0.9)
"""Lower edges of the classes q1 to q4."""
_KINDS = {
    "prompt": "what the sample begins with",
    "sampled": "by the policy",
    "glue": "template and tools",
    "synth_close": "end of a turn that sampled none",
}


def rollout_page(
    result: RolloutResult, decode: Decode | None, *, pieces: TokenPieces | None = None, note: str | None = None
) -> str:
    """Makes the page."""
    views = view_samples(result, decode)
    trained, total = sum(view.trained for view in views), sum(view.total for view in views)
    return _PAGE.substitute(
        policy=f"default-src 'none'; style-src '{_hash(_STYLE)}' '{_hash(_VIEWER_STYLE)}'; "
        f"script-src '{_hash(_SCRIPT)}'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'",
        style=_STYLE,
        viewer_style=_VIEWER_STYLE,
        script=_SCRIPT,
        start=_text(f"#/rollout/{_segment(result.uid)}"),
        answers=_answers(result, pieces),
        note=f'<p class="alert soft mild">{_text(note)}</p>' if note else "",
        title=_text(f"rollout {result.rollout_id}"),
        uid=_text(result.uid),
        name=_text(result.rollout_id),
        chips="".join(_chips(result)),
        trained=f"{trained:,}",
        total=f"{total:,}",
        trained_plain=trained,
        total_plain=max(total, 1),
        size="large" if total > LARGE else "small",
        samples=f"{len(views)} sample{'' if len(views) == 1 else 's'}",
        alerts="".join(_alerts(result, views)),
        facts="".join(f"<dt>{name}</dt><dd>{_text(value)}</dd>" for name, value in _facts(result).items()),
        turns=_turns(result.turns),
        kinds=" ".join(
            f'<span class="run {kind}" data-kind="{kind}"></span> {meaning}' for kind, meaning in _KINDS.items()
        ),
        views="".join(_sample(view) for view in views) or "<p>There are no samples: no turn was proved.</p>",
        messages="".join(_message(message) for message in result.messages) or "<p>There are none.</p>",
    )


def _answers(result: RolloutResult, pieces: TokenPieces | None) -> str:
    """Makes what the viewer's modules would ask a pool for, by path."""
    view = {
        **result.model_dump(include={"uid", "rollout_id", "batch_id", "index", "group", "status", "attempt", "worker"}),
        "turns": len(result.turns),
        "result": result.model_dump(mode="json"),
    }
    answers: dict[str, object] = {f"/v1/rollouts/{_segment(result.uid)}": view}
    made_with = result.tokenizer.get("tokenizer_sha256")
    if pieces is not None and made_with is not None:
        # A vocabulary has 150,000 ids, and a rollout few of them.
        used = {token for sample in result.samples for ids in (sample.prompt_ids, sample.response_ids) for token in ids}
        known = {token: pieces.pieces[token] for token in sorted(used) if 0 <= token < len(pieces.pieces)}
        partial = {token: pieces.partial[token] for token in sorted(used & pieces.partial.keys())}
        answers[f"/v1/tokenizers/{_segment(made_with)}/pieces"] = {"pieces": known, "partial": partial}
    return json.dumps(answers, separators=(",", ":")).replace("<", "\\u003c")


def _segment(text: str) -> str:
    """Writes a part of a path as the browser's `encodeURIComponent` does."""
    return quote(text, safe="!~*'()")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _text(value: object) -> str:
    """Makes text of the page from any value. Tabs are kept, because in a browser they are harmless."""
    return escape("\t".join(map(printable, str(value).split("\t"))))


def _chips(result: RolloutResult) -> Iterable[str]:
    kind = "good" if result.status is RolloutStatus.COMPLETED else "bad"
    yield f'<span class="chip {kind}">{_text(result.status)}</span>'
    yield f'<span class="chip">ended by {_text(result.finish_reason)}</span>'
    yield f'<span class="chip">{_text(result.alignment or "nothing sampled")}</span>'
    for name, value in result.labels.items():
        yield f'<span class="chip">{_text(name)}={_text(value)}</span>'
    for label, count in result.drift.items():
        yield f'<span class="chip drift">≠ {_text(label)} in {count} {"turn" if count == 1 else "turns"}</span>'
    for warning in result.warnings:
        yield f'<span class="chip warning">{_text(warning)}</span>'


def _alerts(result: RolloutResult, views: Sequence[SampleView]) -> Iterable[str]:
    if failure := result.failure:
        at = "" if failure.turn is None else f", turn {failure.turn}"
        yield (
            f'<p class="alert"><strong>{_text(failure.category)}</strong> '
            f"({_text(failure.kind)} at {_text(failure.boundary)}{at}): {_text(failure.message)}</p>"
        )
    if any(run.contradicts for view in views for run in view.runs):
        yield (
            '<p class="alert"><strong>This record contradicts itself:</strong> mask 1 on tokens that were not sampled. '
            "Do not train on it, and report it.</p>"
        )


def _facts(result: RolloutResult) -> dict[str, str]:
    spans = result.spans
    return {
        "batch": f"{result.batch_id} [{result.index}]",
        "group": result.group or "none",
        "worker": f"{result.worker or 'none'}, attempt {result.attempt}",
        "calls": f"{result.num_llm_calls} of the model, {result.num_tool_calls} of tools",
        "tokens": f"{result.response_tokens:,} sampled, longest context {result.max_context_tokens:,}",
        "time": f"{spans.total_ms:,.0f} ms: model {spans.llm_ms:,.0f}, tools {spans.tools_ms:,.0f}, tokenizer "
        f"{spans.tokenizer_ms:,.0f}; queued {spans.queued_ms:,.0f} before",
        "tokenizer": ", ".join(f"{name.removesuffix('_sha256')} {v[:12]}" for name, v in result.tokenizer.items())
        or "none",
    }


def _drift(label: str) -> str:
    return _text(label) if label in NO_DRIFT else f'<b class="drift">≠ {_text(label).replace("_", "_<wbr>")}</b>'


def _turns(turns: Sequence[TurnSummary]) -> str:
    if not turns:
        return ""
    numbers = ("turn", "prompt", "sampled", "mask sent", "tools")
    names = (*numbers, "finish", "stop token", "policy", "drift")
    head = "".join(f"<th{' class=n' if name in numbers else ''}>{name}</th>" for name in names)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="n">{"none" if value is None else f"{value:,}"}</td>'
            for value in (turn.turn, turn.prompt_tokens, turn.sampled_tokens, turn.mask_sent, turn.tool_calls)
        )
        + "".join(f"<td>{_text(v or 'none')}</td>" for v in (turn.finish_reason, turn.stop, turn.policy_version))
        + f"<td>{_drift(turn.drift)}</td></tr>"
        for turn in turns
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _sample(view: SampleView) -> str:
    """Makes a part for each turn: what was added before it, then what the policy sampled."""
    parts: list[str] = []
    waiting: list[Run] = []
    for place, run in enumerate(view.runs):
        waiting.append(run)
        after = view.runs[place + 1] if place + 1 < len(view.runs) else None
        # A turn may have several sampled runs, one after the other; its part ends after the last.
        turn_ends = run.kind == SAMPLED and not (after and after.kind == SAMPLED and after.turn == run.turn)
        if turn_ends or run.kind in (SHARED, PROMPT) or after is None:
            parts.append(_part(waiting, view))
            waiting = []
    of = f"trained {view.trained:,} of {view.total:,} tokens"
    return (
        f'<section class="sample" data-number="{view.number}"><h2>Sample {view.number}<small>{of}</small></h2>'
        f"{''.join(parts)}</section>"
    )


def _part(runs: Sequence[Run], view: SampleView) -> str:
    last = runs[-1]
    tokens = "".join(_run(run) for run in runs)
    if last.kind == SHARED:
        where = f"<b>prompt</b>as sample {view.number - 1}"
        tokens = f"<details><summary>{last.n:,} tokens as in sample {view.number - 1}</summary>{tokens}</details>"
    elif last.kind == PROMPT:
        fork = f'<b class="drift">↳ fork of {view.number - 1}</b> {_drift(view.drift or "")}' if view.fork else ""
        where = f"<b>prompt</b>{last.n:,} tokens {fork}"
    else:
        record = next((run.record for run in runs if run.record is not None), None)
        sampled = sum(run.n for run in runs if run.kind == SAMPLED)
        drift = "" if record is None or record.drift in NO_DRIFT else f"<br>{_drift(record.drift)}"
        policy = "" if last.policy_version is None else f"<br>policy {_text(last.policy_version)}"
        where = f"<b>{'no turn' if last.turn is None else f'turn {last.turn}'}</b>{sampled:,} sampled{policy}{drift}"
    return f'<div class="part"><div class="where">{where}</div><div class="tokens">{tokens}</div></div>'


def _run(run: Run) -> str:
    # Only known kinds become a class: another word of the record could look like a mark.
    classes = ["run", *([run.kind] if run.kind in _KINDS else []), *(["trained"] if run.trained else [])]
    said = [run.kind, f"mask {int(run.trained)}", f"{run.n:,} tokens"]
    data = {"kind": run.kind, "mask": int(run.trained), "start": run.start}
    if run.turn is not None:
        data["turn"] = run.turn
        said.append(f"turn {run.turn}")
    if run.policy_version is not None:
        data["policy"] = run.policy_version
        said.append(f"policy {run.policy_version}")
    if run.contradicts:
        classes.append("contradicts")
    data["ids"] = " ".join(",".join(map(str, piece.ids)) for piece in run.pieces)
    if run.trained:
        data["logprobs"] = " ".join(",".join(f"{value:.4g}" for value in piece.logprobs) for piece in run.pieces)
    attributes = "".join(f' data-{name}="{_text(value)}"' for name, value in data.items())
    pieces = "".join(
        f"<i{_probability(piece.logprobs)}>{escape(sanitize(piece.text)) or '␀'}</i>" for piece in run.pieces
    )
    return f'<span class="{" ".join(classes)}" title="{_text(", ".join(said))}"{attributes}>{pieces}</span>'


def _probability(logprobs: Sequence[float]) -> str:
    if not logprobs:
        return ""
    # A piece may have several tokens, whose probabilities multiply. Rounding may make a sum greater than 0.
    chance = math.exp(min(sum(logprobs), 0.0))
    return f" class=q{sum(chance >= edge for edge in _PROBABILITIES)}"


def _message(message: Message) -> str:
    content = message.content
    said = content if isinstance(content, str) else "" if content is None else str(content)
    calls = [f"calls {call.function.name} {call.function.arguments}" for call in message.tool_calls or ()]
    body = "".join(f"<pre>{_text(text)}</pre>" for text in (said, *calls) if text)
    about = f"answers {message.tool_call_id}" if message.tool_call_id else f"{len(said):,} characters"
    return (
        f'<details class="message" open><summary>{_text(message.role)} <small>{_text(about)}</small></summary>'
        f"{body}</details>"
    )
