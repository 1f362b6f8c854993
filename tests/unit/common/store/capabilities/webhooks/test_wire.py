"""The fields of webhooks."""

from rolloutpool_common.capabilities.webhooks.wire import Delivery


def test_a_delivery_needs_a_host_and_a_real_secret() -> None:
    assert Delivery(callback_url="https://h/x?y=1", secret="12345678").callback_url == "https://h/x?y=1"
