"""The token cases of the tests, answered by the pool's renderer and by the packages that peers use for the same.

    make bench-token-cases

There are two sets: the committed ones (`tests/golden/masks.json`), and the catalogue of drifts, row by row on ten
tokenizers (`tests/golden/catalogue.py`). Each case has what was asked, what was sampled, and what is new. Wanted are
the ids that stand between the sampled ones and the next turn, which were written by hand for each template; a few cases
have none, because the template can't print them. An answer is exact, or another one, or none.

- *ours* is the delta of the pool's renderer, as a worker uses it.
- *TITO* is `miles-tito-tokenizers` (`merge_tokens`), by its class for Qwen, or its general one for other families.
- *renderers* is the package of that name (`bridge_to_next_turn`), by its renderer for the family. Where it answers with
  nothing, its caller renders the history again; that counts as none here.

Runs with the packages in an environment of its own. TITO does not know Qwen 1.5 and 2.5 by name, and gets its class for
Qwen 3, which prints turns alike. `renderers` has none for Qwen before 3, Llama before 3.2, Gemma 3, Mistral and
Command R+: not its cases.
"""

import json
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.report import Row, emit, parser
from miles_tito_tokenizers import get_tito_tokenizer
from miles_tito_tokenizers.tokenizer import Qwen3TITOTokenizer
from renderers import DeepSeekV3RendererConfig, Llama3RendererConfig, Qwen3RendererConfig, create_renderer
from tests.golden.catalogue import CATALOGUE, built
from transformers import AutoTokenizer

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.rendering.checks.conformance import case_faults, tokenizer_name

Case = dict[str, Any]
ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "golden" / "masks.json"
TOKENIZERS = ROOT / "build" / "tokenizers"
CONFIGS: dict[str, Any] = {
    "qwen3": Qwen3RendererConfig,
    "llama3_2": Llama3RendererConfig,
    "deepseek_v3": DeepSeekV3RendererConfig,
}
NONE, FOREIGN = "none", "foreign"


@lru_cache
def _transformers(name: str) -> Any:
    return AutoTokenizer.from_pretrained(TOKENIZERS / name)


_ours = lru_cache(load_tokenizer)


def ours(case: Case) -> str:
    """The runner of the golden tests says what is wrong; what is wanted may be a refusal."""
    faults = case_faults(case, _ours(str(TOKENIZERS / tokenizer_name(case))))
    if faults:
        return "other"
    return "exact" if case.get("expected_delta_ids") is not None and "expected" not in case else NONE


def tito(case: Case) -> str:
    """Joins what it computes for the new messages to what was asked and sampled."""
    tokenizer = _transformers(tokenizer_name(case))
    roles = ["tool", "user", "system"]
    kwargs = dict(case["template_kwargs"])
    if "qwen" in tokenizer_name(case):
        known: Any = Qwen3TITOTokenizer(tokenizer, kwargs, allowed_append_roles=roles)
    else:
        known = get_tito_tokenizer(tokenizer, "default", kwargs, allowed_append_roles=roles)
    before = [*case["initial_messages"], case["assistant_message_as_parsed"]]
    held = [*case["prompt_ids"], *case["sampled_ids"][0]]
    return _judged(case, known.merge_tokens(before, [*before, *case["appended_messages"]], held, case["tools"]))


def renderers(case: Case) -> str:
    """Extends what was asked and sampled, or says that it can't."""
    name = tokenizer_name(case)
    config = next((made for family, made in CONFIGS.items() if name.startswith(family)), None)
    if config is None:
        return FOREIGN
    known = create_renderer(_transformers(name), config(), chat_template_kwargs=case["template_kwargs"] or None)
    found: Any = known.bridge_to_next_turn(
        case["prompt_ids"], case["sampled_ids"][0], case["appended_messages"], tools=case["tools"]
    )
    return NONE if found is None else _judged(case, list(getattr(found, "token_ids", found)))


def _judged(case: Case, ids: list[int]) -> str:
    if case.get("expected_delta_ids") is None:
        return "other"
    wanted = [*case["prompt_ids"], *case["sampled_ids"][0], *case["expected_delta_ids"]]
    return "exact" if ids == wanted else "other"


def measure() -> list[Row]:
    """Returns a row per set and package."""
    committed: list[Case] = json.loads(CASES.read_text(encoding="utf-8"))["cases"]
    rows: list[Row] = []
    answerers: dict[str, Callable[[Case], str]] = {"rolloutpool": ours, "TITO": tito, "renderers": renderers}
    for set_name, cases in (("committed", committed), ("catalogue", [built(drift) for drift in CATALOGUE])):
        for name, answer in answerers.items():
            counts: Counter[str] = Counter()
            for case in cases:
                try:
                    counts[answer(case)] += 1
                # Whatever it raises, it gives no ids.
                except Exception as error:
                    said = f"{type(error).__name__}: {str(error)[:100]}"
                    print(f"{name}, {tokenizer_name(case)} {case['name']}: {said}")
                    counts[NONE] += 1
            answered = {"exact": counts["exact"], "none": counts[NONE], "other ids": counts["other"]}
            known = len(cases) - counts[FOREIGN]
            rows.append({"set": set_name, "package": name, "its cases": known, **answered})
    return rows


def main() -> None:
    """Prints a table."""
    chosen = parser("token_cases", __doc__).parse_args()
    emit(
        "token_cases",
        measure(),
        chosen,
        title="The token cases",
        measures="Cases of tests/golden by what a package answers: the wanted ids, none, or other ones.",
        leaves_out="How fast.",
    )


if __name__ == "__main__":
    main()
