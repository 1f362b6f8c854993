"""Says what is measured of the versions of runs."""

from rolloutpool_common.process.metrics import VERSIONS, Histogram, Largest

STALENESS = Histogram(
    "rollout_staleness",
    "How many versions a completed rollout's run was ahead of the oldest weights that sampled it, at its end.",
    buckets=VERSIONS,
    known=[()],
)
RUNNING_LAG = Largest(
    "running_lag",
    "running_version_lag",
    "How far the oldest weights that sampled a running rollout are behind its run's version, the largest of all.",
)
