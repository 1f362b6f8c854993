"""Counts how often the length difference of two renders is the right mask, on the committed golden cases.

    python benchmarks/length_difference.py

The length is right if it equals the number of tokens between two samples. The ids are right too if the history that is
rendered again equals what was sampled: only then does a trainer that renders it train on what the policy wrote. No
tokenizer is needed, because the cases hold all numbers.
"""

import json
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "tests" / "golden" / "masks.json"


def count() -> tuple[int, int, int]:
    """Counts cases: those that a server can render at all, of these the right lengths, and of these the right ids."""
    cases: list[dict[str, Any]] = json.loads(CASES.read_text(encoding="utf-8"))["cases"]
    rendered = [case for case in cases if case["seed_error"] is not None]
    length = [case for case in rendered if case["seed_error"] == 0]
    ids = [
        case
        for case in length
        if case["server_rerender_ids"] == case["prompt_ids"] + case["sampled_ids"][0] + case["expected_delta_ids"]
    ]
    return len(rendered), len(length), len(ids)


if __name__ == "__main__":
    print("| cases that can be rendered at all | right length | right length and ids |\n|---|---|---|")
    print("| {} | {} | {} |".format(*count()))
