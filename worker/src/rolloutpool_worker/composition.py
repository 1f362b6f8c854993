"""The capabilities of this worker, in the order of their hooks. No other module here names one."""

from rolloutpool_worker.capabilities.engines.opened import WorkerEngines
from rolloutpool_worker.capabilities.foreign_environments.opened import WorkerForeignEnvironments
from rolloutpool_worker.capabilities.forks.opened import WorkerForking
from rolloutpool_worker.capabilities.grading.opened import WorkerGrading
from rolloutpool_worker.capabilities.harness.opened import WorkerHarness
from rolloutpool_worker.capabilities.osmosis.opened import WorkerOsmosis
from rolloutpool_worker.capabilities.runs.opened import WorkerRuns
from rolloutpool_worker.capabilities.tracing.opened import WorkerTracing
from rolloutpool_worker.capabilities.webhooks.opened import WorkerWebhooks
from rolloutpool_worker.capability import WorkerCapability

CAPABILITIES: tuple[WorkerCapability, ...] = (
    *(WorkerEngines(), WorkerRuns(), WorkerHarness(), WorkerForking()),
    *(WorkerGrading(), WorkerWebhooks(), WorkerOsmosis(), WorkerTracing(), WorkerForeignEnvironments()),
)
PLUGINS = {kind: plugins for capability in CAPABILITIES for kind, plugins in capability.plugins.items()}
"""Those that capabilities bring, by kind."""
