"""How turns end: the strings after which an answer is over, and after which a turn with calls is.

A leading "^" means that the turn is over in front of the string, and that the policy samples nothing of it. Where
several are named, the first that appears counts. Families that are not named here are found out (`derived`): a turn's
end is what the template writes behind the turn where nothing follows it, if it writes the same where something does.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_CHATML = (("<|im_end|>",),) * 2
_NEXT_HEADER = (("^<|user|>", "^<|observation|>", "^<|system|>"),) * 2
_DEEPSEEK = (("<\uff5cend▁of▁sentence\uff5c>",),) * 2
KNOWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "command_r_plus": (("<|END_OF_TURN_TOKEN|>",),) * 2,
    "deepseek_v3": _DEEPSEEK,
    "gemma3": (("<end_of_turn>",),) * 2,
    "gpt4": _CHATML,
    "llama3": (("<|eot_id|>",),) * 2,
    "llama3_1": (("<|eot_id|>",),) * 2,
    "llama3_2": (("<|eot_id|>",),) * 2,
    "mistral_nemo": (("</s>",),) * 2,
    "qwen1_5": _CHATML,
    "qwen2_5": _CHATML,
    "qwen3": _CHATML,
    "template:cohere2": (("<|END_OF_TURN_TOKEN|>",),) * 2,
    "template:deepseekv3": _DEEPSEEK,
    "template:gemma4_v2": (("<turn|>",),) * 2,
    "template:gemma4_v5": (("<turn|>",), ("<|tool_response>",)),
    "template:glm4moe": _NEXT_HEADER,
    "template:gptoss": (("<|end|>",), ("<|call|>",)),
    "template:lfm2_v2": _CHATML,
    "template:llama3_1": (("<|eot_id|>",),) * 2,
    "template:muse_glimmer": (("<|eot|>",),) * 2,
    "template:nemotron_3_nano": _CHATML,
    "template:phi3_5": (("<|end|>",),) * 2,
    "template:qwen3_5_think": _CHATML,
    "template:qwen3_8": _CHATML,
    "template:qwen3_instruct_2507": _CHATML,
    "template:qwen3_vl": _CHATML,
    "tiny": _CHATML,
}
"""By the name of the template: the ends of answers and of turns with calls."""

STOPS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<|eot|>", "<|eom|>"),
    *("<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>"),
    *("<\uff5cend▁of▁sentence\uff5c>", "</s>", "[e~[", "<|end_of_role|>", "<|im_sep_end|>", "<|assistant_end|>"),
    *(
        "[|endofturn|]",
        "<|return_token|>",
        "<SPECIAL_12>",
        "<|role_end|>",
        "<seed:eos>",
        "<[end\u2581of\u2581message]>",
    ),
    *("<|tool_response>", "<|tools_suffix|>", "<|message_sep|>", "<|end_of_msg|>", "<end_of_sentence>", "<sep>"),
    *("<|calls|>", "<|eos|>"),
)
"""Tokens after which published models stop. A list of our own, for templates without an entry in `KNOWN`."""


@dataclass(frozen=True)
class End:
    """Where in the text behind a turn's own words its end is."""

    start: int
    """Here the stop begins."""
    over: int
    """Here it is over; equal to `start` where there is no stop."""


@dataclass(frozen=True)
class Derived:
    """A stop that was found out."""

    stop: str
    """Empty where the family has none; with a "^" as above."""
    which: int
    """Which of its occurrences it is."""
    replaced: bool
    """Whether it is sure that another stop token takes the place of all of the end."""


def known(text: str, ends: Sequence[str]) -> End | None:
    """The first of these ends in a text; None where there is none."""
    found = [(text.find(end.removeprefix("^")), end) for end in ends]
    places = sorted((at, end) for at, end in found if at >= 0)
    if not places:
        return None
    at, end = places[0]
    return End(at, at if end.startswith("^") else at + len(end))


def derived(before: str, alone: str | None, controls: re.Pattern[str], eos: str, *, calls: bool) -> Derived | None:
    """The end of turns of an unknown family.

    Args:
        before: What stands between the turn's own words and the first new message.
        alone: What stands behind the turn's own words where nothing follows; None where that cannot be rendered.
        controls: Finds control strings.
        eos: The end of sequence of the tokenizer.
        calls: Whether the turn makes calls.

    Returns:
        None where nothing tells.
    """
    stops = {*STOPS, eos}
    proved = alone is not None and before.startswith(alone)
    region = alone if proved and alone is not None else before
    hits = [(match.group(), match.start()) for match in controls.finditer(region)]
    named = [hit for hit in hits if hit[0] in stops]
    if named:
        # Behind the last one the end is over; but a region without a proved end goes on into the next header.
        stop, at = named[-1] if proved else named[0]
        return Derived(stop, region[:at].count(stop), replaced=proved)
    # GLM's turns that call end in front of the results' header.
    if calls and "<|observation|>" in before:
        return Derived("^<|observation|>", 0, replaced=True)
    # All of it is written behind an answer that was cut, wherever its end is; how much of it belongs to a call, nothing
    # tells.
    return None if calls else Derived("", 0, replaced=proved and not region)
