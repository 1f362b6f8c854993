"""Tools: what the policy reads for each way in which a call can go, and where tools come from."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.pool import Pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import call, say
from tests.support.worker_process import Worker, started_worker

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer


async def called(pool: Pool, tokenizer: ChatTokenizer, *calls: dict[str, Any], **spec: Any) -> RolloutResult:
    """A rollout whose first turn makes these calls."""
    async with scripted_trainer(tokenizer, say("calling", calls), say()) as trainer:
        (uid,) = await pool.submit([spec], shared={"server_url": trainer.url})
        # Isolated tools start processes, which takes seconds each on a loaded machine.
        result = await pool.result(uid, seconds=120)
    assert result.status is RolloutStatus.COMPLETED, result.failure
    assert result.alignment == "exact"
    return result


def contents(result: RolloutResult) -> list[Any]:
    return [message.content for message in result.messages if message.role == "tool"]


async def test_results_keep_call_order_and_ids_whatever_finishes_first(pool: Pool, tokenizer: ChatTokenizer) -> None:
    calls = [call("hang"), call("add", {"a": 1, "b": 2}), call("refuse"), call("crash"), call("hang"), call("hang")]
    result = await called(pool, tokenizer, *calls)
    assert contents(result) == [
        "Error: Tool execution timed out after 1 s",
        "3",
        "Error: the shop is closed",
        # What went wrong inside a tool is for the worker's log.
        "Error: Tool execution failed",
        *["Error: Tool execution timed out after 1 s"] * 2,
    ]
    tools = [message for message in result.messages if message.role == "tool"]
    assert [message.tool_call_id for message in tools] == [made["id"] for made in calls]
    # Concurrently: one after the other would take three seconds.
    assert 900 < result.spans.tools_ms < 2800
    assert result.num_tool_calls == 6
    called_at, ended_at = result.turns
    assert [(made.name, made.ok) for made in called_at.tools] == [
        ("hang", False),
        ("add", True),
        *[(name, False) for name in ("refuse", "crash", "hang", "hang")],
    ]
    assert [made.error for made in called_at.tools if not made.ok] == [
        "TimeoutError",
        None,
        "RuntimeError",
        *["TimeoutError"] * 2,
    ]
    assert result.warnings == ["tool_failed:crash", "tool_failed:hang"]
    status = await pool.store.batches.status(result.batch_id, None)
    assert status is not None
    assert status.tool_errors == {"crash:RuntimeError": 1, "hang:TimeoutError": 3}
    assert not any(name.startswith("tool_error:") for name in (await pool.store.totals.read()).totals)
    assert all(made.ms >= 900 for made in called_at.tools if made.name == "hang")
    assert max(made.ms for made in called_at.tools) <= result.spans.tools_ms + 0.1
    assert called_at.start_ms is not None
    assert called_at.llm_ms is not None
    assert ended_at.start_ms is not None
    assert result.spans.queued_ms <= called_at.start_ms
    # 0.1: each figure is rounded.
    assert called_at.start_ms + called_at.llm_ms + result.spans.tools_ms <= ended_at.start_ms + 0.2
    assert result.spans.llm_ms == pytest.approx(sum(turn.llm_ms or 0 for turn in result.turns), abs=0.2)
    assert ended_at.start_ms <= result.spans.queued_ms + result.spans.total_ms + 0.1
    assert ended_at.tools == []


async def test_a_tool_knows_for_whom_it_runs(pool: Pool, tokenizer: ChatTokenizer) -> None:
    result = await called(pool, tokenizer, call("whoami", call_id="c7"), metadata={"who": "me"}, rollout_id="mine")
    assert contents(result) == [f"mine 1 me {result.uid}/1/c7"]


async def test_only_the_tools_of_the_request_can_be_called(pool: Pool, tokenizer: ChatTokenizer) -> None:
    result = await called(pool, tokenizer, call("subtract", {"a": 1, "b": 2}), tools=["add", "whoami"])
    assert contents(result) == ["Error: Unknown function 'subtract'. Available: ['add', 'whoami']"]
    assert contents(await called(pool, tokenizer, call("add", {"a": 1, "b": 2}), tools=[])) == [
        "Error: Unknown function 'add'. Available: []"
    ]


@pytest.mark.slow
async def test_an_isolated_tool_may_do_what_it_wants(pool: Pool, tokenizer: ChatTokenizer, worker: Worker) -> None:
    codes = {
        "result = 6 * 7": "42",
        "import ctypes; ctypes.string_at(0)": "Error: run_code was ended by SIGSEGV",
        "while True: pass": "Error: Tool execution timed out after 1 s",
        "result = len(bytearray(2 * 2**30))": "Error: run_code was ended: it used more than 256 MB",
        "import os; os._exit(3)": "Error: run_code ended its process with exit code 3",
        "raise SystemExit": "Error: Tool execution failed",
        "result = 300_000 * 'z'": "z" * 2**18 + "… [cut: 262144 of 300000 characters shown]",
    }
    calls = [*(call("run_code", {"code": code}) for code in codes), call("add", {"a": 1, "b": 2})]
    result = await called(pool, tokenizer, *calls)
    assert contents(result) == [*codes.values(), "3"]
    assert result.warnings == ["tool_failed:run_code", "tool_result_cut:run_code"]
    assert worker.process.poll() is None


async def test_a_tool_that_blocks_is_named(pool: Pool, tokenizer: ChatTokenizer, worker: Worker) -> None:
    result = await called(pool, tokenizer, call("doze"), call("whoami"))
    assert contents(result)[0] == "slept"
    assert result.warnings == ["tool_blocked:doze"]
    assert "tool doze blocked the event loop for 1.2 s" in worker.log()


def installed(site: Path, name: str, source: str, entry_points: str) -> Path:
    """A distribution with entry points, as pip would leave it behind."""
    (site / f"{name}.py").write_text(source)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return site


SHOUT = """
from rolloutpool_worker.tools import Tool, ToolContext
from rolloutpool_common.protocol.messages import ToolDefinition, ToolFunction
from rolloutpool_worker.agents.termination import TerminationDecision

