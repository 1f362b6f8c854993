"""Says what is measured of graders."""

from rolloutpool_common.process.metrics import LONG, Calls, Histogram, Level

GRADER_OUTCOMES = ("ok", "error", "invalid", "options", "late")
"""`invalid`: it answered with no grade. `options`: the rollout's options are wrong. `late`: the deadline passed."""
GRADER_CALLS = Histogram(
    "grader_call_seconds",
    "Calls of graders, by how they ended.",
    "grader",
    "outcome",
    buckets=LONG,
    calls=Calls("grader_calls", "Calls of graders.", GRADER_OUTCOMES),
)
IN_GRADER = Level("grader", phase=True)
