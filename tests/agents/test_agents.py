"""Agents that people ship, unchanged: each sampled token is in exactly one sample, or is named as left out.

`make test-agents` runs 20 sessions of each over a callback and over an imitated vLLM (SESSIONS=).
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.agents.conftest import AGENTS
from tests.support.agent_policy import AgentPolicy
from tests.support.harness import sampled
from tests.support.pool import Pool

from rolloutpool_common.protocol.result import RolloutResult

SESSIONS = int(os.environ.get("AGENT_SESSIONS", "2"))
ROUNDS = 3
HERE = Path(__file__).parent
PYTHON = str(AGENTS / "py" / "bin" / "python")
OPENAI = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}"}
HARNESSES: dict[str, dict[str, Any]] = {
    "claude-code": {"preset": "claude-code"},
    "codex": {"preset": "codex", "hosted_tools": "drop"},
    "opencode": {"preset": "opencode"},
    "mini-swe-agent": {"preset": "mini-swe-agent"},
    "agents-sdk": {"command": [PYTHON, str(HERE / "sdk_agent.py"), "{prompt}"], "env": OPENAI},
    "ai-sdk": {
        "command": ["node", str(HERE / "ai_sdk_agent.mjs"), "{prompt}"],
        "env": {**OPENAI, "SDK": str(AGENTS / "package.json")},
    },
    "qwen-code": {"command": ["qwen", "-y", "-p", "{prompt}"], "env": {**OPENAI, "OPENAI_MODEL": "policy"}},
}
SMOLAGENTS: dict[str, Any] = {"command": [PYTHON, str(HERE / "smolagents_agent.py"), "{prompt}"], "env": OPENAI}
APPEND_ONLY = HARNESSES.keys() - {"mini-swe-agent"}


async def ran(
    pool: Pool, url: str, harness: dict[str, Any], *, n: int = 1, prompt: str = "", **options: Any
) -> list[RolloutResult]:
    shared = {
        "server_url": url,
        "messages": [{"role": "user", "content": prompt or f"Please do {ROUNDS} rounds with the shell."}],
        "harness": {"on_death": "fail", "seconds": 240, **harness},
        "max_tokens_total": 1_000_000,
        **options,
    }
    uids = await pool.submit(n, shared=shared, asks={"harness": True})
    # Four run at once.
    return list(await asyncio.gather(*[pool.result(uid, 120 + 60 * n) for uid in uids]))


def assert_accounted(results: list[RolloutResult], turns: list[list[int]]) -> None:
    """All that was sampled is in one sample, or in the counts of what was left out."""
    kept = sorted(ids for result in results for ids in sampled(result))
    left = [list(ids) for ids in turns]
    for ids in kept:
        left.remove(ids)
    reports = [result.harness for result in results]
    named = sum(n for report in reports if report for line in report.lines for n in line.left_out.values())
    assert sum(map(len, left)) == named


@pytest.mark.timeout(180 + 60 * SESSIONS)
@pytest.mark.parametrize("policy_kind", ["callback", "vllm"])
@pytest.mark.parametrize("name", HARNESSES)
async def test_an_agent_is_trained_unchanged(
    agents_pool: Pool, policy: AgentPolicy, callback_url: str, engine_url: str, name: str, policy_kind: str
) -> None:
    before = len(policy.sampled)
    options = {} if policy_kind == "callback" else {"protocol": "vllm"}
    url = callback_url if policy_kind == "callback" else engine_url
    results = await ran(agents_pool, url, HARNESSES[name], n=SESSIONS, **options)
    for result in results:
        assert (result.status, result.failure) == ("completed", None), result.failure
        report = result.harness
        assert report is not None
        (main,) = [line for line in report.lines if line.kind == "main"]
        assert main.turns == ROUNDS + 1
        # The tool really ran, as often as the policy asked.
        answers = [str(one.content) for one in result.messages if one.role == "tool"]
        assert len(answers) == ROUNDS
        assert all(f"made {n}" in text for n, text in enumerate(answers))
        if name in APPEND_ONLY:
            assert len(main.samples) == 1
            assert {line.kind for line in report.lines} <= {"main", "side"}
            assert result.drift == {}
    assert_accounted(results, policy.sampled[before:])


@pytest.mark.timeout(180 + 60 * SESSIONS)
@pytest.mark.parametrize("policy_kind", ["callback", "vllm"])
async def test_an_agent_that_tells_its_calls_in_other_words_is_trained(
    agents_pool: Pool, policy: AgentPolicy, callback_url: str, engine_url: str, policy_kind: str
) -> None:
    """Smolagents writes each call into its history as text, so each turn has a line of its own."""
    before = len(policy.sampled)
    options = {} if policy_kind == "callback" else {"protocol": "vllm"}
    url = callback_url if policy_kind == "callback" else engine_url
    for result in await ran(agents_pool, url, SMOLAGENTS, n=SESSIONS, **options):
        assert (result.status, result.failure) == ("completed", None), result.failure
        assert result.harness is not None
        lines = [(line.kind, line.turns, line.left_out) for line in result.harness.lines]
        assert lines == [("main", 1, {}), *[("continuation", 1, {})] * ROUNDS]
        assert len(result.samples) == ROUNDS + 1
    assert len(policy.sampled) - before == SESSIONS * (ROUNDS + 1)


@pytest.mark.parametrize("name", ["claude-code", "codex"])
async def test_a_sub_agent_has_a_line_of_its_own(
    agents_pool: Pool, policy: AgentPolicy, callback_url: str, name: str
) -> None:
    before = len(policy.sampled)
    prompt = f"Please do {ROUNDS} rounds with a sub-agent."
    (result,) = await ran(agents_pool, callback_url, HARNESSES[name], prompt=prompt)
    assert (result.status, result.failure) == ("completed", None)
    assert result.harness is not None
    kinds = {line.kind.value: line for line in result.harness.lines}
    assert kinds["child"].turns == ROUNDS + 1
    assert kinds["child"].left_out == {}
    assert_accounted([result], policy.sampled[before:])


async def test_what_follows_a_compaction_is_trained(agents_pool: Pool, policy: AgentPolicy, callback_url: str) -> None:
    """Codex compacts where its own limit says so; here its prompt alone is nearly that long."""
    before = len(policy.sampled)
    config = (
        'model = "policy"\nmodel_provider = "pool"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
        "model_auto_compact_token_limit = 15200\n"
        '[model_providers.pool]\nname = "pool"\nbase_url = "{url}/v1"\nenv_key = "POOL_KEY"\nwire_api = "responses"\n'
    )
    harness = {**HARNESSES["codex"], "files": {".codex/config.toml": config}}
    (result,) = await ran(agents_pool, callback_url, harness)
    assert (result.status, result.failure) == ("completed", None)
    assert result.harness is not None
    assert [line.kind for line in result.harness.lines] == ["main", "side", "continuation"]
    assert [len(line.samples) for line in result.harness.lines] == [1, 0, 1]
    assert_accounted([result], policy.sampled[before:])
