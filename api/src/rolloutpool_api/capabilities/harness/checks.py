"""Says what no model can see of the harnesses of a batch."""

from collections.abc import Mapping
from typing import Any

from rolloutpool_api.checks import Check, as_object
from rolloutpool_api.fault_list import path
from rolloutpool_common.protocol.batch import RolloutItem

CLASHES: Mapping[str, str] = {
    "restartable": "the program has its replies, and cannot be asked to forget them",
    "environment": "the program has tools of its own, and whoever ends its session says what it is worth",
    "context": "the program edits its history itself",
    "attach": "attachments are found by the number of their turn, and each line of talk counts its own",
}
"""Options that a harness cannot obey, and why."""


class HarnessCheck(Check):
    """A rollout that a program leads asks for nothing that only the pool's own loop can do."""

    def see_document(self, document: dict[str, Any]) -> None:
        """Notes what all rollouts have in common."""
        self._shared = {**as_object(document.get("defaults")), **as_object(document.get("trainer"))}
        self._restarts = document.get("on_stale") == "restart"

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Looks for options that clash."""
        options = {**self._shared, **as_object(raw)}
        if options.get("harness") is None:
            return
        for option, why in CLASHES.items():
            if options.get(option):
                self.faults.add(path("rollouts", index, option), f"cannot be with `harness`: {why}")
        if options.get("agent") not in (None, "tool_calls"):
            self.faults.add(path("rollouts", index, "agent"), "cannot be with `harness`: its program is the agent")
        if self._restarts:
            text = f"on_stale `restart` cannot be with `harness`: {CLASHES['restartable']}; use `drop` or `finish`"
            self.faults.add(path("rollouts", index), text)
