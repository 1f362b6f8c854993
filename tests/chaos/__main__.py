"""`python -m tests.chaos --rollouts 5000 --kills 100 --seed 1 [--folder DIR]`: runs a campaign and prints its table.

Exit code 1 when anything was lost, delivered twice, sampled twice or wrong. With a folder, its logs stay there, with
`verdict.json`.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import orjson
from tests.chaos.campaign import Campaign, run
from tests.chaos.table import show
from tests.chaos.verdict import judge


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where logs and verdict.json stay")
    arguments = parser.parse_args()
    campaign = Campaign(rollouts=arguments.rollouts, kills=arguments.kills, seed=arguments.seed)
    with tempfile.TemporaryDirectory(prefix="rolloutpool-chaos-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(run(campaign, folder))
        verdict = judge(folder)
        (folder / "verdict.json").write_bytes(orjson.dumps(verdict.document(), option=orjson.OPT_INDENT_2))
    print(show(verdict))
    return 0 if verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main())
