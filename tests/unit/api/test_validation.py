"""A rejection lists every fault, each with its path in the document."""

from typing import Any

import pytest

from rolloutpool_api.checks import Catalog
from rolloutpool_api.errors import MalformedBody, Rejected
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.validation import check_batch
from rolloutpool_common.security.targets import Targets

CATALOG = Catalog(
    tools=frozenset({"add"}),
    agents=frozenset({"tool_calls"}),
    termination_strategies=frozenset({"task_completion"}),
)


RULES = Restrictions(Targets.parse("*"), keeps_secrets=True, max_messages=100)


def rollout(**changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], **changes}


def document(*rollouts: Any, **changes: Any) -> dict[str, Any]:
    return {
        "defaults": {"tokenizer_name": "tiny", "server_url": "http://t"},
        "rollouts": list(rollouts) or [rollout()],
        **changes,
    }


def faults(value: Any, catalog: Catalog | None = CATALOG) -> dict[str, str]:
    """Path to message; fails where two faults have one path."""
    with pytest.raises(Rejected) as raised:
        check_batch(value, catalog, RULES)
    found = raised.value.faults
    assert raised.value.total == len(found)
    assert len({fault.path for fault in found}) == len(found), found
    return {fault.path: fault.message for fault in found}


@pytest.mark.parametrize("value", [[], 1, "x", None])
def test_what_is_no_object_is_malformed(value: Any) -> None:
    with pytest.raises(MalformedBody):
        check_batch(value, None, RULES)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (rollout(messages=[]), "rollouts[0].messages"),
        ({}, "rollouts[0].messages"),
        (rollout(messages=[{"role": "robot"}]), "rollouts[0].messages[0].role"),
        (rollout(unknown=1), "rollouts[0].unknown"),
        (rollout(**{"a b": 1}), 'rollouts[0]["a b"]'),
        (rollout(max_turns=0), "rollouts[0].max_turns"),
        (rollout(max_turns=101), "rollouts[0].max_turns"),
        (rollout(max_tokens_total=1_000_001), "rollouts[0].max_tokens_total"),
        (rollout(deadline_seconds="nan"), "rollouts[0].deadline_seconds"),
        (rollout(group=""), "rollouts[0].group"),
        (rollout(n=0), "rollouts[0].n"),
        (rollout(n=1025), "rollouts[0].n"),
        (rollout(rollout_id=" "), "rollouts[0].rollout_id"),
        (rollout(rollout_id="x" * 255, n=2), "rollouts[0].rollout_id"),
        (rollout(server_url="ftp://x"), "rollouts[0].server_url"),
        (rollout(server_url="http://"), "rollouts[0].server_url"),
        (rollout(server_url="http:///path"), "rollouts[0].server_url"),
        (rollout(sampling_params={"messages": []}), "rollouts[0].sampling_params"),
        (rollout(sampling_params={"temperature": 3}), "rollouts[0].sampling_params.temperature"),
        (rollout(deadline_seconds=0), "rollouts[0].deadline_seconds"),
        (rollout(labels={"a": 1}), "rollouts[0].labels.a"),
        (rollout(labels={"a": "v" * 257}), "rollouts[0].labels.a"),
        (rollout(labels={str(i): "" for i in range(33)}), "rollouts[0].labels"),
        (rollout(labels={"a": "x\ny"}), "rollouts[0].labels.a"),
        (rollout(labels={"a": "x\u2028y"}), "rollouts[0].labels.a"),
        (rollout(callback_api_key="se\r\ncret"), "rollouts[0].callback_api_key"),
        (rollout(agent="nobody"), "rollouts[0].agent"),
        (rollout(tools=["add", "launch"]), "rollouts[0].tools[1]"),
        (rollout(metadata={"max_user_turns": 0}), "rollouts[0].metadata.max_user_turns"),
        (rollout(metadata={"budget_tokens": True}), "rollouts[0].metadata.budget_tokens"),
        (rollout(metadata={"max_assistant_turns": "3"}), "rollouts[0].metadata.max_assistant_turns"),
        (rollout(metadata={"termination_strategy": "never"}), "rollouts[0].metadata.termination_strategy"),
        (rollout(metadata={"termination_strategy": 5}), "rollouts[0].metadata.termination_strategy"),
        (rollout(metadata={"x": [2**64]}), "rollouts[0]"),
        (
            rollout(messages=[{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "add"}}]}]),
            "rollouts[0].messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_one_fault_one_path(value: dict[str, Any], path: str) -> None:
    assert list(faults(document(value))) == [path]


@pytest.mark.parametrize("value", [None, 5, "x", []])
def test_a_rollout_that_is_no_object(value: Any) -> None:
    assert list(faults(document(value))) == ["rollouts[0]"]


def test_a_union_reports_the_place_and_not_its_members() -> None:
    with pytest.raises(Rejected) as raised:
        check_batch(document(rollout(messages=[{"role": "user", "content": 5}])), None, RULES)
    assert {fault.path for fault in raised.value.faults} == {"rollouts[0].messages[0].content"}


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"rollouts": []}, ["rollouts"]),
        ({"rollouts": {}}, ["rollouts"]),
        ({"rollouts": None}, ["rollouts"]),
        ({"rollouts": [rollout(n=1000)] * 11}, ["rollouts"]),
        ({"unknown": 1}, ["unknown"]),
        ({"priority": "urgent"}, ["priority"]),
        ({"labels": []}, ["labels"]),
        ({"defaults": None}, ["defaults"]),
        ({"defaults": {"unknown": 1}}, ["defaults.unknown"]),
        ({"delivery": {"callback_url": "x", "secret": "short"}}, ["delivery.callback_url", "delivery.secret"]),
    ],
)
def test_faults_around_the_rollouts(changes: dict[str, Any], paths: list[str]) -> None:
    value = document(rollout(tokenizer_name="tiny", server_url="http://t"), **changes)
    assert list(faults(value)) == paths


