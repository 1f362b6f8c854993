"""PlainArguments: arguments that are seen at once to fit a tool's schema.

jsonschema takes forty calls of functions to say that two numbers are numbers, and most tools ask for no more. So a
schema that names nothing but the types of its properties is read once, and arguments of those very types are not
validated. All others are: what does not fit here may fit all the same, and what is wrong is for the validator to say.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

_TYPES: Mapping[str, frozenset[type]] = {
    "string": frozenset({str}),
    # A float without fraction is an integer as well, and left to the validator. True is an int to Python alone.
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "boolean": frozenset({bool}),
}
_OF_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "title", "description"})
_OF_PROPERTY = frozenset({"type", "title", "description", "default"})


class PlainArguments(NamedTuple):
    """Holds what a plain schema asks for."""

    types: Mapping[str, frozenset[type]]
    """Of the values of its properties."""
    required: frozenset[str]
    is_closed: bool
    """Whether no other properties may be there."""

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> "PlainArguments | None":
        """Reads a schema; None where it has anything else."""
        properties, required = schema.get("properties"), schema.get("required", [])
        others = schema.get("additionalProperties", True)
        if (
            schema.get("type") != "object"
            or not schema.keys() <= _OF_OBJECT
            or not isinstance(properties, Mapping)
            or not isinstance(required, list)
            or not all(isinstance(name, str) for name in required)
            or not isinstance(others, bool)
        ):
            return None
        types: dict[str, frozenset[type]] = {}
        for name, one in properties.items():
            if not isinstance(one, Mapping) or not one.keys() <= _OF_PROPERTY or not isinstance(one.get("type"), str):
                return None
            if one["type"] not in _TYPES:
                return None
            types[name] = _TYPES[one["type"]]
        return cls(types, frozenset(required), not others)

    def fit(self, arguments: Any) -> bool:
        """Whether these arguments fit; False also where only the validator can tell."""
        if type(arguments) is not dict or not self.required <= arguments.keys():
            return False
        for name, value in arguments.items():
            allowed = self.types.get(name)
            if self.is_closed if allowed is None else type(value) not in allowed:
                return False
        return True
