"""What a client is told before anything is sent."""

import pytest

from rolloutpool_trainer import AsyncRolloutClient, RolloutClient
from rolloutpool_trainer.errors import ClientError, PoolUnavailable


@pytest.mark.parametrize("client", [RolloutClient, AsyncRolloutClient])
@pytest.mark.parametrize(
    "address", ["127.0.0.1:9000", "pool", "", "ftp://pool", "http:pool:9000", "http://[::1", "http://pool:port"]
)
def test_what_is_no_address_is_refused_at_once(client: type, address: str) -> None:
    """It was asked for a minute, as a pool that is down."""
    with pytest.raises(ClientError, match="is like http://pool:9000, and this one is") as caught:
        client(address)
    assert not isinstance(caught.value, PoolUnavailable)


@pytest.mark.parametrize("client", [RolloutClient, AsyncRolloutClient])
@pytest.mark.parametrize("key", ["rpk_SECRET\n", "rpk_SECRET\u00e9", "rpk_SEC RET"])
def test_what_is_no_key_is_refused_at_once_and_not_shown(client: type, key: str) -> None:
    """A file's last line came with its end, and after a minute the error showed the key."""
    with pytest.raises(ClientError, match="API key") as caught:
        client("http://127.0.0.1:1", key)
    assert "SEC" not in str(caught.value)
