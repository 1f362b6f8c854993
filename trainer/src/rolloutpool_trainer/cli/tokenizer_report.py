"""Shows what `rolloutpool check-tokenizer` found: as a table, as JSON, and side by side where two texts differ.

Import it after a tokenizer was loaded, because it needs the libraries that render.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass

from pydantic import TypeAdapter
from rich.text import Text

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.rendering.checks.constructs import Met
from rolloutpool_common.rendering.checks.exactness import ConstructFinding, ConstructVerdict
from rolloutpool_common.rendering.checks.report import TokenizerReport, TokenizerVerdict
from rolloutpool_trainer.cli import console
from rolloutpool_trainer.viewer.sanitize import printable
from rolloutpool_trainer.viewer.side_by_side import ids_side_by_side, texts_side_by_side

REFUSED = 1
WRONG = 3
_STYLES = {
    TokenizerVerdict.EXACT: "bold green",
    TokenizerVerdict.KEEPING: "bold yellow",
    TokenizerVerdict.REFUSE: "bold red",
    TokenizerVerdict.WRONG: "bold red",
}
_CONSTRUCT_STYLES = {
    ConstructVerdict.EXACT: "",
    ConstructVerdict.REFUSED: "yellow",
    ConstructVerdict.WRONG: "bold red",
    ConstructVerdict.UNCHECKED: "dim",
}


@dataclass(frozen=True, slots=True)
class TokenizerCheck:
    """The document that `--json` prints."""

    exit_code: int
    """Of the command: 0, 1 or 3."""
    refused: list[str]
    """Constructs that are refused although the rollouts meet them."""
    wrong: list[str]
    """Constructs that are wrong."""
    report: TokenizerReport


def exit_code(report: TokenizerReport, *, tools: bool, accepted: Collection[str]) -> int:
    """Returns the exit code of the command."""
    if report.wrong(tools=tools):
        return WRONG
    return REFUSED if not report.constructs or report.refused(tools=tools, accepted=accepted) else 0


def as_json(report: TokenizerReport, *, tools: bool, accepted: Collection[str]) -> str:
    """Writes the report as JSON in ASCII, which no terminal obeys; the arguments are those of `exit_code`."""
    check = TokenizerCheck(
        exit_code=exit_code(report, tools=tools, accepted=accepted),
        refused=[finding.name for finding in report.refused(tools=tools, accepted=accepted)],
        wrong=[finding.name for finding in report.wrong(tools=tools)],
        report=report,
    )
    return json.dumps(TypeAdapter(TokenizerCheck).dump_python(check, mode="json"), indent=2)


def json_schema() -> dict[str, object]:
    """Returns the JSON schema of what `as_json` writes."""
    return TypeAdapter(TokenizerCheck).json_schema(mode="serialization")


def show(report: TokenizerReport, *, tools: bool, accepted: Collection[str]) -> None:
    """Prints the report; the arguments are those of `exit_code`."""
    rows: dict[str, object] = {
        finding.probe: Text(printable(finding.detail), style="" if finding.fine else "yellow")
        for finding in report.findings
    }
    rows |= {finding.name: _verdict_of(finding, accepted) for finding in report.constructs}
    rows["verdict"] = Text(report.verdict, style=_STYLES[report.verdict])
    if report.reason:
        rows["reason"] = report.reason
    if report.without_tools is not report.verdict:
        rows["verdict without tools"] = Text(report.without_tools, style=_STYLES[report.without_tools])
    wrong, refused = report.wrong(tools=tools), report.refused(tools=tools, accepted=accepted)
    if wrong:
        rows["wrong"] = Text(", ".join(finding.name for finding in wrong), style="bold red")
    if refused:
        rows["refused, and met"] = Text(", ".join(finding.name for finding in refused), style="bold yellow")
    console.pairs(rows)


def _verdict_of(finding: ConstructFinding, accepted: Collection[str]) -> Text:
    notes = f" (exact in {finding.exact} of {finding.tried} cases)" if finding.exact < finding.tried > 1 else ""
    if finding.verdict is ConstructVerdict.REFUSED and (finding.met is Met.RARELY or finding.name in accepted):
        notes += " (accepted)" if finding.name in accepted else " (rarely met)"
    reason = f": {printable(finding.reason)}" if finding.reason else ""
    return Text(f"{finding.verdict}{reason}{notes}", style=_CONSTRUCT_STYLES[finding.verdict])


def explain(report: TokenizerReport, tokenizer: ChatTokenizer) -> None:
    """Prints, for each construct that is wrong or refused, its smallest case and both texts at the first difference."""
    failing = [finding for finding in report.constructs if finding.failing is not None]
    if not failing:
        console.line()
        console.line("Nothing differs from the template's own render, so there is nothing to explain.")
    for finding in failing:
        case = finding.failing
        if case is None:
            continue
        console.line()
        console.line(f"{finding.name}: {finding.verdict}", style=_CONSTRUCT_STYLES[finding.verdict])
        console.line(f"  {finding.reason}")
        console.line(f"  case: {case.case}")
        for message in case.messages:
            console.line(f"  {json.dumps(message, ensure_ascii=False)}")
        if case.sampled:
            console.line(f"  the policy sampled: … {case.sampled!r}")
        if finding.verdict is not ConstructVerdict.WRONG:
            continue
        for text, differs in texts_side_by_side(case.ours, case.template):
            console.line(text, style="yellow" if differs else "")
        for text, differs in ids_side_by_side(
            case.ours_ids, case.template_ids, lambda token: tokenizer.decode([token])
        ):
            console.line(text, style="yellow" if differs else "")
