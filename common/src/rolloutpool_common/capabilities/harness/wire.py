"""The fields that sessions of harnesses add to requests and results."""

import re
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rolloutpool_common.protocol.answer import is_none


class LineKind(StrEnum):
    """Says what a line of talk is to its session. Each is decided at the session's end, with a reason."""

    MAIN = "main"
    """It begins the chain that ends with the session's last call with tools."""
    CONTINUATION = "continuation"
    """It goes on where another line with the same tools and system text ended: after a compaction, for example."""
    CHILD = "child"
    """It has tools or a system text of its own, as a sub-agent has; or it runs beside its parent."""
    SIDE = "side"
    """One call without tools that nothing follows: a title or a summary."""


TRAINED = (LineKind.MAIN, LineKind.CONTINUATION, LineKind.CHILD)
"""What is trained unless a rollout says otherwise."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
PRESETS = ("claude-code", "codex", "opencode", "mini-swe-agent")
"""Programs that every runner knows; plug-ins add others."""


class HarnessChoice(BaseModel):
    """Says that a program calls the policy, how it is run, and how much it may do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    external: bool = False
    """Your own service runs the program: the rollout waits for its calls, and you end it with a reward."""
    preset: str | None = Field(default=None, min_length=1, max_length=64)
    """A program that runners know: `claude-code`, `codex`, `opencode`, `mini-swe-agent`, or one of a plug-in."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=64)
    """Any program: its arguments, in which `{prompt}`, `{url}`, `{key}` and `{home}` stand for what they name."""
    env: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Variables of a program that a runner starts, with the same names in braces; it gets no others."""
    files: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Files below its home, by relative path, likewise."""
    image: str | None = Field(default=None, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")
    """Image of the container that a runner with `docker` starts it in; null takes the runner's own."""
    on_death: Literal["replay", "restart", "fail"] = "replay"
    """What to do where the program, or its runner, has died: start it again in a fresh place, twice at the most, where
    it gets the replies that it had (`replay`) or new ones (`restart`); or `fail`."""
    seconds: float = Field(default=3600.0, gt=0, le=86_400)
    """How long a program may run that a runner has started."""
    max_calls: int = Field(default=500, ge=1, le=10_000)
    """Model calls of a session at the most."""
    max_calls_at_once: int = Field(default=32, ge=1, le=1000)
    """Calls that may wait for their answers at the same time."""
    max_mb: float = Field(default=64.0, gt=0, le=1024)
    """MB of all messages and tools together; what was said before is counted once."""
    idle_seconds: float = Field(default=900.0, gt=0, le=86_400)
    """How long a session may go without a call; then it ends as it is."""
    sampling: Literal["rollout", "agent"] = "rollout"
    """Whose sampling parameters count: the rollout's alone; or, for each call, what the program sends of temperature,
    top_p, length and stop strings, and the rollout's for the rest."""
    hosted_tools: Literal["refuse", "drop"] = "refuse"
    """What to do about tools that only a model's maker can run (web search): `refuse` the call, or leave them out."""
    train: tuple[LineKind, ...] = TRAINED
    """Which lines of talk become samples; what is left out is named in the result."""

    @field_validator("command", mode="before")
    @classmethod
    def _is_list(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("write a list of arguments, as no shell reads it: ['my-agent', '--flag']")
        return value

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if [self.external, self.preset is not None, self.command is not None].count(True) != 1:
            raise ValueError("say one of: external, preset, command")
        for name in self.env:
            # In a file of variables another line would be another variable, and a name alone one of the runner's.
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"env: {name[:64]!r} is no name of a variable")
        for path in self.files:
            if not path or path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"files: {path[:64]!r} is no path below the program's home")
        return self


class HarnessField(BaseModel):
    """Holds what a rollout may ask for."""

    harness: HarnessChoice | None = None
    """`{"external": true}`, `{"preset"}` or `{"command"}`: a program calls the policy at the pool's door
    (docs/agents.md)."""


class LineReport(BaseModel):
    """One line of talk of a session."""

    line: int
    """Its number, from 1, in the order in which lines began."""
    kind: LineKind
    why: str
    """The reason why it is taken for that."""
    parent: int | None = None
    """The line whose beginning it shares, or that it continues; null where it has none."""
    turns: int
    """Model calls that were answered."""
    tokens: int
    """Tokens that the policy sampled for it."""
    trained_tokens: int
    """How many of these are in samples with mask 1."""
    samples: list[int] = Field(default_factory=list)
    """Its samples, as places in the result's list."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """Why sampled tokens are in no sample, and how many: `kind`, `unfollowed`, `agent_restarted`."""


class AskedWay(BaseModel):
    """How calls of a program were asked, besides their messages and tools."""

    dialect: str
    """Chat completions, Responses or Messages."""
    fields: dict[str, Any]
    """The other fields of the request, as the program has sent them."""
    calls: list[int]
    """The calls that were asked so, by number."""


class HarnessReport(BaseModel):
    """Holds what a result says of its session."""

    calls: int
    """Model calls that were taken, repetitions not counted."""
    lines: list[LineReport]
    """Its lines of talk, in the order in which they began."""
    places: int = 1
    """How often its program was started."""
    asked: list[AskedWay] = Field(default_factory=list)
    """How its calls were asked, each way once; at most 50 ways."""

    @property
    def told(self) -> LineReport | None:
        """The line whose messages are the result's: the last one of the main chain."""
        chain = [line for line in self.lines if line.kind in (LineKind.MAIN, LineKind.CONTINUATION)]
        return chain[-1] if chain else None


class HarnessReportField(BaseModel):
    """Holds what a result says besides its samples."""

    harness: HarnessReport | None = Field(default=None, exclude_if=is_none)
    """`calls`, `lines` of talk with what was trained of each; left out where no harness was asked for."""


class SessionEnd(BaseModel):
    """`POST /v1/sessions/{id}/end`: the program has ended, or is given up."""

    model_config = ConfigDict(extra="forbid")

    reward: float | None = Field(default=None, allow_inf_nan=False)
    """What the rollout is worth; null where that is not known, or a grader says it."""
    reward_parts: dict[str, float] = Field(default_factory=dict)
    """What the reward is made of."""
    failed: str | None = Field(default=None, max_length=1000)
    """Why the program is given up; the rollout then fails as `infra`, and is no sample with reward 0."""


class HarnessSession(BaseModel):
    """`GET /v1/sessions/{id}`: where a program finds its model."""

    uid: str
    """Of the rollout."""
    url: str
    """Of its model, at the door (`ROLLOUTPOOL_DOOR_URL`). OpenAI's SDKs want `/v1` behind it."""
    key: str
    """The program's key, for its own rollout and nothing else."""
    calls: int
    """Calls that were taken so far."""
    waiting: int
    """How many of them wait for an answer."""
    over: bool
    """Whether it takes no further calls."""
