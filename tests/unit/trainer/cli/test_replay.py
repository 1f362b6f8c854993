"""`rolloutpool replay` of files and of a pool, in a process of the worker's package."""

import asyncio
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.answered_pool import VIEW
from tests.support.finished_rollouts import rollout, turn
from tests.support.journals import turn_record
from tests.support.kept_journals import carrying
from tests.support.stub_pool import Answer, StubPool
from typer.testing import CliRunner, Result

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.replay import ReplayReport
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_trainer.cli import app
from rolloutpool_worker.replay.__main__ import replay_lines

UID = f"b{'0' * 32}-0"


@pytest.fixture(scope="module")
def calculated() -> RolloutResult:
    """A rollout of one turn, with real ids."""
    tokenizer = TokenizerCache(1).load("rolloutpool/tiny")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Calculate 15 + 23"}]
    ids = [*tokenizer.encode("38"), tokenizer.close_id or 0]
    ledger = TokenLedger()
    ledger.seed(tokenizer.render_prompt(messages))
    ledger.append_sampled(ids, [-0.5] * len(ids), turn=1)
    record = turn_record("38")
    record.entries = ledger.entries
    record.summary = turn(1, prompt_tokens=len(ledger) - len(ids), sampled_tokens=len(ids), tool_calls=0)
    made = rollout(
        *ledger.samples(),
        uid=UID,
        messages=[Message.model_validate(m) for m in (*messages, record.message)],
        turns=[record.summary],
        alignment="exact",
        num_llm_calls=1,
    )
    return carrying(made, [record], [made.messages[0].wire()], options={"tokenizer_name": "rolloutpool/tiny"})


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's command runs in this process, which has imported transformers already."""

    def run(command_line: list[str], *, input: str, **_: Any) -> Any:
        assert command_line[1:3] == ["-m", "rolloutpool_worker.replay"]
        output = io.StringIO()
        lines = input.splitlines(keepends=True)
        asyncio.run(replay_lines(lines, output, TokenizerCache(1), next(iter(command_line[3:]), None)))
        return type("Ended", (), {"stdout": output.getvalue(), "returncode": 0})

    monkeypatch.setattr(subprocess, "run", run)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments, "--tokenizer", "rolloutpool/tiny"])


def changed(result: RolloutResult) -> RolloutResult:
    other = result.model_copy(deep=True)
    other.samples[0].response_mask[1] = 0
    return other


@pytest.mark.usefixtures("ran")
def test_a_file_of_results(calculated: RolloutResult, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    line = encode_result(calculated).decode()
    file.write_text(f"{line}\n\n{line}\n")
    done = run(str(file))
    assert (done.exit_code, done.stdout.count("the same: 1 turns")) == (0, 2), done.output
    file.write_text(f"{line}\n{encode_result(changed(calculated)).decode()}\n")
    done = run(str(file))
    assert done.exit_code == 1
    assert "differs at turn 1, sample 0, position 1: response_mask: recorded 0, now 1" in done.stdout


@pytest.mark.usefixtures("ran")
def test_each_form_of_a_file(calculated: RolloutResult, tmp_path: Path) -> None:
    result = json.loads(encode_result(calculated))
    for place, document in enumerate(
        (result, [result], {"items": [{"cursor": "1", "result": result}]}, {"uid": UID, "result": result})
    ):
        file = tmp_path / f"{place}.json"
        file.write_text(json.dumps(document, indent=2))
        done = run(str(file), "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["same"] is True


@pytest.mark.usefixtures("ran")
def test_lines_that_are_no_results(calculated: RolloutResult, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    line = encode_result(calculated).decode()
    file.write_text(f'{line}\n{line[:100]}\n{{"a": 1}}\n7\n')
    done = run(str(file), "--json")
    assert done.exit_code == 1
    reports = [ReplayReport.model_validate(one) for one in json.loads(done.stdout)["reports"]]
    assert [report.same for report in reports] == [True, False, False, False]
    assert all("no result" in (report.lacks or "") for report in reports[1:])
    empty = tmp_path / "empty"
    empty.write_text("")
    assert "holds no results" in run(str(empty)).stderr


@pytest.mark.usefixtures("ran")
def test_a_rollout_of_the_pool(calculated: RolloutResult, pool: StubPool) -> None:
    view = VIEW | {"uid": UID, "status": "completed", "result": json.loads(encode_result(calculated))}
    pool.on("GET", f"/v1/rollouts/{UID}", Answer(body=view), Answer(body=view | {"status": "running", "result": None}))
    assert run(UID).exit_code == 0
    running = run(UID)
    assert running.exit_code == 1
    assert "once it has ended" in running.stderr
