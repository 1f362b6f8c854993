"""Says what a result reports about a conversation besides its tokens: turns, drift, times, warnings."""

from dataclasses import dataclass, field
from typing import Any

from rolloutpool_common.protocol.drift import NO_DRIFT, DriftLabel
from rolloutpool_common.protocol.environments import EnvironmentStep
from rolloutpool_common.protocol.journal import ObservationRecord, TurnRecord
from rolloutpool_common.protocol.result import Alignment, StopToken, ToolTime, TurnSummary
from rolloutpool_common.tokens.entries import ForkEntry


@dataclass
class Measures:
    """Sums over the records of a rollout, whether they are replayed or new."""

    traced: bool = False
    """Whether `trace` is kept; protocol v1's clients ask for it."""
    turns: list[TurnSummary] = field(default_factory=list)
    """As their records have them."""
    tools: dict[int, list[ToolTime]] = field(default_factory=dict)
    """What followed a turn, by where it stands among `turns`."""
    last: dict[int, int] = field(default_factory=dict)
    """By branch: where its last turn stands among `turns`."""
    drift: dict[str, int] = field(default_factory=dict)
    """Turns per label, those without drift left out."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: int = 0
    sampled_tokens: int = 0
    llm_ms: float = 0.0
    tools_ms: float = 0.0
    forked: bool = False
    """Whether a trainer's prompt has split the rollout into samples."""
    max_context: int = 0
    """Longest prompt + sampled tokens of one call."""
    tool_warnings: set[str] = field(default_factory=set)
    """Which tools have blocked their worker, or may have taken much of its memory."""
    steps: list[EnvironmentStep] = field(default_factory=list)
    """What the rollout's environment said to each call or message."""
    step_turns: list[int] = field(default_factory=list)
    """The turn that each of these followed."""
    zero_logprobs: bool = True
    """Whether every log-probability so far was 0.0, which no real policy reports."""

    def add_turn(self, record: TurnRecord) -> None:
        """Counts a turn: its tokens, time, drift, and what later warnings need."""
        summary = record.summary
        self.last[record.branch] = len(self.turns)
        self.turns.append(summary)
        self.sampled_tokens += summary.sampled_tokens
        self.llm_ms += record.llm_ms
        self.zero_logprobs = self.zero_logprobs and record.zero_logprobs
        context = summary.prompt_tokens + summary.sampled_tokens
        self.max_context = max(self.max_context, context)
        if summary.drift not in NO_DRIFT:
            self.drift[summary.drift] = self.drift.get(summary.drift, 0) + 1
        # Most turns have one entry, of what was sampled.
        if len(record.entries) > 1:
            self.forked = self.forked or any(isinstance(entry, ForkEntry) for entry in record.entries)
        if self.traced:
            self.trace.append(
                {
                    "turn": summary.turn,
                    "llm_request": {"prompt_length": summary.prompt_tokens, "response_mask_len": summary.mask_sent},
                    "assistant_message": record.message,
                    "tool_calls": record.message.get("tool_calls") or [],
                    "tool_results": [],
                    "llm_response_token_count": summary.sampled_tokens,
                }
            )

    def add_observation(self, record: ObservationRecord) -> None:
        """Counts the tool calls that followed a turn, and their time."""
        self.tools_ms += record.tools_ms
        self.tool_calls += record.tool_calls
        if record.warnings:
            self.tool_warnings.update(record.warnings)
        last = self.last[record.branch]
        if record.environment is not None:
            self.steps += record.environment.steps
            self.step_turns += [self.turns[last].turn] * len(record.environment.steps)
        if record.times:
            self.tools[last] = [*record.times]
        # Messages that an agent appends without tools are no results.
        if self.trace and record.tool_calls:
            self.trace[last]["tool_results"] = record.messages

    def reported_turns(self) -> list[TurnSummary]:
        """Returns the turns with the tools that followed each."""
        found = list(self.turns)
        for place, tools in self.tools.items():
            found[place] = found[place].model_copy(update={"tools": tools})
        return found

    @property
    def alignment(self) -> Alignment | None:
        """How well the tokens are proved; None before the first sampled one."""
        if not self.turns:
            return None
        if any(turn.drift == DriftLabel.UNVERIFIED for turn in self.turns):
            return Alignment.UNVERIFIED
        return Alignment.FORKED if self.forked else Alignment.EXACT

    def warnings(self) -> list[str]:
        """Lists what a trainer should look at although nothing failed."""
        ended = [turn.stop for turn in self.turns if turn.stop is not StopToken.ABSENT]
        found = []
        # One such turn may be chance; where every turn that ended by itself lacks its stop id, the server withholds it.
        if ended and all(stop is StopToken.WITHHELD for stop in ended):
            found.append("stop_token_withheld")
        if self.turns and self.zero_logprobs:
            found.append("zero_logprobs")
        return [*found, *sorted(self.tool_warnings)]
