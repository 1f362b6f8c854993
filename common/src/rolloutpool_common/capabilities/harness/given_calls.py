"""GivenCalls: how a program is given the policy's tool calls, and how they are known when it gives them back.

Call i of reply n has the id `call_{n}_{i}`, whatever the policy has called it. Arguments that are no JSON object cannot
be said where a dialect has objects; there they are given as text under the name `RAW_ARGUMENTS`.
"""

import re

RAW_ARGUMENTS = "arguments"
"""The one name of the object that stands for arguments which are none."""
_GIVEN = re.compile(r"call_(\d{1,9})_(\d{1,9})", re.ASCII)


def given_id(n: int, place: int) -> str:
    """Names a tool call of a reply, as the program gets it."""
    return f"call_{n}_{place}"


def place_of_call(given: str) -> tuple[int, int] | None:
    """Returns reply and place of a call by its id; None where no session has given this id."""
    match = _GIVEN.fullmatch(given)
    return None if match is None else (int(match[1]), int(match[2]))
