"""Shapes of turns to prove something of."""

from rolloutpool_common.rendering.proof.claims import NewMessage, TurnShape

QUESTION = TurnShape(
    says=True,
    calls=0,
    as_text=False,
    beside=(),
    new=(NewMessage("user", ("content", "role")),),
    system=False,
    tools=False,
)
"""The policy has said something, and a user asks again."""
