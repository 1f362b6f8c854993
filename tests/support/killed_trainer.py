"""A trainer that may be killed at any moment: `python -m tests.support.killed_trainer URL PORT CHECKPOINT`.

It takes steps of three groups, and writes a checkpoint after each: the stream's state, and what was trained, which
stands for the weights. Started again, it goes on from its checkpoint.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer import RolloutClient, RolloutStream, TrainableGroup, callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

BATCHES, GROUPS, SIZE, STEP = 12, 3, 2, 4
RUN = "killed-trainer"


def prompts() -> list[list[dict[str, Any]]]:
    """The same ones in each process; each group's name says which batch it is in."""
    return [
        [
            {"group": f"{batch}-{n}", "n": SIZE, "messages": [{"role": "user", "content": f"What is {batch} + {n}?"}]}
            for n in range(GROUPS)
        ]
        for batch in range(BATCHES)
    ]


def keep(group: TrainableGroup) -> bool:
    """Refuses the second group of each batch, and the third until it was sampled again."""
    number = str(group.group).partition("-")[2]
    return number == "0" or (number == "2" and "refused" in group.dropped)


def main(url: str, port: int, checkpoint: Path) -> None:
    """Trains to the end."""
    tokenizer = load_tokenizer(TINY)
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.02), tokenizer=tokenizer, tools=url, policy_version="0")
    with RolloutClient(url) as client, serve_callback(app, [port]) as served:
        # Said and not left to be heard: it may be killed in its first call, before it has answered anything, and then a
        # rollout would fail and be sampled again for another reason than the one that is counted here.
        defaults = {"tokenizer_name": TINY, "idempotent": True}
        options: dict[str, Any] = {"trainer": served.urls, "run": RUN, "defaults": defaults}
        stream = RolloutStream(client, prompts(), keep=keep, refill=1, max_staleness=None, **options)
        trained: list[list[Any]] = []
        if checkpoint.exists():
            kept = json.loads(checkpoint.read_text())
            stream.load_state_dict(kept["stream"])
            trained = kept["trained"]

        def save() -> None:
            written = checkpoint.with_suffix(".new")
            written.write_text(json.dumps({"stream": stream.state_dict(), "trained": trained}))
            written.replace(checkpoint)

        # Before anything is submitted: what is submitted under another name would be submitted again.
        save()
        print("begun", flush=True)
        for step in stream.steps(STEP):
            with stream.update(app):
                trained.append([[group.group, [one.uid for one in group.rollouts]] for group in step])
            for group in step:
                group.annotate([float(place) for place in range(len(group.rollouts))])
            save()
            print("trained", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
