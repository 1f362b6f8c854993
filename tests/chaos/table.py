"""The campaign's result for people."""

from collections import Counter
from statistics import quantiles

from tests.chaos.recovery import HOST_CUT_OFF, HOST_KILLED, PROCESS, SEVERAL, Recovery
from tests.chaos.verdict import Verdict

ENOUGH = 3
"""Of the campaign's five workers."""


def show(verdict: Verdict) -> str:
    """As Markdown tables, the promises first."""
    sessions = verdict.sessions
    share = verdict.resumed / verdict.submitted if verdict.submitted else 0.0
    rows = [
        ("submitted", verdict.submitted),
        ("completed", verdict.completed),
        (
            "failed as they must (trainers that lie, are deaf, forget, or may not be asked again; broken graders; "
            "lost or broken environments)",
            verdict.failed_as_expected,
        ),
        ("**lost** (accepted and not completed)", len(verdict.lost)),
        ("**delivered twice**", len(verdict.delivered_twice)),
        ("**turns sampled twice**", len(verdict.sampled_twice)),
        ("**wrong masks**", len(verdict.wrong_masks)),
        (f"**wrong weight versions**, of {verdict.engine_samples} samples of engines", len(verdict.wrong_versions)),
        (f"**wrong grades**, of {verdict.graded} graded", len(verdict.wrong_grades)),
        (f"**wrong answers of environments**, of {sessions.played} completed", len(sessions.wrong)),
        ("**calls in another attempt's session**", len(sessions.touched)),
        ("**calls made twice where at most once is declared**", len(sessions.twice)),
        (f"**sessions that a living worker left open**, of {sessions.opened}", len(sessions.left)),
        ("sessions that got an earlier one's calls again, and answered alike", sessions.restored),
        ("sessions of dead workers that are open at the end", sessions.of_the_dead),
        ("requests of replaced attempts, which the environments refused", sessions.refused),
        ("**results of replaced workers**", len(verdict.written_by_replaced)),
        ("**false deaths** (declared dead, and its process lived)", len(verdict.deaths.false)),
        ("declared dead, and its process had ended", verdict.deaths.true),
        ("declared dead after the campaign had kept it silent for longer than the limit", verdict.deaths.beyond_limit),
        ("declared dead while the campaign refused its connections to Redis", verdict.deaths.cut_off),
        (
            "declared dead, never seen by the campaign / not in any log",
            f"{verdict.deaths.unknown} / {verdict.deaths.unlogged}",
        ),
        ("**open and nowhere**, of these put there by the campaign", f"{verdict.strays} / {verdict.injected}"),
        ("resumed at least once", f"{verdict.resumed} ({share:.0%})"),
        ("calls of replaced workers, none of which counted", verdict.asked_by_replaced),
        ("turns sampled again by trainers that forgot them", verdict.sampled_after_loss),
        ("turns of engines over a weight update", verdict.over_updates),
        ("turns that engines sampled again, because their reply was lost", verdict.resampled),
        ("pushed again under the same webhook-id", verdict.pushed_again),
        *(
            [("replayed and **not the same**", f"{verdict.replayed} / {len(verdict.not_reproduced)}")]
            * bool(verdict.replayed)
        ),
        ("seconds", f"{verdict.seconds:.0f}"),
    ]
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += _recoveries(verdict.recoveries)
    lines[-1:] = [f"| (between two calls of a rollout that lost nobody) | | {_spread(verdict.pauses)} | |", ""]
    lines += ["| kill -9 | processes | with rollouts in flight |", "|---|---|---|"]
    lines += [f"| {kind} | {count} | {verdict.kills_that_hit[kind]} |" for kind, count in sorted(verdict.kills.items())]
    lines += [f"| all | {verdict.kills.total()} | {verdict.kills_that_hit.total()} |", ""]
    lines += _counts("ended at failpoint", verdict.failpoints)
    lines += _counts("other fault", verdict.faults)
    lines += _counts("failure, by trainer", verdict.failures)
    lines += [f"left out: {why}" for why in verdict.skipped]
    lines += [f"false death: {what}" for what in verdict.deaths.false[:20]]
    for name in (
        *("lost", "delivered_twice", "sampled_twice", "wrong_masks", "wrong_versions", "wrong_grades"),
        *("written_by_replaced", "not_reproduced"),
    ):
        lines += [f"{name}: {what}" for what in getattr(verdict, name)[:20]]
    for name in ("wrong", "touched", "twice", "left"):
        lines += [f"sessions, {name}: {what}" for what in getattr(sessions, name)[:20]]
    return "\n".join(lines)


def _counts(title: str, counts: Counter[str]) -> list[str]:
    return [f"| {title} | times |", "|---|---|", *(f"| {name} | {n} |" for name, n in sorted(counts.items())), ""]


def _recoveries(found: list[Recovery]) -> list[str]:
    """A row for each kind of death; the last column has nothing subtracted."""
    lines = ["| recovery from | rollouts | s, p50 / p95 / max | with the campaign's own pauses |", "|---|---|---|---|"]
    kinds: list[tuple[str, list[Recovery]]] = [
        ("the death of a process", [one for one in found if one.kind == PROCESS]),
        ("that, three or more workers left", [one for one in found if one.kind == PROCESS and one.left >= ENOUGH]),
        ("that, fewer left", [one for one in found if one.kind == PROCESS and one.left < ENOUGH]),
        ("that, nothing else meanwhile", [one for one in found if one.kind == PROCESS and one.undisturbed]),
        ("a lost host: parent and children killed", [one for one in found if one.kind == HOST_KILLED]),
        ("a lost host: cut off from Redis", [one for one in found if one.kind == HOST_CUT_OFF]),
        ("several in a row", [one for one in found if one.kind == SEVERAL]),
        ("any, as a suspect with company", [one for one in found if one.suspect == "with company"]),
        ("any, as a suspect alone", [one for one in found if one.suspect == "alone"]),
    ]
    for name, some in kinds:
        own, raw = [one.seconds for one in some], [one.raw_seconds for one in some]
        lines.append(f"| {name} | {len(some)} | {_spread(own)} | {_spread(raw)} |")
    return [*lines, ""]


def _spread(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return " / ".join(f"{value:.1f}" for value in seconds) or "none"
    cuts = quantiles(seconds, n=20, method="inclusive")
    return f"{cuts[9]:.1f} / {cuts[18]:.1f} / {max(seconds):.1f}"
