"""What a call sends."""

from typing import Any

import orjson
import pytest

from rolloutpool_trainer.client import calls


@pytest.mark.parametrize("item", ["What is 15 + 23?", ["a", "b"], 5])
def test_what_is_no_rollout_is_left_to_the_pool_which_names_its_place(item: Any) -> None:
    """A bare prompt ended as `dictionary update sequence element #0 has length 1`."""
    call = calls.submit([item], {"priority": "default"}, idempotency_key="k")
    assert call.body is not None
    assert orjson.loads(call.body)["rollouts"] == [item]
