"""What `rolloutpool agent try` runs: one session of a program against a scripted policy, on a pool of its own.

The policy needs no model. It calls the program's shell once, if the program offers one, and then says that it is done;
so a program that comes to its end is wired up rightly.
"""

import json
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolloutpool_common.capabilities.harness.wire import PRESETS
from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.local.pool import LocalPool

if TYPE_CHECKING:
    from rolloutpool_common.protocol.result import RolloutResult

SHELLS = ("Bash", "bash", "exec_command", "shell", "shell_command")
COMMAND = "echo hello from the policy"
SECONDS = 300.0


class TrialPolicy:
    """Calls a shell once, then is done."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer

    async def __call__(self, _: list[int], params: GenerateParams) -> Generation:
        """Samples a turn."""
        text = self._text(params.messages, params.tools or [])
        close = self._tokenizer.close_id
        ids = [*self._tokenizer.encode(text), *([] if close is None else [close])]
        return Generation(token_ids=ids, logprobs=[-0.5] * len(ids))

    def _text(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        if any(message["role"] == "tool" for message in messages):
            return "Done: the shell has answered."
        for tool in tools:
            function = tool["function"]
            if function["name"] in SHELLS:
                given = function.get("parameters", {}).get("properties", {})
                arguments: dict[str, Any] = {"cmd" if "cmd" in given else "command": COMMAND}
                if "description" in given:
                    arguments["description"] = "says hello"
                call = json.dumps({"name": function["name"], "arguments": arguments})
                return f"<tool_call>\n{call}\n</tool_call>"
        return "Done."


class ProgramUnknown(RolloutPoolError):
    """No preset and no program has this name."""


def harness_of(program: str) -> dict[str, Any]:
    """Makes the rollout's option of what a user has typed: the name of a preset, or a command.

    Raises:
        ProgramUnknown: It is neither.
    """
    words = shlex.split(program)
    presets = (*PRESETS, *entry_points(group="rolloutpool.harnesses").names)
    if program in presets:
        return {"preset": program}
    if not words or shutil.which(words[0]) is None:
        raise ProgramUnknown(f"there is no preset and no program {program!r}; presets are {', '.join(presets)}")
    openai = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}"}
    return {"command": words, "env": {**openai, "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{key}"}}


def run_trial(harness: dict[str, Any], prompt: str, report: Callable[[str], None]) -> "tuple[RolloutResult, str]":
    """Runs one session; returns its result, and the end of what the program has printed.

    Args:
        harness: The rollout's option, a preset or a command.
        prompt: What the program is asked.
        report: Called with a line for people while it runs.
    """
    tokenizer = load_tokenizer(TINY)
    app = callback_app(TrialPolicy(tokenizer), tokenizer=tokenizer)
    with (
        tempfile.TemporaryDirectory(prefix="rolloutpool-trial-") as printed,
        LocalPool(workers=1, flower=False, runner="unsafe", env={"ROLLOUTPOOL_RUNNER_OUTPUT": printed}) as pool,
        pool.client() as client,
        serve_callback(app, ports=[0]) as served,
    ):
        report(f"the program calls its model at {pool.door_url}")
        batch = client.submit(
            [{"messages": [{"role": "user", "content": prompt}]}],
            defaults={
                "tokenizer_name": TINY,
                "harness": {"hosted_tools": "drop", "on_death": "fail", "seconds": SECONDS, **harness},
                "max_tokens_total": 100_000,
            },
            trainer=served.urls,
        )
        (result,) = batch.results()
        texts = [path.read_text().strip() for path in Path(printed).iterdir()]
    return result, "\n".join(texts)
