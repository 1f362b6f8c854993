"""Presets: how programs that people use are started, so that they call the policy at the door and nobody else.

In all texts `{prompt}`, `{url}`, `{key}` and `{home}` stand for the rollout's last message, the session's address and
key, and the program's own home. Others register under `rolloutpool.harnesses`:

    HARNESSES.register("mine", Preset(("my-agent", "{prompt}"), env={"OPENAI_BASE_URL": "{url}/v1"}))
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rolloutpool_common.capabilities.harness.wire import HarnessChoice
from rolloutpool_worker.plugins import Registry

_NAME = re.compile(r"\{(prompt|url|key|home)\}")
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Preset:
    """How a program is started."""

    command: tuple[str, ...]
    """Its arguments; the first one is looked for in the runner's PATH."""
    env: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Its variables, besides HOME, PATH, LANG and TMPDIR."""
    files: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Files below its home, by relative path."""
    image: str | None = None
    """Of its container; None takes the runner's own, where it has any."""

    @classmethod
    def of(cls, choice: HarnessChoice) -> "Preset":
        """Makes the preset that a rollout asks for; raises `KeyError` where no runner of this build knows it."""
        if choice.preset is None:
            return cls(choice.command or (), choice.env, choice.files, choice.image)
        found = HARNESSES.get(choice.preset)
        if found is None:
            raise KeyError(choice.preset)
        env, files = {**found.env, **choice.env}, {**found.files, **choice.files}
        return cls(found.command, env, files, choice.image or found.image)

    def filled(self, values: Mapping[str, str]) -> "Preset":
        """Puts values in the place of their names in braces."""
        return Preset(
            tuple(_filled(part, values) for part in self.command),
            {name: _filled(text, values) for name, text in self.env.items()},
            {path: _filled(text, values) for path, text in self.files.items()},
            self.image,
        )


def _filled(text: str, values: Mapping[str, str]) -> str:
    # In one pass, so a prompt may hold any braces; and not `format`, because files of programs are full of them.
    return _NAME.sub(lambda name: values[name[1]], text)


HARNESSES: Registry[Preset] = Registry("rolloutpool.harnesses")

HARNESSES.register(
    "claude-code",
    Preset(
        ("claude", "-p", "{prompt}", "--output-format", "json", "--dangerously-skip-permissions"),
        env={
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "{key}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # Without it, it does not run as root.
            "IS_SANDBOX": "1",
        },
    ),
)
HARNESSES.register(
    "codex",
    Preset(
        ("codex", "exec", "--json", "--skip-git-repo-check", "{prompt}"),
        env={"POOL_KEY": "{key}"},
        files={
            ".codex/config.toml": (
                'model = "policy"\nmodel_provider = "pool"\napproval_policy = "never"\n'
                # It runs in a place of its own, and its own sandbox needs rights that a place does not have.
                'sandbox_mode = "danger-full-access"\n'
                # Only OpenAI's own servers could run it.
                'web_search = "disabled"\n'
                '[model_providers.pool]\nname = "pool"\nbase_url = "{url}/v1"\nenv_key = "POOL_KEY"\n'
                'wire_api = "responses"\n'
            )
        },
    ),
)
HARNESSES.register(
    "opencode",
    Preset(
        ("opencode", "run", "{prompt}"),
        files={
            ".config/opencode/opencode.json": json.dumps(
                {
                    "provider": {
                        "pool": {
                            "npm": "@ai-sdk/openai-compatible",
                            "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
                            "models": {"policy": {"name": "policy"}},
                        }
                    },
                    "model": "pool/policy",
                    "permission": {"*": "allow"},
                    "autoupdate": False,
                }
            )
        },
    ),
)
HARNESSES.register(
    "mini-swe-agent",
    Preset(
        ("mini", "-m", "openai/policy", "-t", "{prompt}", "-y", "--exit-immediately"),
        env={
            "OPENAI_API_BASE": "{url}/v1",
            "OPENAI_API_KEY": "{key}",
            "MSWEA_CONFIGURED": "true",
            # It stops at a model of whose price it knows nothing.
            "MSWEA_COST_TRACKING": "ignore_errors",
        },
    ),
)
