"""The campaign's result for people."""

from collections import Counter
from statistics import quantiles

from tests.chaos.verdict import Verdict

__all__ = ["show"]


def show(verdict: Verdict) -> str:
    """As Markdown tables, the promises first."""
    share = verdict.resumed / verdict.submitted if verdict.submitted else 0.0
    rows = [
        ("submitted", verdict.submitted),
        ("completed", verdict.completed),
        ("failed as they must (trainers that lie, are deaf or forget)", verdict.failed_as_expected),
        ("**lost** (accepted and not completed)", len(verdict.lost)),
        ("**delivered twice**", len(verdict.delivered_twice)),
        ("**turns sampled twice**", len(verdict.sampled_twice)),
        ("**wrong masks**", len(verdict.wrong_masks)),
        ("resumed at least once", f"{verdict.resumed} ({share:.0%})"),
        ("recovery from a worker's death, s (p50 / p95 / max)", _recovery(verdict.recovery_s)),
        ("turns sampled again by trainers that forgot them", verdict.sampled_after_loss),
        ("pushed again under the same webhook-id", verdict.pushed_again),
        ("seconds", f"{verdict.seconds:.0f}"),
    ]
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += ["| kill -9 | processes | with rollouts in flight |", "|---|---|---|"]
    lines += [f"| {kind} | {count} | {verdict.kills_that_hit[kind]} |" for kind, count in sorted(verdict.kills.items())]
    lines += [f"| all | {verdict.kills.total()} | {verdict.kills_that_hit.total()} |", ""]
    lines += _counts("ended at failpoint", verdict.failpoints)
    lines += _counts("other fault", verdict.faults)
    lines += _counts("failure, by trainer", verdict.failures)
    for name in ("lost", "delivered_twice", "sampled_twice", "wrong_masks"):
        lines += [f"{name}: {what}" for what in getattr(verdict, name)[:20]]
    return "\n".join(lines)


def _counts(title: str, counts: Counter[str]) -> list[str]:
    return [f"| {title} | times |", "|---|---|", *(f"| {name} | {n} |" for name, n in sorted(counts.items())), ""]


def _recovery(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return " / ".join(f"{value:.1f}" for value in seconds) or "none"
    cuts = quantiles(seconds, n=20)
    return f"{cuts[9]:.1f} / {cuts[18]:.1f} / {max(seconds):.1f}"
