"""What must hold for a batch and no model can see: known names, unique ids, complete groups, a tokenizer, an endpoint.

A `Check` is shown a document once: first what surrounds the rollouts, then each rollout, then the end. It looks at the
raw values, so that it finds its faults whatever else is wrong with the document. It ignores values of a wrong type:
pydantic reports those.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_common.protocol.batch import BatchRequest, RolloutItem
from rolloutpool_common.protocol.checks import LONGEST_ID
from rolloutpool_common.protocol.endpoint import EndpointProtocol
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.protocol.limits import MAX_ROLLOUTS
from rolloutpool_common.protocol.offers import PLUGINS, plugins_of
from rolloutpool_common.protocol.workers import Worker

HINTS = ("max_assistant_turns", "max_user_turns", "budget_tokens")

Place = tuple[str | int, ...]


def as_object(value: Any) -> dict[str, Any]:
    """Returns a JSON object as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def expanded_ids(rollout_id: str, n: int) -> list[str]:
    """Names the `n` rollouts of an item: `x` stays `x` for one, else `x-0`, `x-1` and so on."""
    return [rollout_id] if n == 1 else [f"{rollout_id}-{i}" for i in range(n)]


class Check:
    """One thing that must hold for a document, and the faults that were found."""

    def __init__(self) -> None:
        self.faults = FaultList()

    def see_document(self, document: dict[str, Any]) -> None:
        """Looks at what surrounds the rollouts; called once, before the first rollout."""

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Looks at one rollout."""

    def see_end(self) -> None:
        """Adds the faults that only all rollouts together show; called once, after the last rollout."""


@dataclass(frozen=True)
class Catalog:
    """Names of what the live workers can run: a name is known if any of them has it."""

    tools: frozenset[str]
    agents: frozenset[str]
    termination_strategies: frozenset[str]
    environments: frozenset[str] = frozenset()
    others: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Plug-ins of capabilities, by kind."""
    own_tokenizers: frozenset[str] | None = None
    """Those that workers were started with, by name or `name@revision`; None where one does not say."""

    @classmethod
    def of(cls, workers: Sequence[Worker]) -> "Catalog | None":
        """Collects what any live worker announces."""
        live = [worker for worker in workers if worker.alive]
        if not live:
            return None
        started_with = [worker.own_tokenizers for worker in live]
        return cls(
            own_tokenizers=None
            if None in started_with
            else frozenset(name for names in started_with for name in names or ()),
            tools=frozenset(name for worker in live for name in worker.tools),
            agents=frozenset(name for worker in live for name in worker.agents),
            termination_strategies=frozenset(name for worker in live for name in worker.termination_strategies),
            environments=frozenset(name for worker in live for name in worker.environments),
            others={
                kind: frozenset(names)
                for kind in (plugin.kind for plugin in PLUGINS)
                if (names := {name for worker in live for name in plugins_of(worker)[kind]})
            },
        )


class NameCheck(Check):
    """Agents, tools, environments and other plug-ins are known to a live worker, and hints can be honoured."""

    def __init__(self, catalog: Catalog | None) -> None:
        super().__init__()
        self._catalog = catalog

    def see_document(self, document: dict[str, Any]) -> None:
        """Checks the names in `defaults`."""
        self._check(as_object(document.get("defaults")), ("defaults",))

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Checks the rollout's own names."""
        self._check(as_object(raw), ("rollouts", index))

    def _check(self, options: dict[str, Any], at: Place) -> None:
        metadata = as_object(options.get("metadata"))
        for hint in HINTS:
            value = metadata.get(hint)
            # In Python True is an int and equals 1; in JSON it is no number.
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                self.faults.add(path(*at, "metadata", hint), "must be a positive integer, or absent")
        strategy = metadata.get("termination_strategy")
        if strategy is not None and not isinstance(strategy, str):
            self.faults.add(path(*at, "metadata", "termination_strategy"), "must be a string, or absent")
        # What follows needs a live worker; the types above are wrong whatever the workers have.
        if self._catalog is None:
            return
        strategies = self._catalog.termination_strategies
        self._check_known("termination strategy", strategy, strategies, (*at, "metadata", "termination_strategy"))
        self._check_known("agent", options.get("agent"), self._catalog.agents, (*at, "agent"))
        environment = as_object(options.get("environment")).get("name")
        self._check_known("environment", environment, self._catalog.environments, (*at, "environment", "name"))
        for plugin in PLUGINS:
            name, known = as_object(options.get(plugin.option)).get("name"), self._catalog.others.get(plugin.kind)
            self._check_known(plugin.words, name, known or frozenset(), (*at, plugin.option, "name"))
        tools = options.get("tools")
        for position, tool in enumerate(tools if isinstance(tools, list) else ()):
            self._check_known("tool", tool, self._catalog.tools, (*at, "tools", position))

    def _check_known(self, what: str, name: Any, known: frozenset[str], at: Place) -> None:
        if isinstance(name, str) and name not in known:
            # The caller's text is cut, because a fault's message must still have room for the names that are known.
            having = ", ".join(sorted(known)) or "none"
            self.faults.add(path(*at), f"no live worker has the {what} {name[:100]!r}; they have: {having}")


