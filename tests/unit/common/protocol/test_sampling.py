"""Protocol v1 drops sampling keys that it does not know; the batch API passes them on or refuses them."""

import pytest
from pydantic import ValidationError

from rolloutpool_common.protocol.sampling import RESERVED_CALLBACK_KEYS, BatchSamplingParams, SamplingParams


def test_v1_drops_what_the_batch_api_passes_on() -> None:
    given = {"top_k": 5, "seed": 1, "chat_template_kwargs": {"a": 1}}
    assert "top_k" not in SamplingParams.model_validate(given).model_dump()
    assert BatchSamplingParams.model_validate(given).extra() == given
    assert BatchSamplingParams(temperature=0.5).extra() == {}


@pytest.mark.parametrize("key", sorted(RESERVED_CALLBACK_KEYS))
def test_keys_that_the_pool_sets_itself_are_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=f"{key}: set by the pool"):
        BatchSamplingParams.model_validate({key: 1})
