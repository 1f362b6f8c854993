"""Tokenizers and templates that cannot do what a rollout needs end that rollout, with the right one to blame."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.pool import Pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.v1.response import to_v1
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.testing import TINY_TOKENIZER

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 5, "b": 3}'}}
TOOL_ROLE = "{%- elif message.role == 'tool' or message.role == 'function' -%}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY_TOKENIZER, tmp_path / "tokenizer"))


async def called(
    pool: Pool, tokenizer: ChatTokenizer, directory: Path, tool_calls: list[dict[str, Any]]
) -> list[RolloutResult]:
    """Runs a batch and a v1 rollout whose policy calls tools in turn 1, with that tokenizer on the worker."""
    async with scripted_trainer(tokenizer, say("8", tool_calls), tells=False) as trainer:
        return await pool.run([{}, {"v1": True}], shared={"server_url": trainer.url, "tokenizer_name": str(directory)})


async def test_a_template_that_knows_no_tool_results_is_the_request_s_fault(
    pool: Pool, tokenizer: ChatTokenizer, directory: Path
) -> None:
    template = directory / "chat_template.jinja"
    text = template.read_text()
    assert TOOL_ROLE in text
    template.write_text(text.replace(TOOL_ROLE, "{%- elif message.role == 'nobody' -%}"))
    batch, v1 = await called(pool, tokenizer, directory, [CALL])
    assert batch.status is RolloutStatus.FAILED
    failure = batch.failure
    assert failure is not None
    assert (failure.kind, failure.boundary) == (FailureKind.REQUEST, Boundary.TEMPLATE)
    assert (failure.category, failure.retryable) == (Category.TEMPLATE_REFUSED, False)
    # The turn that was sampled before is delivered.
    assert [set(sample.response_mask) for sample in batch.samples] == [{1}]
    answer = to_v1(v1, tokenizer_name="t", timeout_seconds=600.0)
    assert answer.extra_fields == {"error_category": "internal_error"}
    assert answer.error_message == f"Internal server error: template_refused: {failure.message}"
    assert "unknown role tool" in failure.message


@pytest.mark.parametrize(
    ("file", "text", "category", "calls"),
    [
        ("chat_template.jinja", None, Category.TOKENIZER_ERROR, 0),
        ("tokenizer.json", '{"version": "1.0"}', Category.TOKENIZER_ERROR, 0),
        ("chat_template.jinja", "{% for %}", Category.TEMPLATE_REFUSED, 1),
    ],
    ids=["no template", "a broken tokenizer", "a template that does not compile"],
)
async def test_what_cannot_be_used_is_the_request_s_fault(
    pool: Pool,
    tokenizer: ChatTokenizer,
    directory: Path,
    file: str,
    text: str | None,
    category: Category,
    calls: int,
) -> None:
    (directory / file).unlink()
    if text is not None:
        (directory / file).write_text(text)
    for result in await called(pool, tokenizer, directory, [CALL]):
        assert result.failure is not None
        assert (result.failure.kind, result.failure.category) == (FailureKind.REQUEST, category)
        assert result.num_llm_calls == calls


async def test_a_local_directory_works_like_a_name(pool: Pool, tokenizer: ChatTokenizer, directory: Path) -> None:
    for result in await called(pool, tokenizer, directory, []):
        assert result.status is RolloutStatus.COMPLETED
        assert result.tokenizer == tokenizer.fingerprint.model_dump()