class IdCheck(Check):
    """The ids, with `n` expanded, are unique and short enough, and not too many."""

    def __init__(self) -> None:
        super().__init__()
        self._total = 0
        self._first: dict[str, int] = {}

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Compares the rollout's ids with those of the rollouts before it."""
        # A rollout that the model refused may have an `n` of any size or type. It counts as one.
        n = 1 if item is None else item.n
        self._total += n
        name = as_object(raw).get("rollout_id")
        if not isinstance(name, str):
            return
        # `-9` is shorter than `-10`, so the last id is the longest one.
        if n > 1 and len(name) + len(f"-{n - 1}") > LONGEST_ID:
            self._add(index, f"has no room for -{n - 1}: {LONGEST_ID} characters")
        for rollout_id in expanded_ids(name, n):
            # The ids of one item differ among each other, so the same index means that the id was new.
            first = self._first.setdefault(rollout_id, index)
            if first != index:
                shown = rollout_id[:LONGEST_ID]
                self._add(index, f"{shown!r} is also an id of rollouts[{first}]; ids are unique in a batch")

    def _add(self, index: int, text: str) -> None:
        self.faults.add(path("rollouts", index, "rollout_id"), text)

    def see_end(self) -> None:
        """Compares the number of rollouts, with `n` counted, with the limit of a batch."""
        if self._total > MAX_ROLLOUTS:
            text = f"{self._total} rollouts with `n` counted, at most {MAX_ROLLOUTS}; send several batches"
            self.faults.add("rollouts", text)


class GroupCheck(Check):
    """Every group has as many rollouts as the group policy demands."""

    def __init__(self, policy: GroupPolicy) -> None:
        super().__init__()
        self._policy = policy
        self._sizes: Counter[str] = Counter()
        self._first: dict[str, int] = {}

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Counts the rollout, `n` times, with its group; single rollouts have none."""
        if item is None or (item.group is None and item.n == 1):
            return
        # An item with `n` above 1 and no name is a group of its own.
        name = item.group or f"rollouts[{index}]"
        self._sizes[name] += item.n
        self._first.setdefault(name, index)

    def see_end(self) -> None:
        """Compares each group's size with the `size` and `min_usable` of the policy."""
        policy = self._policy
        for name, size in self._sizes.items():
            # One fault per group, at its first rollout: the other rollouts are no more wrong than that one.
            at = f"rollouts[{self._first[name]}].group"
            has = f"group {name[:64]!r} has {size} rollouts"
            if policy.size is not None and size != policy.size:
                self.faults.add(at, f"{has}, group.size says {policy.size}")
            elif size < policy.min_usable:
                self.faults.add(at, f"{has}, fewer than group.min_usable {policy.min_usable}")


class AttachmentCheck(Check):
    """Only engines are asked for attachments."""

    def __init__(self, batch: BatchRequest) -> None:
        super().__init__()
        self._endpoints = ChosenEndpoints(batch)

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Compares what is asked for with the protocol of the endpoint."""
        if item is None or not self._endpoints.of(item, "attach"):
            return
        if self._endpoints.of(item, "protocol") is EndpointProtocol.CALLBACK:
            self.faults.add(path("rollouts", index), "`attach` needs an engine: set `protocol` to `vllm` or `sglang`")


class ChosenEndpoints:
    """The options of a rollout's endpoint, as `submission` decides them: those of `trainer` hold at its own only."""

    def __init__(self, batch: BatchRequest) -> None:
        self._trainer = batch.trainer
        self._defaults = batch.defaults

    def of(self, item: RolloutItem, name: str) -> Any:
        """Returns the value of a field of `EndpointOptions`."""
        trainer = self._trainer
        if name in item.model_fields_set:
            return getattr(item, name)
        if trainer is not None and item.server_url is None and name in trainer.model_fields_set:
            return getattr(trainer, name)
        return getattr(self._defaults, name)


class CompleteCheck(Check):
    """Every rollout has a tokenizer and an endpoint: its own, the defaults', or one of the trainer's."""

    def see_document(self, document: dict[str, Any]) -> None:
        """Notes whether `defaults` or `trainer` give a tokenizer and an endpoint to all rollouts."""
        defaults = as_object(document.get("defaults"))
        has_trainer, has_url = document.get("trainer") is not None, defaults.get("server_url") is not None
        self._has_tokenizer = defaults.get("tokenizer_name") is not None
        self._has_endpoint = has_trainer or has_url
        if has_trainer and has_url:
            self.faults.add("trainer", "`defaults.server_url` would win over it everywhere; keep one of the two")

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Looks for the two where the document does not give them to all."""
        # What is no object is a fault already, and saying that it lacks two fields would not help.
        if not isinstance(raw, dict):
            return
        if raw.get("tokenizer_name") is None and not self._has_tokenizer:
            self.faults.add(path("rollouts", index, "tokenizer_name"), "required, here or in `defaults`")
        if raw.get("server_url") is None and not self._has_endpoint:
            self.faults.add(
                path("rollouts", index, "server_url"),
                "no endpoint: set it here or in `defaults`, or give the batch a `trainer`",
            )
