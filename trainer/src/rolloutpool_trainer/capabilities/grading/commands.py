"""`rolloutpool groups` and `rolloutpool regrade`."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpool_trainer.cli import options

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.grading.annotating import GroupStatistics


def regrade(
    batch_id: options.BatchId,
    grader: Annotated[str, typer.Option(help="The grader, as `rolloutpool workers --json` lists it.")],
    grader_options: Annotated[str, typer.Option("--options", help="Its options, as JSON.")] = "null",
    rollout: Annotated[
        list[str] | None, typer.Option(help="Uid; may be repeated. Without it, the whole batch.")
    ] = None,
    annotation: Annotated[str, typer.Option(help="The name under which rewards are kept.")] = "reward",
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Grade ended rollouts again, without sampling; grades become annotations, and results stay as they are."""
    from rolloutpool_trainer.cli import console

    try:
        given = json.loads(grader_options)
    except ValueError as error:
        raise typer.BadParameter(f"--options is not JSON: {error}") from None
    with console.client(url, api_key) as client:
        done = client.batch(batch_id).regrade(grader, given, rollouts=rollout, annotation=annotation)
    if as_json:
        console.document(done)
    else:
        console.line(f"graded {done.graded} of {done.total}, annotation {done.annotation}; left out {done.left_out}")
        for category, count in done.failures.items():
            console.line(f"FAIL {category}: {count}")
    if done.failures:
        raise typer.Exit(1)


def groups(
    batch_id: options.BatchId,
    of: Annotated[str, typer.Option(help="`reward`, or the annotation whose spread is shown.")] = "reward",
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """List the groups of a batch: size, length, spread of rewards, and the verdicts of its group policy."""
    from rolloutpool_trainer.capabilities.grading.documents import GroupsDocument
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        batch = client.batch(batch_id)
        statistics, verdicts = batch.group_statistics(of), batch.groups()
    if as_json:
        console.document(GroupsDocument(batch_id=batch_id, of=of, statistics=statistics, verdicts=verdicts))
        return
    if not statistics:
        console.line("none")
        return
    known = {group.group: group.verdict for group in verdicts}
    columns = ("group", "size", "ended", "completed", "tokens", of, "deviation", "min", "max", "spread", "verdict")
    console.table(columns, [(*_group_row(group), known.get(group.group, "-")) for group in statistics], lines=False)


def _group_row(group: "GroupStatistics") -> tuple[object, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.3g}"

    spread = "ZERO" if group.zero_spread else "-" if group.annotated < 2 else "yes"
    return (
        group.group,
        group.size,
        group.ended,
        group.completed,
        number(group.sampled_tokens),
        *map(number, (group.mean, group.deviation, group.min, group.max)),
        spread,
    )
