"""`rolloutpool check-tokenizer` and `rolloutpool conformance`: find out before training what a tokenizer does.

Also loads tokenizers for other commands, without the advice that transformers prints when PyTorch is missing.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpool_trainer.cli import options

if TYPE_CHECKING:
    from rolloutpool_common.rendering import ChatTokenizer


def check_tokenizer(
    name: Annotated[str, typer.Argument(metavar="NAME_OR_DIR", help="A hub name or a directory.")],
    revision: Annotated[str | None, typer.Option(help="Commit, branch or tag of a hub name.")] = None,
    tools: Annotated[bool, typer.Option(help="Whether your rollouts have tools.")] = True,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="CONSTRUCT", help="A construct that your rollouts do not meet; repeat it."),
    ] = None,
    explain: Annotated[bool, typer.Option(help="Show ours and the template's text where they differ first.")] = False,
    as_json: options.Json = False,
) -> None:
    """Report what a tokenizer and its chat template do to token ids.

    Exit code: 0 nothing wrong, nothing refused that your rollouts meet; 1 refused, or it cannot be loaded; 2 wrong
    usage; 3 the pool writes other ids than the template.
    """
    from rolloutpool_common.errors import TokenizerLoadFailed

    tokenizer: ChatTokenizer | None = None
    try:
        tokenizer = load(name, revision)
    except TokenizerLoadFailed as error:
        reason = str(error)
    from rolloutpool_common.rendering.checks.report import TokenizerReport, examine
    from rolloutpool_trainer.cli import tokenizer_report

    accepted = frozenset(accept or ())
    if tokenizer is None:
        report = TokenizerReport.unusable(name, reason)
    else:
        report = examine(tokenizer)
        unknown = accepted - {finding.name for finding in report.constructs}
        if unknown:
            names = ", ".join(finding.name for finding in report.constructs)
            raise typer.BadParameter(f"no construct {min(unknown)!r}; there are: {names}", param_hint="--accept")
    if as_json:
        typer.echo(tokenizer_report.as_json(report, tools=tools, accepted=accepted))
    else:
        tokenizer_report.show(report, tools=tools, accepted=accepted)
        if explain and tokenizer is not None:
            tokenizer_report.explain(report, tokenizer)
    if code := tokenizer_report.exit_code(report, tools=tools, accepted=accepted):
        raise typer.Exit(code)


def conformance(
    cases: Annotated[Path, typer.Argument(metavar="CASES.json", help="A case file in the golden format.")],
    tokenizers: Annotated[Path, typer.Option(help="The directory that holds a directory for each tokenizer.")],
    as_json: options.Json = False,
) -> None:
    """Run a file of golden cases against this installation; exit code 1 if one fails."""
    from rolloutpool_trainer.cli import console

    try:
        document = json.loads(cases.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{cases}: {error}", param_hint="CASES.json") from error
    if not isinstance(document, dict) or not (document.get("cases") or document.get("multi_turn")):
        raise typer.BadParameter(f"{cases} holds neither `cases` nor `multi_turn`.", param_hint="CASES.json")
    from rolloutpool_common.rendering.checks.conformance import run
    from rolloutpool_trainer.cli.documents import CaseOutcome, ConformanceDocument

    found = [CaseOutcome(name=outcome.name, faults=list(outcome.faults)) for outcome in run(document, tokenizers)]
    failed = [outcome for outcome in found if outcome.faults]
    passed = len(found) - len(failed)
    if as_json:
        console.document(ConformanceDocument(passed=passed, failed=len(failed), cases=found))
    else:
        for outcome in failed:
            console.line(f"FAILED {outcome.name}: {'; '.join(outcome.faults)}")
        console.line(f"{passed} passed, {len(failed)} failed")
    if failed:
        raise typer.Exit(1)


def load(name: str, revision: str | None = None) -> "ChatTokenizer":
    """Loads a tokenizer, which takes seconds the first time."""
    from rolloutpool_common.rendering import load_tokenizer

    return load_tokenizer(name, revision)
