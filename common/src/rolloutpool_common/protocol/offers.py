"""Offers and needs: what a worker has by name, and what a rollout names of it.

In a pool whose workers are of several builds not every worker can run every rollout. Both sides are therefore written
down as names with their kind in front, for example `environment:maze`:

1. A worker's *offer* is all that it has: environments, graders, agents, termination strategies and tools.
2. A rollout's *needs* are what its options name of these. What every build has (`BUILT_IN`) is left out, so that a
   plain rollout needs nothing. While workers of an older release live, a new batch needs this release as well
   (`RELEASE`), so they get none of its rollouts.
3. A worker is *suited* if its offer has everything that the rollout needs.

A set of names is spelled as its digest and the names in order (`spell`). The digest names queues; scripts compare the
names.
"""

import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import orjson

from rolloutpool_common.composition import CAPABILITIES, WorkerFields
from rolloutpool_common.protocol.environments import TOOL_SERVER

BUILT_IN = frozenset(
    {
        "agent:tool_calls",
        "strategy:task_completion",
        *(f"tool:{name}" for name in ("add", "subtract", "multiply", "divide")),
    }
)
"""What every worker has, of whatever build."""
RELEASE = "release:3"
"""Every worker has it that reads the data of this release (`store/schema.py`). `commit.lua` makes it a need."""
PLUGINS = [capability.plugins for capability in CAPABILITIES if capability.plugins is not None]
"""Those of capabilities."""
KINDS = {
    "environment": "environment",
    "agent": "agent",
    "strategy": "termination strategy",
    "tool": "tool",
    "release": "release",
    **{kind.kind: kind.words for kind in PLUGINS},
}
"""Kind, as names have it in front -> in words."""
DIGEST_CHARACTERS = 32
_NAMED = 3
"""Names that a message lists."""


def offer_names(
    *,
    tools: Iterable[str],
    agents: Iterable[str],
    termination_strategies: Iterable[str],
    environments: Iterable[str] = (),
    others: Mapping[str, Iterable[str]] = MappingProxyType({}),
    reads: int,
) -> list[str]:
    """Lists what a worker offers beyond `BUILT_IN`, in order; `others` are plug-ins of capabilities, by kind."""
    named = {
        *(f"release:{schema}" for schema in range(3, reads + 1)),
        *(f"environment:{name}" for name in environments),
        *(f"{kind}:{name}" for kind, names in others.items() for name in names),
        *(f"agent:{name}" for name in agents),
        *(f"strategy:{name}" for name in termination_strategies),
        *(f"tool:{name}" for name in tools),
    }
    return sorted(named - BUILT_IN)


def plugins_of(worker: WorkerFields) -> dict[str, list[str]]:
    """Returns the plug-ins of capabilities that a worker announces, by kind."""
    return {kind.kind: getattr(worker, kind.announced) for kind in PLUGINS}


def needs_of(fields: Mapping[str, Any]) -> list[str]:
    """Lists what a rollout needs beyond `BUILT_IN`, in order."""
    named = {f"tool:{name}" for name in fields.get("tools") or ()}
    if (agent := fields.get("agent")) is not None:
        named.add(f"agent:{agent}")
    for kind in PLUGINS:
        if (choice := fields.get(kind.option)) is not None:
            named.add(f"{kind.kind}:{choice['name']}")
    environment = fields.get("environment")
    # Protocol v1's tool server is no plug-in: every worker can call it, where the operator allows that.
    if environment is not None and not (fields.get("v1") and environment["name"] == TOOL_SERVER):
        named.add(f"environment:{environment['name']}")
    # Protocol v1 ignores a strategy that is unknown, and a hint that makes no sense is none.
    strategy = None if fields.get("v1") else (fields.get("metadata") or {}).get("termination_strategy")
    if isinstance(strategy, str):
        named.add(f"strategy:{strategy}")
    return sorted(named - BUILT_IN)


def spell(names: Iterable[str]) -> str:
    """Writes a set of names as it is stored: its digest, a blank, the names as a JSON list in order."""
    text = orjson.dumps(sorted(names)).decode()
    digest = hashlib.blake2b(text.encode(), digest_size=DIGEST_CHARACTERS // 2).hexdigest()
    return f"{digest} {text}"


def digest_of(spelled: str) -> str:
    """Returns the digest of a set of names that `spell` has written."""
    return spelled[:DIGEST_CHARACTERS]


def missing(needs: Iterable[str], offers: Iterable[Iterable[str]]) -> list[str]:
    """Lists which of the needed names no offer has; all of them where each is had, but no offer has all."""
    needed = list(needs)
    having = [frozenset(offer) for offer in offers]
    nowhere = [name for name in needed if not any(name in offer for offer in having)]
    return nowhere or [name for name in needed if not any(offer.issuperset(needed) for offer in having)]


def shown(names: Iterable[str]) -> str:
    """Writes names for people: `environment 'maze', tool 'search'`; of many, the first ones."""
    listed = list(names)
    words = []
    for name in listed[:_NAMED]:
        kind, _, own = name.partition(":")
        words.append(f"{KINDS.get(kind, kind)} {own[:100]!r}")
    more = len(listed) - _NAMED
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")
