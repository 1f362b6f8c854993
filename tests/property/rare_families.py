"""Small template families with constructs that few published templates have; more of `wild_families`."""

from tests.property.wild_families import WildFamily

_CALLS = "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}"
_GENERATION = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
OWN_LINE = WildFamily(  # a turn's end stands on a line of its own, and the last turn has none
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    + _CALLS
    + "{{ '\n<|im_end|>\n' if m.role != 'assistant' or not loop.last }}{% endfor %}"
    + _GENERATION,
    answers=("\n<|im_end|>", "\n<|im_end|>\n", ""),
    calls=('"}]\n<|im_end|>', '"}]'),
    answer_ends=("^\n<|im_end|>",),
    call_ends=("^\n<|im_end|>",),
)
SHIFTED = WildFamily(  # behind a system message, it looks for the message before at the wrong place
    "{% if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role != 'tool' or messages[loop.index0 - 1].role != 'tool' %}"
    "{{ '<|im_start|>' + m.role + '\n' }}{% endif %}{{ m.content }}"
    + _CALLS
    + "{{ '<|im_end|>\n' }}{% endfor %}"
    + _GENERATION,
    answers=("<|im_end|>", "<|im_end|>\n", ""),
    calls=('"}]<|im_end|>', '"}]'),
)
RARE = {"own_line": OWN_LINE, "shifted": SHIFTED}
