"""Says what a controller of the Osmosis wire v3.3 sends.

`POST /rollout` is protocol v1's path too, so the wire is told by the body's fields (`wire_of`):

| the body has | it is |
|---|---|
| `chat_completions_url` | v3.3 |
| `initial_messages`, and no `messages` | v3.3 |
| besides one of these `completion_callback_url` or `grader_callback_url` | v3 of SDKs up to 0.3.1, which is refused |
| `chat_completions_url` and `server_url` | refused: the two wires answer differently, so nothing is guessed |
| anything else, also no object | v1 |

A field that is null counts like one that has a value. Unknown fields are ignored, as the SDK's own server does.
"""

import math
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from rolloutpool_common.composition import OsmosisOptionsFields
from rolloutpool_common.protocol.checks import check_callback_host, check_rollout_id
from rolloutpool_common.protocol.environments import EnvironmentChoice
from rolloutpool_common.protocol.messages import TextMessage

LEASE_HEADER = "X-Osmosis-Rollout-Lease"
MARKS = (b"chat_completions_url", b"initial_messages")
_CALLBACKS = ("completion_callback_url", "grader_callback_url")
OPTIONS_KEY = "rolloutpool"
"""In `metadata`, with `OsmosisOptions`: the wire itself has no place for them."""
MAX_TURNS = 100
"""The wire knows no limit of turns, so this is as high as protocol v1's."""

_EXAMPLE: dict[str, JsonValue] = {
    "rollout_id": "run7-row3-0",
    "initial_messages": [{"role": "user", "content": "Calculate 15 * 23"}],
    "chat_completions_url": "http://controller:8081/v1/rollouts/run7-row3-0",
    "grade": False,
    "agent_timeout_sec": 600,
}


class Wire(StrEnum):
    """Says which wire a body of `POST /rollout` is of."""

    V1 = "v1"
    OSMOSIS = "osmosis"
    CALLBACKS = "callbacks"
    """The Osmosis wire as it was with callbacks, which this pool does not speak."""
    AMBIGUOUS = "ambiguous"


def wire_of(document: Any) -> Wire:
    """Tells the wire of a parsed body by the table above."""
    if not isinstance(document, dict):
        return Wire.V1
    if "chat_completions_url" not in document and ("initial_messages" not in document or "messages" in document):
        return Wire.V1
    if "server_url" in document:
        return Wire.AMBIGUOUS
    return Wire.CALLBACKS if any(name in document for name in _CALLBACKS) else Wire.OSMOSIS


class OsmosisOptions(OsmosisOptionsFields):
    """What a rollout of this wire may choose of the pool, in `metadata.rolloutpool`; meanings as in the batch API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: EnvironmentChoice | None = None
    """Where the policy acts. Its score is the reward, unless there is a grader."""
    tools: list[str] | None = None
    """Names of the tools that the policy is shown and may call; null stands for all."""
    agent: str = Field(default="tool_calls", min_length=1, max_length=128)
    max_turns: int = Field(default=MAX_TURNS, ge=1, le=MAX_TURNS)


class OsmosisRequest(BaseModel):
    """One rollout (`POST /rollout`). Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]}, hide_input_in_errors=True)

    rollout_id: str
    """One segment of a path, at most 256 characters. While it is remembered, the same caller can't use it again."""
    initial_messages: list[TextMessage] = Field(min_length=1)
    """At least one, as in protocol v1."""
    chat_completions_url: str
    """Base URL of OpenAI's chat completions; workers append `/chat/completions`."""
    llm_api_key: str | None = Field(default=None, max_length=4096, repr=False)
    """Bearer key of that endpoint."""
    label: str | None = None
    """Comes back with the sample."""
    metadata: dict[str, Any] | None = None
    """Protocol v1's hints; in `metadata.rolloutpool`: `environment`, `grader`, `tools`, `agent`, `max_turns` (100)."""
    grade: bool = True
    """Whether the result needs a reward, of a grader or an environment: without either it is refused (422)."""
    agent_timeout_sec: float | None = None
    """From acceptance to the end, waiting included; zero and less have passed already, null bounds nothing."""
    grader_timeout_sec: float | None = None
    """The grader's time, from the end of the conversation; null is its own `deadline_seconds`. An environment's score
    is bounded by the environment's own limit."""
    extra_fields: dict[str, Any] | None = None
    """Accepted, unused."""

    @field_validator("rollout_id")
    @classmethod
    def _rollout_id(cls, value: str) -> str:
        if value in (".", "..") or any(mark in value for mark in "/\\\0"):
            raise ValueError("rollout_id must be a single path segment (no path separators, and not '.' or '..')")
        return check_rollout_id(value)

    @field_validator("chat_completions_url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        try:
            return check_callback_host(value)
        except ValueError as error:
            # The shared check speaks of protocol v1's field.
            raise ValueError(str(error).replace("server_url", "chat_completions_url", 1)) from None

    @field_validator("llm_api_key")
    @classmethod
    def _key(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("llm_api_key must be omitted or a non-empty string")
        return value

    @field_validator("agent_timeout_sec", "grader_timeout_sec")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError("timeout must be finite; omit it to run unbounded")
        return value

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        try:
            options = self.options
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            at = ".".join(map(str, ("metadata", OPTIONS_KEY, *first["loc"])))
            raise ValueError(f"{at}: {first['msg']}") from None
        # A null reward could reach a trainer as if the rollout were worth nothing, so it is refused before it costs
        # anything.
        if self.grade and options.environment is None and not options.gives_reward():
            raise ValueError(
                "grade: nothing gives this rollout a reward; name a grader in "
                f"metadata.{OPTIONS_KEY}.grader, or an environment in metadata.{OPTIONS_KEY}.environment, or send "
                "`grade: false`"
            )
        return self

    @property
    def options(self) -> OsmosisOptions:
        """Returns what `metadata` says to the pool."""
        return OsmosisOptions.model_validate((self.metadata or {}).get(OPTIONS_KEY, {}))

    def rewarded(self) -> dict[str, Any]:
        """Returns options of the batch API that give the reward; nothing where none is asked for."""
        return self.options.within(self.grader_timeout_sec) if self.grade else {}


class OsmosisCancel(BaseModel):
    """Says which rollouts to cancel (`POST /rollout/cancel`): exactly one of the three."""

    ids: list[str] | None = None
    prefix: str | None = None
    """Of ids."""
    all: bool = False

    @property
    def selectors(self) -> int:
        """How many of the three are given."""
        return (self.ids is not None) + (self.prefix is not None) + self.all
