"""The fields that protocol v1 and the batch API check in the same way."""

import pytest

from rolloutpool_common.protocol.checks import LONGEST_ID, check_callback_host, check_rollout_id, check_server_url


def test_a_rollout_id_is_kept_as_it_is() -> None:
    assert check_rollout_id(" job/7 ") == " job/7 "


@pytest.mark.parametrize(("value", "says"), [("", "non-empty"), (" \t", "non-empty"), ("x" * (LONGEST_ID + 1), "256")])
def test_a_blank_or_endless_rollout_id_is_refused(value: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_rollout_id(value)


@pytest.mark.parametrize("value", ["http://trainer:8081", "http://trainer:8081//", "https://trainer"])
def test_a_url_loses_its_trailing_slashes(value: str) -> None:
    assert check_server_url(value) == check_callback_host(value) == value.rstrip("/")


@pytest.mark.parametrize("value", ["ftp://trainer", "trainer:8081", "", "HTTP://trainer"])
def test_another_scheme_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must be an HTTP/HTTPS URL"):
        check_server_url(value)


def test_only_the_batch_api_demands_a_host() -> None:
    assert check_server_url("http:///v1") == "http:///v1"
    with pytest.raises(ValueError, match="names no host"):
        check_callback_host("http:///v1")
