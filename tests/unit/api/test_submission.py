"""What is stored is what was asked for: merged late, expanded early, endpoints and groups decided."""

from typing import Any

import orjson
import pytest

from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.submission import plan_batch, plan_v1
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import NewBatch, merge_spec


def rollout(**changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], **changes}


def plan(*rollouts: dict[str, Any], key: str | None = None, **changes: Any) -> NewBatch:
    document = {"defaults": {"tokenizer_name": "tiny", "server_url": "http://t/"}, "rollouts": list(rollouts)}
    rules = Restrictions(Targets.parse("*,::1"), keeps_secrets=True, max_messages=100)
    return plan_batch({**document, **changes}, None, rules, owner="s", idempotency_key=key)


def test_every_plan_is_a_valid_spec() -> None:
    new = plan(rollout(n=2, rollout_id="a", idempotent="yes", max_turns="7", server_url="http://own//"))
    specs = [merge_spec(new.shared, r.overrides, uid=f"u-{i}") for i, r in enumerate(new.rollouts)]
    assert [(s.rollout_id, s.max_turns, s.idempotent, s.server_url) for s in specs] == [
        ("a-0", 7, True, "http://own"),
        ("a-1", 7, True, "http://own"),
    ]


def test_deadlines_own_before_default() -> None:
    defaults = {"tokenizer_name": "tiny", "server_url": "http://t", "deadline_seconds": 60}
    new = plan(rollout(), rollout(deadline_seconds="5"), rollout(deadline_seconds=None), defaults=defaults)
    assert [r.deadline_s for r in new.rollouts] == [60, 5, None]
    assert "deadline_seconds" not in orjson.loads(new.shared)


def test_an_own_null_overrides_a_default() -> None:
    defaults = {"tokenizer_name": "tiny", "server_url": "http://t", "tools": ["add"], "tokenizer_revision": "x"}
    new = plan(rollout(tools=None, tokenizer_name=None, server_url=None), defaults=defaults)
    spec = merge_spec(new.shared, new.rollouts[0].overrides, uid="u-0")
    assert (spec.tools, spec.tokenizer_name, spec.server_url) == (None, "tiny", "http://t")
    assert spec.tokenizer_revision == "x"


def test_groups_take_endpoints_in_turn() -> None:
    new = plan(
        rollout(group="a"),
        rollout(),
        rollout(group="b"),
        rollout(group="a"),
        rollout(n=2),
        defaults={"tokenizer_name": "tiny"},
        trainer={"server_urls": ["http://0", "http://1", "http://2"]},
    )
    assert [orjson.loads(r.overrides)["server_url"] for r in new.rollouts] == [
        "http://0",
        "http://1",
        "http://2",
        "http://0",
        "http://0",
        "http://0",
    ]
    assert [r.group for r in new.rollouts] == ["a", None, "b", "a", "rollouts[4]", "rollouts[4]"]


def test_a_made_up_group_is_nobody_elses() -> None:
    new = plan(rollout(n=2, rollout_id="a"), rollout(group="a"))
    assert [r.group for r in new.rollouts] == ["a+", "a+", "a"]


def test_keys_of_batches_and_rollouts_do_not_meet() -> None:
    request = RolloutRequest.model_validate(
        {"rollout_id": "x", "server_url": "http://t", "tokenizer_name": "t", "sampling_params": {}, **rollout()}
    )
    single = plan_v1(request, owner="s", deadline_s=600)
    assert single.idempotency_key == "v1/x"
    assert plan(rollout(), key="v1/x").idempotency_key == "batch/v1/x"
    assert plan(rollout()).idempotency_key is None


def test_the_digest_knows_content_from_form() -> None:
    first = plan(rollout(metadata={"a": 1, "b": 2}))
    assert first.digest == plan(rollout(metadata={"b": 2, "a": 1})).digest
    assert first.digest != plan(rollout(metadata={"b": 2, "a": 2})).digest


def test_v1_integers_beyond_64_bits_are_refused() -> None:
    request = RolloutRequest.model_validate(
        {
            "rollout_id": "x",
            "server_url": "http://t",
            "tokenizer_name": "t",
            "sampling_params": {},
            "metadata": {"n": 2**64},
            **rollout(),
        }
    )
    with pytest.raises(TypeError, match="64-bit"):
        plan_v1(request, owner="s", deadline_s=600)


def test_a_trainers_protocol_holds_for_its_own_endpoints() -> None:
    new = plan(
        rollout(),
        rollout(server_url="http://callback"),
        rollout(server_url="http://engine", protocol="sglang"),
        defaults={"tokenizer_name": "tiny"},
        trainer={"server_urls": ["http://0", "http://1"], "protocol": "vllm", "model": "policy"},
    )
    specs = [merge_spec(new.shared, r.overrides, uid=f"u-{i}") for i, r in enumerate(new.rollouts)]
    assert [(s.server_url, s.protocol, s.model) for s in specs] == [
        ("http://0", "vllm", "policy"),
        ("http://callback", "callback", None),
        ("http://engine", "sglang", None),
    ]


def test_defaults_may_name_a_protocol_for_endpoints_that_are_not_the_trainers() -> None:
    new = plan(
        rollout(),
        rollout(server_url="http://own"),
        defaults={"tokenizer_name": "tiny", "protocol": "sglang", "logprobs_mode": "raw"},
        trainer={"host": "engines", "protocol": "vllm"},
    )
    specs = [merge_spec(new.shared, r.overrides, uid=f"u-{i}") for i, r in enumerate(new.rollouts)]
    assert [(s.protocol, s.logprobs_mode) for s in specs] == [("vllm", "raw"), ("sglang", "raw")]
    assert [s.may_repeat for s in specs] == [True, True]


def test_a_turn_in_doubt_has_one_option_and_its_old_name_is_read() -> None:
    new = plan(
        rollout(),
        rollout(on_ambiguous_turn="retry"),
        rollout(on_ambiguous_turn="fail"),
        defaults={"tokenizer_name": "tiny", "idempotent": False},
        trainer={"host": "t"},
    )
    specs = [merge_spec(new.shared, r.overrides, uid=f"u-{i}") for i, r in enumerate(new.rollouts)]
    assert [s.may_repeat for s in specs] == [False, True, False]
    assert not any(b"on_ambiguous_turn" in one.overrides for one in new.rollouts)
    # As an older release has stored it.
    older = new.shared.replace(b'"idempotent":false', b'"on_ambiguous_turn":"retry"')
    assert merge_spec(older, b'{"messages":[]}', uid="u-9").may_repeat


def test_a_tool_server_counts_only_where_it_is_called() -> None:
    def planned(url: str | None, *, called: bool) -> tuple[str, Any]:
        fields = {"rollout_id": "x", "server_url": "http://t", "tokenizer_name": "t", "sampling_params": {}}
        request = RolloutRequest.model_validate({**fields, **rollout(), "tool_server_url": url})
        new = plan_v1(request, owner="s", deadline_s=600, calls_tool_servers=called)
        spec = orjson.loads(new.rollouts[0].overrides)
        assert "tool_server_url" not in spec
        return str(new.digest), spec.get("environment")

    plain = planned(None, called=False)
    assert plain[1] is None
    assert plain == planned("http://tools", called=False) == planned(None, called=True) == planned("", called=True)
    digest, environment = planned("http://tools", called=True)
    assert environment == {"name": "tool_server_url", "task": "http://tools"}
    assert len({digest, plain[0], planned("http://others", called=True)[0]}) == 3
