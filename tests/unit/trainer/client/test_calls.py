"""What a call sends."""

from typing import Any

import numpy as np
import orjson
import pytest

from rolloutpool_trainer.capabilities.grading.calls import annotate
from rolloutpool_trainer.client import calls
from rolloutpool_trainer.errors import ClientError


@pytest.mark.parametrize("item", ["What is 15 + 23?", ["a", "b"], 5])
def test_what_is_no_rollout_is_left_to_the_pool_which_names_its_place(item: Any) -> None:
    """A bare prompt ended as `dictionary update sequence element #0 has length 1`."""
    call = calls.submit([item], {"priority": "default"}, idempotency_key="k")
    assert call.body is not None
    assert orjson.loads(call.body)["rollouts"] == [item]


@pytest.mark.parametrize("fault", [float("nan"), {1, 2}, {("a", "b"): 1}, np.float32(0.5)], ids=repr)
def test_what_cannot_be_json_is_named_with_its_place(fault: Any) -> None:
    items: list[Any] = [{"metadata": {"n": 1}}, {"metadata": {"n": [0, fault]}}]
    with pytest.raises(ClientError, match=r"^the body\.rollouts\.1\.metadata\.n\.1 cannot be JSON: "):
        calls.submit(items, {"priority": "default"}, idempotency_key="k")


def test_what_refers_to_itself_ends_too() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ClientError, match="cannot be JSON: Circular"):
        calls.submit([{"metadata": {"n": endless}}], {"priority": "default"}, idempotency_key="k")


def test_a_figure_that_is_none_is_named_too() -> None:
    with pytest.raises(ClientError, match=r"the body\.scalars\.kl cannot be JSON"):
        list(annotate("b", {"kl": {0: float("inf")}}, {}))
