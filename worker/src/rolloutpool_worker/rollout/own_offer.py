"""This process's offer to rollouts: its release, and its plug-ins by name (`protocol/offers.py`)."""

from rolloutpool_common.protocol.offers import digest_of, offer_names, spell
from rolloutpool_common.store.schema import SCHEMA_VERSION
from rolloutpool_worker.agents.termination import TERMINATION
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.composition import PLUGINS
from rolloutpool_worker.environments import ENVIRONMENTS
from rolloutpool_worker.tools import TOOLS


def own_offer() -> list[str]:
    """Lists what this process offers, in order, by the names under which it announces it."""
    return offer_names(
        tools=[tool.definition.function.name for tool in TOOLS.values()],
        agents=AGENTS.names(),
        termination_strategies=TERMINATION.names(),
        environments=ENVIRONMENTS.names(),
        others={kind: plugins.names() for kind, plugins in PLUGINS.items()},
        reads=SCHEMA_VERSION,
    )


def own_digest() -> str:
    """Returns the digest that names this process's own queues."""
    return digest_of(spell(own_offer()))
