"""What an environment has that overrides nothing: no family, no score, nothing to close."""

from typing import Any

import pytest

from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_worker.environments import Environment, OpenedSession


class Bare(Environment):
    """Opens, and does nothing else."""

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        return OpenedSession(None)


async def test_a_bare_environment_gives_no_score_and_needs_no_close() -> None:
    bare = Bare()
    assert (bare.crash, bare.by_text, bare.places) == (CrashEffect.NONE, False, None)
    assert await bare.score(None, []) is None
    await bare.close(None)
    await bare.aclose()


async def test_what_its_family_needs_it_has_to_override() -> None:
    bare = Bare()
    for missing in (
        Environment().open(None, None, "u", 1),
        bare.call(None, "guess", {}),
        bare.step(None, "42"),
        bare.snapshot(None),
        bare.restore(b"", None, None, "u", 1),
    ):
        with pytest.raises(NotImplementedError):
            await missing
