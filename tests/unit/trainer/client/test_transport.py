"""What a client is told before anything is sent."""

import pytest

from rolloutpool_trainer import AsyncRolloutClient, RolloutClient
from rolloutpool_trainer.errors import ClientError, PoolUnavailable


@pytest.mark.parametrize("client", [RolloutClient, AsyncRolloutClient])
@pytest.mark.parametrize("address", ["127.0.0.1:9000", "pool", "", "ftp://pool"])
def test_an_address_without_a_scheme_is_refused_at_once(client: type, address: str) -> None:
    """It was asked for a minute, as a pool that is down."""
    with pytest.raises(ClientError, match="begins with http:// or https://, and this one is") as caught:
        client(address)
    assert not isinstance(caught.value, PoolUnavailable)
