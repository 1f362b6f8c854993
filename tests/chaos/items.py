"""What is submitted: calculator questions, each for a trainer's port whose manner is drawn."""

import random
from collections.abc import Mapping

from tests.chaos.cast import Cast
from tests.chaos.consumer import Item
from tests.chaos.environments import choice_of
from tests.chaos.graders import BROKEN, CHOICES
from tests.chaos.manners import ENGINES, Manner

from rolloutpool_trainer.testing import calculator_prompts

SHARES: Mapping[Manner, float] = {
    Manner.STEADY: 57,
    Manner.SLOW: 5,
    Manner.BUSY: 6,
    Manner.FLAKY: 6,
    Manner.RERENDER: 6,
    Manner.FORGETFUL: 3,
    Manner.SHORT: 1,
    Manner.ALIEN: 1,
    Manner.DEAF: 2,
    Manner.TRICKLE: 2,
    Manner.HUGE: 0.3,
    Manner.BOMB: 0.3,
    Manner.ONCE: 3,
    Manner.VLLM: 4,
    Manner.SGLANG: 4,
}
"""Of a campaign."""
_ALONE = {0: "digest", 5: "digest", 7: "moody", 17: BROKEN}
STEADY_SHARES: Mapping[Manner, float] = {
    Manner.STEADY: 80,
    Manner.SLOW: 5,
    Manner.BUSY: 5,
    Manner.FLAKY: 5,
    Manner.RERENDER: 5,
}
"""Of a soak, where all rollouts complete."""


def draw_items(
    cast: Cast,
    count: int,
    seed: object,
    shares: Mapping[Manner, float],
    *,
    graded: bool = False,
    played: bool = False,
) -> list[Item]:
    """Makes rollouts to submit.

    Args:
        cast: Has the trainers.
        count: How many.
        seed: The same seed makes the same rollouts; it is part of their ids.
        shares: How often each manner is drawn.
        graded: Whether a third of them have graders, and of these a third in groups of four.
        played: Whether a fifth of them have environments.
    """
    rng = random.Random(f"{seed}/items")
    manners = rng.choices(list(shares), list(shares.values()), k=count)
    # A deaf port holds its rollouts for a minute; at the end of a campaign everybody would wait for it.
    early = count // 2
    questions = calculator_prompts(count, rng.randrange(2**31))
    items: list[Item] = []
    for number, (drawn, question) in enumerate(zip(manners, questions, strict=True)):
        manner = Manner.STEADY if drawn is Manner.DEAF and number > early else drawn
        fields: dict[str, object] = {
            "rollout_id": f"chaos-{seed}-{number}",
            "messages": [{"role": "user", "content": question}],
            "server_url": cast.url(manner, rng.randrange(2)),
            "idempotent": manner is not Manner.ONCE,
        }
        if manner in ENGINES:
            fields |= {"protocol": manner.value, "model": "policy"}
        if graded:
            fields |= _grader_of(number)
        if played:
            fields |= choice_of(number, manner, early=number <= early)
        items.append((manner, fields))
    return items


def _grader_of(number: int) -> dict[str, object]:
    """The grader of a rollout, and its group; four neighbours are in one batch."""
    place = number % 20
    if 12 <= place < 16:
        return {"grader": CHOICES["places"], "group": f"group-{number // 20}"}
    return {"grader": CHOICES[name]} if (name := _ALONE.get(place)) is not None else {}