async def run(context: ToolContext, text: str) -> object:
    return text.upper()

shout = Tool(ToolDefinition(function=ToolFunction(name="shout", description="Shouts")), run)

def never(turn, messages):
    return TerminationDecision(end=not turn.tool_calls)

async def silent(conversation):
    from rolloutpool_common.outcomes import FinishReason
    await conversation.sample()
    return FinishReason.STRATEGY
"""

POINTS = """
[rolloutpool.tools]
shout = shouting:shout
[rolloutpool.termination]
never = shouting:never
[rolloutpool.agents]
silent = shouting:silent
"""


async def test_entry_points_of_installed_packages_are_found(
    redis_url: str, tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    site = installed(tmp_path, "shouting", SHOUT, POINTS)
    with started_worker(redis_url, [site]) as worker:
        pool = Pool(redis_url)
        try:
            info = await worker.announced(pool.store)
            assert info.tools[4:] == ["shout"]
            assert info.agents == ["tool_calls", "text_steps", "silent"]
            assert info.termination_strategies == ["task_completion", "never"]
            result = await called(pool, tokenizer, call("shout", {"text": "hey"}))
            assert contents(result) == ["HEY"]
            silent = await called(pool, tokenizer, call("shout", {"text": "hey"}), agent="silent")
            assert (silent.finish_reason, contents(silent)) == ("strategy", [])
        finally:
            await pool.close()


@pytest.mark.parametrize(
    ("source", "points", "plugins", "says"),
    [
        (SHOUT, "[rolloutpool.tools]\nadd = shouting:shout\n", "", "the name 'add' is taken twice"),
        (
            "1 / 0",
            "",
            "shouting",
            "shouting cannot be imported: ZeroDivisionError: division by zero (shouting.py:1",
        ),
    ],
)
async def test_a_broken_plug_in_stops_the_worker_with_a_line(
    pool_url: str, tmp_path: Path, source: str, points: str, plugins: str, says: str
) -> None:
    site = installed(tmp_path, "shouting", source, points)
    with started_worker(pool_url, [site], ROLLOUTPOOL_PLUGINS=plugins) as worker:
        assert await worker.ended() == 2
        lines = [line for line in worker.log().splitlines() if line.startswith("rolloutpool worker: ")]
        assert len(lines) == 1, worker.log()
        assert says in lines[0]
        assert "Traceback" not in worker.log()
