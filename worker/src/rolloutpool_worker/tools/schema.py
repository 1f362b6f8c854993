"""The schema of a tool, made of its function's type hints and docstring.

    @tool()
    async def search(context: ToolContext, query: str, most: Annotated[int, Field(ge=1)] = 10) -> object:
        '''Searches the web.

Args:
            query: What to look for.
            most: Results at the most.
        '''

The policy is shown the tool `search`, "Searches the web.", with an object of `query` (required) and `most`. pydantic
makes the schema, and from the arguments of a call the values that the hints name: a `date` is one when the function
gets it.
"""

import functools
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, Literal, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rolloutpool_worker.plugins import PluginBroken

_ARGUMENT = re.compile(r"(\w+)(?: \([^)]*\))?:\s*(.*)")
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Example|Examples|Note|Notes):")


class ArgumentsInvalid(ValueError):
    """Arguments fit the JSON schema, and do not make the values that the function's hints name."""


class ToolSignature:
    """Holds what is known of a tool by its function."""

    def __init__(self, name: str, description: str, model: type[BaseModel]) -> None:
        self.name = name
        self.description = description
        """The docstring before its first section."""
        self._model = model

    def parameters(self) -> dict[str, Any]:
        """Returns the JSON schema of the arguments."""
        schema: dict[str, Any] = _without_titles(self._model.model_json_schema())
        # A model without fields has no such key, and templates look for it.
        schema.setdefault("properties", {})
        return schema

    def typed(self, run: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        """Wraps the function, so that it gets values of the types that its hints name."""

        @functools.wraps(run)
        async def convert(context: Any, /, **arguments: Any) -> object:
            try:
                values = self._model.model_validate(arguments)
            except ValidationError as error:
                raise ArgumentsInvalid(_said(error)) from None
            # As attributes, because a dump would make dictionaries of models again.
            given = {name: getattr(values, name) for name in type(values).model_fields}
            return await run(context, **given, **(values.model_extra or {}))

        return convert


_VALUES = (str, bytes, int, float, list, tuple, set, frozenset, dict, BaseModel)
"""What an argument may be, and a context is not."""


def read_signature(run: Callable[..., Awaitable[object]]) -> ToolSignature:
    """Reads a function `(context, **arguments)`."""
    name = run.__name__
    try:
        hints = get_type_hints(run, include_extras=True)
        context, *parameters = inspect.signature(run).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise PluginBroken(
            f"tool {name}: it must be a function of a context and arguments with hints: {error}"
        ) from error
    kind = hints.get(context.name)
    kind = get_origin(kind) or kind
    # The function would be given the context in the place of this argument, and the policy might read it.
    if isinstance(kind, type) and issubclass(kind, _VALUES):
        raise PluginBroken(
            f"tool {name}: its first argument is the ToolContext, and it has {context.name!r} there; write "
            f"`async def {name}(context: ToolContext, {context.name} …)`"
        )
    description, documented = _read_docstring(inspect.getdoc(run) or "")
    fields: dict[str, Any] = {}
    extra: Literal["allow", "forbid"] = "forbid"
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise PluginBroken(f"tool {name}: {parameter.name} cannot be given by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (
            hints.get(parameter.name, Any),
            Field(default, description=documented.get(parameter.name)),
        )
    try:
        model = create_model(name, __config__=ConfigDict(extra=extra), **fields)
        signature = ToolSignature(name, description, model)
        signature.parameters()
    # pydantic raises errors of many kinds for hints that have no schema.
    except Exception as error:
        raise PluginBroken(f"tool {name}: its arguments have no schema: {error}") from error
    return signature


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Splits a docstring in google's style into what comes before its sections, and its arguments."""
    before: list[str] = []
    arguments: dict[str, list[str]] = {}
    section, current = "", ""
    for line in text.splitlines():
        if _SECTION.fullmatch(line):
            section = line.rstrip(":")
        elif not section:
            before.append(line)
        elif section in ("Args", "Arguments") and (found := _ARGUMENT.fullmatch(line.strip())) and _is_item(line):
            current = found[1]
            arguments[current] = [found[2]]
        elif section in ("Args", "Arguments") and current and line.strip():
            arguments[current].append(line.strip())
    return "\n".join(before).strip(), {name: " ".join(lines).strip() for name, lines in arguments.items()}


def _is_item(line: str) -> bool:
    """Whether a line of a section begins an entry; what continues one is indented further."""
    return len(line) - len(line.lstrip()) <= 4


def _without_titles(schema: Any, *, names: bool = False) -> Any:
    """Leaves out pydantic's titles, which repeat names; a property may be called so."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value, names=key in ("properties", "$defs") and not names)
            for key, value in schema.items()
            if names or key != "title" or not isinstance(value, str)
        }
    if isinstance(schema, list):
        return [_without_titles(value) for value in schema]
    return schema


def _said(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
