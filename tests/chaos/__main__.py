"""`python -m tests.chaos --rollouts 5000 --kills 100 --load 8 --seed 1 [--clocks] [--machines]` runs a campaign.

It prints a table. Exit code 1 when anything was lost, delivered twice, sampled twice or wrong, or a living worker was
declared dead. With `--folder`, its logs stay there, with `verdict.json`; `--judge` judges them once more. With
`--replay`, each completed rollout is run again from its result, and must come out alike.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import orjson
from tests.chaos.campaign import Campaign, run
from tests.chaos.priority import prefer
from tests.chaos.table import show
from tests.chaos.verdict import judge


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=int, default=0, help="busy loops beside it")
    parser.add_argument("--in-flight", type=int, default=200, help="rollouts that are open at once")
    parser.add_argument("--machines", action="store_true", help="Redis, APIs and hosts on machines of their own")
    parser.add_argument("--clocks", action="store_true", help="clocks jump too, which needs libfaketime")
    parser.add_argument("--folder", type=Path, help="a new one, where logs and verdict.json stay")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="run nothing, judge the logs of an earlier campaign")
    parser.add_argument("--replay", action="store_true", help="run each completed rollout again from its result, too")
    arguments = parser.parse_args()
    if arguments.judge is not None:
        return _report(arguments.judge, replay=arguments.replay)
    if arguments.folder is not None and arguments.folder.exists() and any(arguments.folder.iterdir()):
        parser.error(f"{arguments.folder} is not empty: an earlier campaign's Redis and logs would mix with this one's")
    if not prefer():
        print(
            "not preferred: links and trainers compete with the hogs, so times say less (run it as root)",
            file=sys.stderr,
        )
    campaign = Campaign(
        rollouts=arguments.rollouts,
        kills=arguments.kills,
        seed=arguments.seed,
        load=arguments.load,
        in_flight=arguments.in_flight,
        clocks=arguments.clocks,
        machines=arguments.machines,
    )
    with tempfile.TemporaryDirectory(prefix="rolloutpool-chaos-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(run(campaign, folder))
        return _report(folder, replay=arguments.replay)


def _report(folder: Path, *, replay: bool) -> int:
    verdict = judge(folder)
    if replay:
        # It imports transformers, which a campaign does not need.
        from tests.chaos.replays import replay_completed

        replay_completed(folder, verdict)
    (folder / "verdict.json").write_bytes(orjson.dumps(verdict.document(), option=orjson.OPT_INDENT_2))
    print(show(verdict))
    return 0 if verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main())
