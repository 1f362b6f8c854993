"""tests/unit mirrors the modules: what a module does is tested in `tests/unit/<distribution>/<path>/test_<module>.py`.

A module needs no test module of its own if it does nothing (it only declares types, constants and fields), or if it is
listed below with the test module that covers it, for one of these reasons:

- it is a part of another module's mechanism, and only the whole can be tested;
- it needs a real Redis: fakeredis has no `INFO`, no outages and no blocking reads over several connections;
- it is what a process does, or what goes over a socket, and has no behaviour without it.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("common", "api", "worker", "rl", "trainer")

PARTS = {
    "common/protocol/operations": "integration/api/test_operations",
    "common/protocol/options": "unit/api/test_validation",
    "common/process/child": "unit/common/process/test_supervisor",
    "common/rendering/control_tokens": "unit/common/rendering/test_codec",
    "common/rendering/errors": "unit/common/rendering/test_delta",
    "common/rendering/forms": "unit/common/rendering/test_delta_families",
    "common/rendering/joint": "unit/common/rendering/test_short_cuts",
    "common/rendering/proof/access": "unit/common/rendering/proof/test_prover",
    "common/rendering/proof/claims": "unit/common/rendering/proof/test_prover",
    "common/rendering/proof/comparisons": "unit/common/rendering/proof/test_prover",
    "common/rendering/proof/expressions": "unit/common/rendering/proof/test_prover",
    "common/rendering/proof/loops": "unit/common/rendering/proof/test_statements",
    "common/rendering/proof/macros": "unit/common/rendering/proof/test_statements",
    "common/rendering/proof/operations": "unit/common/rendering/proof/test_prover",
    "common/rendering/proof/state": "unit/common/rendering/proof/test_statements",
    "common/rendering/proof/texts": "unit/common/rendering/proof/test_prover",
    "common/rendering/proof/values": "unit/common/rendering/proof/test_prover",
    "common/rendering/sentinel": "unit/common/rendering/test_delta",
    "common/rendering/template": "unit/common/rendering/test_delta",
    "common/rendering/tokenizer": "unit/common/rendering/test_codec",
    "common/rendering/turn_end": "unit/common/rendering/test_delta",
    "common/rendering/vocabulary": "unit/common/rendering/test_codec",
    "common/rendering/written": "unit/common/rendering/test_delta",
    "common/protocol/fork": "unit/api/test_forks",
    "common/security/certificates": "integration/test_redis_tls",
    "rl/arrays": "unit/rl/test_losses",
    "rl/openai_choices": "unit/rl/test_choice_conversation",
    "rl/formats": "unit/rl/test_export",
    "rl/training_rows": "unit/rl/test_export",
    "rl/role_spans": "unit/rl/test_role_masks",
    "trainer/cli/batches": "unit/trainer/cli/test_cli",
    "trainer/cli/console": "unit/trainer/cli/test_cli",
    "trainer/cli/operations": "unit/trainer/cli/test_cli",
    "trainer/cli/options": "unit/trainer/cli/test_cli",
    "trainer/cli/rollouts": "unit/trainer/cli/test_cli",
    "trainer/client/aio_batch": "unit/trainer/client/test_groups",
    "trainer/client/aio_stream": "unit/trainer/client/test_stream_cursor",
    "trainer/client/calls": "unit/trainer/client/test_sync",
    "trainer/client/progress": "unit/trainer/client/test_sync",
    "trainer/client/results": "unit/trainer/client/test_sync",
    "trainer/client/submission": "unit/trainer/client/test_groups",
    "trainer/client/sync_batch": "unit/trainer/client/test_groups",
    "trainer/client/sync_stream": "unit/trainer/client/test_stream_cursor",
    "trainer/client/tally": "unit/trainer/client/test_groups",
    "trainer/client/run_calls": "integration/trainer/test_client_runs",
    "trainer/client/views": "integration/trainer/test_client_views",
    "trainer/client/transport": "unit/trainer/client/test_sync",
    "trainer/endpoint/errors": "unit/trainer/endpoint/test_request",
    "trainer/endpoint/prompts": "unit/trainer/endpoint/test_app_tokens",
    "trainer/errors": "unit/trainer/client/test_sync",
    "worker/graders/own_loop": "unit/worker/graders/test_host",
    "worker/environments/opened": "unit/worker/environments/test_session",
    "worker/conversation/fork_point": "unit/worker/rollout/test_fork",
    "worker/recorded/channels": "unit/worker/replay/test_run",
    "worker/recorded/script": "unit/worker/replay/test_run",
    "worker/recorded/session": "unit/worker/replay/test_run",
    "worker/recorded/tools": "unit/worker/replay/test_run",
    "worker/replay/assumed": "unit/worker/replay/test_run",
    "worker/replay/differences": "unit/worker/replay/test_run",
    "worker/rollout/ticket": "unit/worker/rollout/test_attempt",
    "common/store/batch_state": "unit/common/store/test_batches",
}
"""Parts of a mechanism that is tested as a whole."""
NEEDS_REDIS = {
    "common/process/obituaries": "integration/store/test_obituaries",
    "common/queue/celery_app": "integration/store/test_publishing",
    "common/queue/publisher": "integration/store/test_publishing",
    "common/store/batch_list": "integration/api/test_batch_list",
    "common/store/annotations": "integration/api/test_annotations",
    "common/store/grading": "unit/worker/rollout/test_grading",
    "common/store/history": "integration/api/test_history",
    "common/store/rows": "integration/api/test_rows",
    "common/store/rollout_view": "integration/store/test_rollouts",
    "common/store/deletion": "integration/store/test_batches",
    "common/store/connection": "integration/store/test_connection",
    "common/store/lifeline": "integration/store/test_lifeline",
    "common/store/liveness": "integration/store/test_liveness",
    "common/store/polling_leases": "integration/store/test_polling_leases",
    "common/store/reconciliation": "integration/store/test_reconciliation",
    "common/store/scripting": "integration/store/test_scripting",
    "common/store/sender": "integration/store/test_sender",
    "common/store/regrades": "unit/worker/process/test_regrading",
    "common/store/signals": "integration/store/test_signals",
}
PROCESSES_AND_SOCKETS = {
    "api/__main__": "integration/api/test_process",
    "api/access": "integration/api/test_access",
    "api/body_process": "integration/api/test_large_bodies",
    "api/body_reader": "integration/api/test_large_bodies",
    "api/hot_routes": "integration/api/test_hot_routes",
    "api/large_bodies": "integration/api/test_large_bodies",
    "api/app": "integration/api/test_v1_wire",
    "api/events": "integration/api/test_events",
    "api/routes/batch_list": "integration/api/test_batch_list",
    "api/routes/batches": "integration/api/test_batches",
    "api/routes/health": "integration/api/test_process",
    "api/routes/metrics": "integration/api/test_metrics",
    "api/routes/openapi_errors": "integration/api/test_fuzz",
    "api/routes/operations": "integration/api/test_operations",
    "api/routes/rollouts": "integration/api/test_v1_wire",
    "api/annotations": "integration/api/test_annotations",
    "api/routes/annotations": "integration/api/test_annotations",
    "api/routes/attachments": "integration/api/test_attachments",
    "api/routes/docs": "integration/api/test_docs_page",
    "api/routes/forks": "integration/api/test_forks",
    "api/routes/history": "integration/api/test_history",
    "api/osmosis": "integration/api/test_osmosis",
    "api/routes/osmosis": "integration/api/test_osmosis",
    "api/routes/regrades": "integration/api/test_regrades",
    "api/routes/rows": "integration/api/test_rows",
    "api/routes/runs": "integration/api/test_runs",
    "api/routes/tokenizers": "integration/api/test_token_pieces",
    "api/routes/tools": "integration/api/test_pool",
    "api/routes/ui": "integration/api/test_ui",
    "api/services": "integration/api/test_process",
    "api/synchronous": "integration/api/test_synchronous",
    "common/process/launch": "acceptance/test_local_pool",
    "worker/process/parent": "integration/worker/test_parent",
    "worker/__main__": "integration/worker/test_tools",
    "worker/replay/__main__": "unit/trainer/cli/test_replay",
    "worker/policy/transport": "integration/worker/test_transport",
    "worker/queue/app": "integration/worker/test_drain",
    "worker/queue/flower": "acceptance/test_security",
    "trainer/adapters/verifiers": "trainers/test_verifiers_server",
    "trainer/cli/demo": "acceptance/test_demo",
    "trainer/cli/pool": "acceptance/test_up",
    "trainer/local/pool": "acceptance/test_local_pool",
    "trainer/local/redis_server": "integration/trainer/test_embedded_redis",
}
ELSEWHERE = {**PARTS, **NEEDS_REDIS, **PROCESSES_AND_SOCKETS}


def does_something(module: Path) -> bool:
    """Whether a function of the module has a body; declarations of types, constants and fields have none."""
    functions = [
        node
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return any(
        not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for function in functions
        for statement in function.body
    )


def modules() -> dict[str, Path]:
    """Each module that does something, by distribution and path."""
    found = {}
    for distribution in DISTRIBUTIONS:
        package = ROOT / distribution / "src" / f"rolloutpool_{distribution}"
        for module in sorted(package.rglob("*.py")):
            if module.name != "__init__.py" and does_something(module):
                found[f"{distribution}/{module.relative_to(package).with_suffix('')}"] = module
    return found


def own_test(name: str) -> Path:
    """Where the module's own tests are."""
    path = ROOT / "tests" / "unit" / name
    return path.with_name(f"test_{path.name.strip('_')}.py")


def test_each_module_is_tested_where_its_name_says() -> None:
    found = modules()
    places = {
        name: f"tests/{ELSEWHERE[name]}.py" if name in ELSEWHERE else str(own_test(name).relative_to(ROOT))
        for name in found
    }
    missing = {name: place for name, place in places.items() if not (ROOT / place).exists()}
    assert missing == {}, "write these tests, or list the module here with its tests"
    strangers = ELSEWHERE.keys() - found.keys()
    assert strangers == set(), "there is no such module any more, or it does nothing: take it out of the list"


def test_no_exception_has_tests_of_its_own() -> None:
    assert [name for name in ELSEWHERE if own_test(name).exists()] == [], "take them out of the list"
