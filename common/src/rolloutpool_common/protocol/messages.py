"""Chat messages as they travel.

Every message that leaves the pool is in normal form: the keys role, content, tool_calls, tool_call_id in this order,
null if absent, and then the other keys that it came with. The arguments of a tool call keep their type.

A message that comes in is a `TextMessage`: its content is text, or parts of text. One that was stored is a `Message`,
because older versions took parts of any type.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    field_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from rolloutpool_common.protocol.content import part_fault, part_faults
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction

# Plug-ins written for 0.1 import the two from here.
__all__ = [
    "CALL_FAULTS",
    "ROLES",
    "TEXT_MESSAGES",
    "FunctionCall",
    "Message",
    "MessagesInvalid",
    "TextMessage",
    "ToolCall",
    "ToolDefinition",
    "ToolFunction",
    "json_messages",
    "message_fault",
    "text_of",
]

CALL_FAULTS = "tool_call_faults"
"""The key of an assistant message that says which of its calls cannot be run, and why: an object, by the calls' ids.
Only messages that the pool has parsed itself can have it."""
ROLES = ("assistant", "function", "system", "tool", "user")


class FunctionCall(BaseModel):
    """The function a policy wants to call."""

    name: str = Field(min_length=1, max_length=256)
    arguments: str | dict[str, Any]
    """JSON text or an object; it is sent on as it came."""


class ToolCall(BaseModel):
    """One tool call inside an assistant message. Unknown keys are dropped."""

    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """One chat message. Unknown keys (name, reasoning_content, vendor fields) are kept and sent on."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None
    """Text, or parts of it: `{"type": "text", "text": "..."}`. Other types are refused where a message comes in."""
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = Field(default=None, max_length=256)

    @field_validator("role")
    @classmethod
    def _known_role(cls, role: str) -> str:
        if role not in ROLES:
            raise ValueError(f"Invalid role '{role}'. Must be one of: {list(ROLES)}")
        return role

    def wire(self) -> dict[str, Any]:
        """Write this message in normal form."""
        return self.model_dump()


def _text_only(message: Any, validate: ModelWrapValidatorHandler[Message]) -> Message:
    content = message.get("content") if isinstance(message, dict) else getattr(message, "content", None)
    # Most content is a string.
    if isinstance(content, str) or not (found := list(part_faults(content))):
        return validate(message)
    # Each fault has its own place in the message, and none quotes the part, which may be an image of megabytes.
    faults = [_fault("text_only", ("content", place), text, None) for place, text in found]
    try:
        validate(message)
    except ValidationError as error:
        others = error.errors(include_url=False, include_context=False)
        faults += [_fault(e["type"], e["loc"], e["msg"], e["input"]) for e in others if e["loc"][:1] != ("content",)]
    raise ValidationError.from_exception_data(Message.__name__, faults)


def _fault(kind: str, at: tuple[int | str, ...], text: str, given: Any) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError(kind, "{text}", {"text": text}), loc=at, input=given)


TextMessage = Annotated[Message, WrapValidator(_text_only)]
"""A message that comes in: a part of its content that is no text is a fault at `content[1]`."""


TEXT_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[TextMessage])
"""Checks messages that come in."""


def message_fault(error: ValidationError) -> str:
    """Says in one line what was found first in messages, without quoting them.

    Args:
        error: What `TEXT_MESSAGES` raised.

    Returns:
        For example `messages[0].content[1]: type image_url; only text is supported`.
    """
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    at = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    return f"messages{at}: {first['msg'].removeprefix('Value error, ')}"


class MessagesInvalid(ValueError):
    """Messages that a plug-in has made cannot be part of a conversation."""


def json_messages(messages: Any) -> list[dict[str, Any]]:
    """Brings messages that a plug-in has made into normal form.

    Raises:
        MessagesInvalid: One is no message, or cannot be JSON: half of a surrogate pair is a string to Python, and a
            result that holds it could not be written.
    """
    # A trainer's client makes no such messages, and need not install it.
    import orjson

    try:
        written = [message.wire() for message in TEXT_MESSAGES.validate_python(messages)]
    except ValidationError as error:
        raise MessagesInvalid(message_fault(error)) from None
    for place, message in enumerate(written):
        try:
            orjson.dumps(message)
        except TypeError as error:
            raise MessagesInvalid(f"messages[{place}] cannot be JSON: {error}") from None
    return written


def text_of(message: Mapping[str, Any]) -> str:
    """Returns what a message says as text; of a list of parts, their texts."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        return "".join(part["text"] for part in content if part_fault(part) is None)
    return content if isinstance(content, str) else ""
