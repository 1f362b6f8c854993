"""A worker as the store keeps it and as it travels."""

from datetime import UTC, datetime

from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_common.protocol.workers import Worker, WorkersResponse

ADD = ToolDefinition(function=ToolFunction(name="add"))
WORKER = Worker(
    worker_id="w",
    host="h",
    pid=1,
    alive=True,
    slots=8,
    running=0,
    tools=["add"],
    agents=["tool_calls"],
    termination_strategies=[],
    tokenizers={},
    versions={},
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    last_beat_age_s=0.1,
    tool_definitions=[ADD],
)


def test_the_definitions_of_its_tools_do_not_travel() -> None:
    wire = WorkersResponse(workers=[WORKER]).model_dump_json()
    assert "tool_definitions" not in wire
    assert "tool_definitions" not in str(WorkersResponse.model_json_schema(mode="serialization"))
    (read,) = WorkersResponse.model_validate_json(wire).workers
    assert (read.tools, read.tool_definitions) == (["add"], [])
    assert read.started_at == WORKER.started_at
