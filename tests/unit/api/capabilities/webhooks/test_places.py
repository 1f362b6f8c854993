"""Where a batch's request has a URL to push to, and a secret, both are checked."""

from tests.unit.api.test_restrictions import KEEPS, document, faults

from rolloutpool_api.validation import check_batch


def test_pushes_go_to_listed_hosts_only() -> None:
    delivery = {"callback_url": "http://bad/x", "secret": "long enough"}
    assert faults(document(delivery=delivery), KEEPS).keys() == {"delivery.callback_url"}
    assert check_batch(document(delivery={**delivery, "callback_url": "https://good/x?y"}), None, KEEPS).digest


def test_its_secret_is_refused_where_it_cannot_be_kept() -> None:
    value = document(delivery={"callback_url": "http://good", "secret": "MARKER-MARKER"})
    found = faults(value)
    assert found.keys() == {"delivery.secret"}
    assert "ROLLOUTPOOL_SECRETS_FILE" in found["delivery.secret"]
    assert "MARKER" not in str(found)
    assert check_batch(value, None, KEEPS).digest
