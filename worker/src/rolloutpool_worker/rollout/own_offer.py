"""What this process offers to rollouts, beside what every build has: its plug-ins by name (`protocol/offers.py`)."""

from rolloutpool_common.protocol.offers import digest_of, offer_names, spell
from rolloutpool_worker.agents.termination import TERMINATION
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.environments import ENVIRONMENTS
from rolloutpool_worker.graders import GRADERS
from rolloutpool_worker.tools import TOOLS

__all__ = ["own_digest", "own_offer"]


def own_offer() -> list[str]:
    """Lists what this process offers, in order, by the names under which it announces it."""
    return offer_names(
        tools=[tool.definition.function.name for tool in TOOLS.values()],
        agents=AGENTS.names(),
        termination_strategies=TERMINATION.names(),
        environments=ENVIRONMENTS.names(),
        graders=GRADERS.names(),
    )


def own_digest() -> str:
    """Returns the digest that names this process's own queues; empty where it offers nothing."""
    offer = own_offer()
    return digest_of(spell(offer)) if offer else ""
