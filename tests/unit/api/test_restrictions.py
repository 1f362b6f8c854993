"""What this pool does not take is refused with the place where it stands."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.api_requests import v1_request

from rolloutpool_api.checks import Catalog
from rolloutpool_api.errors import Rejected
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.validation import check_batch
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.security.targets import Targets

RULES = Restrictions(Targets.parse("good,*.good,10.0.0.0/8:8081-8082"), keeps_secrets=False, max_messages=2)
KEEPS = Restrictions(RULES.targets, keeps_secrets=True, max_messages=2)
MESSAGE = {"role": "user", "content": "x"}


def document(*rollouts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    items = [{"messages": [MESSAGE], **rollout} for rollout in rollouts or ({},)]
    return {"defaults": {"tokenizer_name": "t", "server_url": "http://good"}, "rollouts": items, **changes}


def faults(value: dict[str, Any], rules: Restrictions = RULES) -> dict[str, str]:
    with pytest.raises(Rejected) as raised:
        check_batch(value, None, rules)
    found = raised.value.faults
    assert len({fault.path for fault in found}) == len(found) == raised.value.total
    return {fault.path: fault.message for fault in found}


def without_default(**changes: Any) -> dict[str, Any]:
    return document(**{"defaults": {"tokenizer_name": "t"}, **changes})


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (document({"server_url": "http://bad"}, {}, {"server_url": "http://bad/"}), [0, 2]),
        (document(defaults={"tokenizer_name": "t", "server_url": "http://10.0.0.1:9"}), ["defaults.server_url"]),
        (
            without_default(trainer={"server_urls": ["http://a.good", "http://169.254.169.254", "http://8.8.8.8"]}),
            ["trainer.server_urls[1]", "trainer.server_urls[2]"],
        ),
        (without_default(trainer={"host": "10.0.0.1", "workers": 4}), ["trainer.host"]),
        (without_default(trainer={"host": "bad", "workers": 1000}), ["trainer.host"]),
        (document({"server_url": "http://u:p@good"}), [0]),
    ],
)
def test_hosts_that_are_not_listed(value: dict[str, Any], paths: list[Any]) -> None:
    expected = {f"rollouts[{where}].server_url" if isinstance(where, int) else where for where in paths}
    assert faults(value).keys() == expected


@pytest.mark.parametrize(
    "value",
    [
        document(),
        document({"server_url": "http://x.good:1"}),
        without_default(trainer={"host": "10.1.1.1", "workers": 2}),
        without_default(trainer={"server_urls": ["http://good", "http://10.1.1.1:8082"]}),
        document(defaults={"tokenizer_name": "t", "server_url": "http://good", "callback_api_key": ""}),
    ],
)
def test_what_is_listed_passes(value: dict[str, Any]) -> None:
    assert check_batch(value, None, RULES).digest


def test_secrets_are_refused_where_they_cannot_be_kept() -> None:
    value = document(
        {"callback_api_key": "MARKER"},
        defaults={"tokenizer_name": "t", "server_url": "http://good", "callback_api_key": "MARKER"},
    )
    found = faults(value)
    assert found.keys() == {"rollouts[0].callback_api_key", "defaults.callback_api_key"}
    assert all("ROLLOUTPOOL_SECRETS_FILE" in message for message in found.values())
    assert "MARKER" not in str(found)
    assert check_batch(value, None, KEEPS).digest


def test_too_many_messages() -> None:
    found = faults(document({"messages": [MESSAGE] * 3}, {"messages": [MESSAGE] * 2}))
    assert found == {"rollouts[0].messages": "has 3 messages, at most 2; raise ROLLOUTPOOL_MAX_MESSAGES"}


def test_v1_by_the_same_rules() -> None:
    def v1(**changes: Any) -> dict[str, str]:
        fields = {"rollout_id": "r", "server_url": "http://good/", "messages": [MESSAGE], "sampling_params": {}}
        return dict(RULES.check_v1(RolloutRequest.model_validate({**fields, "tokenizer_name": "t", **changes})))

    assert v1() == v1(callback_api_key="", tool_server_url="http://bad") == {}
    assert v1(server_url="http://bad", callback_api_key="k", messages=[MESSAGE] * 3).keys() == {
        "server_url",
        "callback_api_key",
        "messages",
    }


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        (None, ""),
        ("", ""),
        ("http://good/mcp", ""),
        ("http://10.0.0.1:8081/mcp", ""),
        ("http://10.0.0.1:9/mcp", "in no network of ROLLOUTPOOL_ALLOWED_TARGETS"),
        ("http://bad/mcp", "bad:80 is not in ROLLOUTPOOL_ALLOWED_TARGETS"),
        ("http://169.254.169.254/", "is never called"),
        ("http://user:key@good/", "must not hold user and password"),
        ("file:///etc/passwd", "must be an HTTP/HTTPS URL with a host"),
        ("http://", "must be an HTTP/HTTPS URL with a host"),
        ("nonsense", "must be an HTTP/HTTPS URL with a host"),
    ],
)
def test_a_tool_server_that_is_called_is_a_target_too(url: str | None, fault: str) -> None:
    fields = {"rollout_id": "r", "server_url": "http://good", "messages": [MESSAGE], "sampling_params": {}}
    request = RolloutRequest.model_validate({**fields, "tokenizer_name": "t", "tool_server_url": url})
    found = dict(replace(RULES, tool_servers=True).check_v1(request))
    assert (fault in found["tool_server_url"]) if fault else found == {}
    assert dict(RULES.check_v1(request)) == {}


def _workers(*own: str) -> Catalog:
    none: frozenset[str] = frozenset()
    return Catalog(tools=none, agents=none, termination_strategies=none, own_tokenizers=frozenset(own))


@pytest.mark.parametrize(
    ("rules", "catalog", "refused"),
    [
        (RULES, _workers("other"), False),
        (replace(RULES, any_tokenizer=False, tokenizers=("q/*", "t")), None, False),
        (replace(RULES, any_tokenizer=False, tokenizers=("q/*",)), _workers("t"), True),
        (replace(RULES, any_tokenizer=False), _workers("t@main", "u"), False),
        (replace(RULES, any_tokenizer=False), _workers("u"), True),
        (replace(RULES, any_tokenizer=False), _workers(), True),
        # Nobody knows what they were started with.
        (replace(RULES, any_tokenizer=False), replace(_workers(), own_tokenizers=None), False),
        (replace(RULES, any_tokenizer=False), None, False),
    ],
)
def test_a_tokenizer_must_be_one_that_the_operator_has_named(
    rules: Restrictions, catalog: Catalog | None, refused: bool
) -> None:
    value = document({}, {"tokenizer_name": "t"})
    fields = {"rollout_id": "r", "server_url": "http://good", "messages": [MESSAGE], "sampling_params": {}}
    v1 = RolloutRequest.model_validate({**fields, "tokenizer_name": "t"})
    if not refused:
        check_batch(value, catalog, rules)
        assert list(rules.check_v1(v1, catalog)) == []
        return
    with pytest.raises(Rejected) as raised:
        check_batch(value, catalog, rules)
    paths = [fault.path for fault in raised.value.faults]
    assert paths == ["defaults.tokenizer_name", "rollouts[1].tokenizer_name"]
    ((field, fault),) = rules.check_v1(v1, catalog)
    assert field == "tokenizer_name"
    assert "ROLLOUTPOOL_ALLOWED_TOKENIZERS" in fault


def test_a_key_that_no_header_can_hold_is_refused_on_every_wire() -> None:
    rules = Restrictions(Targets.parse("good"), keeps_secrets=True, max_messages=10)
    v1 = v1_request(server_url="http://good", callback_api_key="SECRET\r\nX: y")
    (fault,) = rules.check_v1(RolloutRequest.model_validate(v1))
    assert fault[0] == "callback_api_key"
    assert "SECRET" not in fault[1]