@pytest.mark.parametrize(
    ("trainer", "paths"),
    [
        (5, ["trainer"]),
        ({}, ["trainer.host"]),
        ({"host": "a b"}, ["trainer.host"]),
        ({"host": "h/x"}, ["trainer.host"]),
        ({"host": "user@h"}, ["trainer.host"]),
        ({"host": "t", "base_port": 65535, "workers": 2}, ["trainer"]),
        ({"host": "t", "base_port": 0, "extra": 1}, ["trainer.base_port", "trainer.extra"]),
        ({"server_urls": []}, ["trainer.server_urls"]),
        ({"server_urls": ["http://t", 5]}, ["trainer.server_urls[1]"]),
        ({"server_urls": ["http://", "https://ok", "ftp://x"]}, ["trainer.server_urls"]),
        ({"server_urls": ["http://t"], "host": "t"}, ["trainer.host"]),
    ],
)
def test_a_trainer_is_judged_by_the_form_it_has(trainer: Any, paths: list[str]) -> None:
    assert list(faults(document(trainer=trainer, defaults={"tokenizer_name": "tiny"}))) == paths


def test_a_trainer_beside_a_default_url_would_be_ignored() -> None:
    assert list(faults(document(trainer={"host": "t"}))) == ["trainer"]


def test_tokenizer_and_endpoint_are_needed_somewhere() -> None:
    found = faults({"rollouts": [rollout(), rollout(tokenizer_name="tiny"), rollout(server_url="http://t")]})
    assert list(found) == [
        "rollouts[0].tokenizer_name",
        "rollouts[0].server_url",
        "rollouts[1].server_url",
        "rollouts[2].tokenizer_name",
    ]


def test_a_null_is_no_tokenizer() -> None:
    assert check_batch(document(rollout(tokenizer_name=None)), None, RULES).digest
    assert list(faults(document(rollout(tokenizer_name=None), defaults={"server_url": "http://t"}))) == [
        "rollouts[0].tokenizer_name"
    ]


def test_ids_are_unique_after_expansion() -> None:
    found = faults(document(rollout(rollout_id="a", n=2), rollout(rollout_id="b"), rollout(rollout_id="a-1")))
    assert found == {"rollouts[2].rollout_id": "'a-1' is also an id of rollouts[0]; ids are unique in a batch"}


def test_no_fault_hides_another() -> None:
    found = faults(
        document(
            rollout(rollout_id="a", messages=[]),
            rollout(rollout_id="a", tools=["launch"], max_turns=0),
            7,
            priority="urgent",
            defaults={"agent": "nobody", "max_turns": 1000},
        )
    )
    assert set(found) == {
        "priority",
        "defaults.agent",
        "defaults.max_turns",
        "rollouts[0].messages",
        "rollouts[0].tokenizer_name",
        "rollouts[0].server_url",
        "rollouts[1].rollout_id",
        "rollouts[1].tools[0]",
        "rollouts[1].max_turns",
        "rollouts[1].tokenizer_name",
        "rollouts[1].server_url",
        "rollouts[2]",
    }


def test_names_are_not_judged_without_a_worker() -> None:
    assert Catalog.of([]) is None
    assert check_batch(document(rollout(agent="nobody", tools=["launch"])), None, RULES).digest


def test_messages_are_short_whatever_the_input() -> None:
    found = faults(document(rollout(agent="x" * 120, rollout_id="y" * 10_000, **{"k" * 10_000: 1})))
    assert all(len(path) < 200 and len(message) <= 500 for path, message in found.items())


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"max_staleness": 1}, "max_staleness"),
        ({"max_staleness": -1, "run": "r"}, "max_staleness"),
        ({"max_staleness": "many", "run": "r"}, "max_staleness"),
        ({"max_staleness": 1, "run": "r", "on_stale": "forget"}, "on_stale"),
        ({"max_staleness": 1, "run": "r", "on_stale": "restart"}, "rollouts[0]"),
        ({"lease_seconds": 1}, "lease_seconds"),
        ({"lease_seconds": 1e9}, "lease_seconds"),
    ],
)
def test_what_steers_a_batch_is_checked(changes: dict[str, Any], path: str) -> None:
    assert list(faults(document(**changes))) == [path]


def test_a_batch_may_be_steered() -> None:
    batch = check_batch(document(max_staleness=0, run="r", lease_seconds=10), None, RULES).batch
    assert (batch.max_staleness, batch.on_stale, batch.lease_seconds) == (0, "drop", 10)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": {"run": "a\x1b[31m"}}, "labels.run: must not hold control characters: there is U+001B at 1"),
        ({"labels": {"a\nb": "x"}}, "must not hold control characters: there is U+000A at 1"),
        (
            {"defaults": {"tokenizer_name": "t", "server_url": "http://t", "callback_api_key": "SECRET\r\nX: y"}},
            "defaults.callback_api_key: must hold printable ASCII characters only, because it is sent in a header",
        ),
        (
            {"defaults": {"tokenizer_name": "t", "server_url": "http://t", "callback_api_key": "SECRET\u00e9"}},
            "see place 6",
        ),
    ],
)
def test_what_no_line_or_header_can_hold_is_refused_by_its_place(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Rejected) as raised:
        check_batch({**document(rollout()), **changes}, None, RULES)
    (fault,) = raised.value.faults
    assert said in f"{fault.path}: {fault.message}"
    assert "SECRET" not in str(fault)
