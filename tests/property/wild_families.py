"""Small template families with constructs of published templates that no family of `families` has.

Each is our own: the least that has the construct, over the tiny tokenizer.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.property.families import Family


@dataclass(frozen=True)
class WildFamily(Family):
    """A family with what its policies sample at the end of their turns."""

    answers: tuple[str, ...] = ()
    """Behind an answer's text: beginnings of what the template writes there."""
    calls: tuple[str, ...] = ()
    """Behind a call's arguments; without a stop, up to the stop."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the template."""


HARMONY = WildFamily(  # headers that name the tool and the receiver; thinking in a channel; other ends for calls
    "{% set ns = namespace(called='') %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content and loop.last %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.reasoning_content + '<|end|>' }}{% endif %}"
    "{% if m.tool_calls %}{% set ns.called = m.tool_calls[0].function.name %}"
    "{{ '<|start|>assistant to=functions.' + ns.called + '<|channel|>commentary json<|message|>' }}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{{ '<|call|>' }}"
    "{% else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}"
    "{% elif m.role == 'tool' %}"
    "{{ '<|start|>functions.' + ns.called + ' to=assistant<|channel|>commentary<|message|>' + m.content | tojson }}"
    "{{ '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
    ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
    "<|return|>",
    answers=("<|end|>", ""),
    calls=('"}<|call|>', '"}'),
    answer_ends=("<|end|>",),
    call_ends=("<|call|>",),
)
RETURN_OF_ID = WildFamily(  # a result's header repeats the call's id; answers end the part whose thinking is dropped
    "{% set ns = namespace(last=-1) %}{% for m in messages %}"
    "{% if m.role == 'assistant' and not m.tool_calls %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% if messages[0].role != 'system' %}{{ '<|im_system|>system<|im_middle|>You are kind.<|im_end|>' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_' + (m.role if m.role != 'tool' else 'system') + '|>' }}"
    "{{ (m.name or m.role) + '<|im_middle|>' }}"
    "{% if m.role == 'assistant' %}"
    "{{ '<think>' + (m.reasoning_content or '' if loop.index0 > ns.last else '') + '</think>' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<|call_begin|>' + c.id + '<|call_args|>' }}"
    "{{ c.function.arguments | tojson }}{{ '<|call_end|>' }}{% endfor %}"
    "{% elif m.role == 'tool' %}{{ '## Return of ' + m.tool_call_id + '\n' + m.content }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}",
    (
        *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"),
        *("<|call_begin|>", "<|call_args|>", "<|call_end|>"),
    ),
    "<|im_end|>",
    answers=("<|im_end|>", ""),
    calls=('"}<|call_end|><|im_end|>', '"}<|call_end|>'),
)
NUMBERED_LIST = WildFamily(  # results of a turn are items of one list, whose numbers go on over all turns
    "{% set ns = namespace(n=0, ids=[]) %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ '<|turn|><|bot|>' }}"
    "{% if m.tool_calls %}{{ '<|action|>[' }}{% for c in m.tool_calls %}"
    "{% set ns.ids = ns.ids + [c.id] %}"
    '{{ \'{"tool_call_id": "\' ~ (ns.ids | length - 1) ~ \'", "parameters": \' }}'
    "{{ c.function.arguments | tojson }}{{ '}' + (', ' if not loop.last else ']<|end_action|>') }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|end_turn|>' }}"
    "{% elif m.role == 'tool' %}"
    "{% if loop.previtem.role != 'tool' %}{{ '<|turn|><|system|><|results|>[' }}{% endif %}"
    "{{ '{\"tool_call_id\": \"' ~ ns.n ~ '\", \"content\": ' ~ (m.content | tojson) ~ '}' }}{% set ns.n = ns.n + 1 %}"
    "{{ ', ' if not loop.last and loop.nextitem.role == 'tool' else ']<|end_results|><|end_turn|>' }}"
    "{% else %}{{ '<|turn|><|' + m.role + '|>' + m.content + '<|end_turn|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|><|bot|>' }}{% endif %}",
    (
        *("<|turn|>", "<|bot|>", "<|user|>", "<|system|>", "<|action|>", "<|end_action|>"),
        *("<|results|>", "<|end_results|>", "<|end_turn|>"),
    ),
    "<|end_turn|>",
    answers=("<|end_turn|>", ""),
    calls=('"}}]<|end_action|><|end_turn|>', '"}}]<|end_action|>'),
    answer_ends=("<|end_turn|>",),
    call_ends=("<|end_turn|>",),
)
RESULTS_INSIDE = WildFamily(  # results stand inside the policy's turn, which goes on behind them without a header
    "{% set ns = namespace(open=false) %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if not ns.open %}{{ '<|bot|>' }}{% endif %}"
    "{{ m.content }}{% set ns.open = false %}"
    "{% if m.tool_calls %}{% set ns.open = true %}{{ '<|calls|>[' }}"
    "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{{ ', ' if not loop.last else '' }}{% endfor %}"
    "{{ ']<|end_calls|>' }}{% else %}{{ '<|end_bot|>' }}{% endif %}"
    "{% elif m.role == 'tool' %}{{ '[' if loop.previtem.role != 'tool' else ', ' }}{{ m.content }}"
    "{{ ']' if loop.last or loop.nextitem.role != 'tool' else '' }}"
    "{% else %}{% if ns.open %}{{ '<|end_bot|>' }}{% set ns.open = false %}{% endif %}"
    "{{ '<|' + m.role + '|>' + m.content + '<|end_' + m.role + '|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|bot|>' if not ns.open else '' }}"
    "{% elif ns.open %}{{ '<|end_bot|>' }}{% endif %}",
    (
        *("<|bot|>", "<|end_bot|>", "<|calls|>", "<|end_calls|>"),
        *("<|user|>", "<|end_user|>", "<|system|>", "<|end_system|>"),
    ),
    "<|end_bot|>",
    answers=("<|end_bot|>", ""),
    calls=('"}]<|end_calls|>', '"}]'),
    answer_ends=("<|end_bot|>",),
    call_ends=("<|end_calls|>",),
    stop="<|end_calls|>",
)
_OUTPUTS = tuple(f"<\uff5ctool▁output{s}▁{end}\uff5c>" for s in ("s", "") for end in ("begin", "end"))
_DEEP_END = "<\uff5cend▁of▁sentence\uff5c>"
_DEEP = (*_OUTPUTS, "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", _DEEP_END)
NO_BLOCK = WildFamily(  # does not write the blocks that its tokens are for; a header behind a question only
    "{% set ns = namespace(asked=false) %}{% for m in messages %}{% set ns.asked = m.role == 'user' %}"
    "{% if m.role == 'user' %}{{ '<\uff5cUser\uff5c>' + m.content }}"
    "{% elif m.role == 'assistant' %}"
    "{% if loop.previtem.role == 'user' %}{{ '<\uff5cAssistant\uff5c></think>' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}"
    f"{{{{ '{_DEEP_END}' }}}}"
    f"{{% elif m.role == 'tool' %}}{{{{ '{_OUTPUTS[2]}' + m.content + '{_OUTPUTS[3]}' }}}}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and ns.asked %}{{ '<\uff5cAssistant\uff5c></think>' }}{% endif %}",
    _DEEP,
    _DEEP_END,
    answers=(_DEEP_END, ""),
    calls=(f'"}}]{_DEEP_END}', '"}]'),
    answer_ends=(_DEEP_END,),
    call_ends=(_DEEP_END,),
)
WORKING_BLOCK = WildFamily(  # a block that is closed wherever it must be, spelled in the template's own way
    "{% set ns = namespace(open=false) %}{% for m in messages %}"
    f"{{% if ns.open and m.role != 'tool' %}}{{{{ '{_OUTPUTS[1]}' }}}}{{% set ns.open = false %}}{{% endif %}}"
    "{% if m.role == 'user' %}{{ '<\uff5cUser\uff5c>' + m.content + '<\uff5cAssistant\uff5c>' }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}"
    f"{{{{ '{_DEEP_END}' }}}}"
    "{% elif m.role == 'tool' %}"
    f"{{{{ '{_OUTPUTS[0]}' if not ns.open else ' ' }}}}{{% set ns.open = true %}}"
    f"{{{{ '{_OUTPUTS[2]}' + m.content + '{_OUTPUTS[3]}' }}}}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    f"{{% if ns.open %}}{{{{ '{_OUTPUTS[1]}' }}}}{{% endif %}}",
    _DEEP,
    _DEEP_END,
    answers=(_DEEP_END, ""),
    calls=(f'"}}]{_DEEP_END}', '"}]'),
    answer_ends=(_DEEP_END,),
    call_ends=(_DEEP_END,),
)
LAST_SWITCH = WildFamily(  # the last switch of all messages counts, and is taken out of the text
    "{% set ns = namespace(think=true) %}{% for m in messages %}{% if m.role in ['user', 'system'] %}"
    "{% if '/think' in m.content %}{% set ns.think = true %}{% endif %}"
    "{% if '/no_think' in m.content %}{% set ns.think = false %}{% endif %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|user|>\n<results>[' if loop.previtem.role != 'tool' else ', ' }}{{ m.content }}"
    "{{ ']</results>\n' if loop.last or loop.nextitem.role != 'tool' else '' }}"
    "{% elif m.role == 'assistant' %}{{ '<|bot|>\n' + m.content.split('</think>')[-1] | trim }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '\n<|over|>\n' }}"
    "{% else %}{{ '<|' + m.role + '|>\n' }}"
    "{{ m.content.replace('</think>', '<end>').replace('/no_think', '').replace('/think', '')"
    ".replace('<end>', '</think>') | trim }}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|bot|>\n' + ('<think>\n' if ns.think else '<think></think>') }}{% endif %}",
    ("<|user|>", "<|system|>", "<|bot|>", "<|over|>"),
    "<|over|>",
    answers=("\n<|over|>\n", "\n<|over|>", ""),
    calls=('"}]\n<|over|>\n', '"}]\n<|over|>'),
    answer_ends=("<|over|>",),
    call_ends=("<|over|>",),
)
NAMED_SWITCH = WildFamily(  # the switch has a name, so that no test in the source holds its text
    "{% set off = ['/quiet', '/short'] %}{% set ns = namespace(think=true) %}{% for m in messages %}"
    "{% for word in off %}{% if m.role == 'system' and word in m.content %}{% set ns.think = false %}{% endif %}"
    "{% endfor %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + ('<think>\n' if ns.think else '<think></think>') }}"
    "{% endif %}",
    (),
    "<|im_end|>",
    answers=("<|im_end|>", "<|im_end|>\n", ""),
    calls=('"}]<|im_end|>', '"}]'),
)
EOS_WITHOUT_PROMPT = WildFamily(  # the end of the conversation, where nothing is to be generated, is an end of its own
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
    "{% if m.role == 'system' and tools %}{{ '<|tools|>' + tools | tojson + '<|/tools|>' }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
    ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|tools|>", "<|/tools|>"),
    "<|endoftext|>",
    answers=("<|end|>", ""),
    calls=('"}]<|end|>', '"}]'),
    answer_ends=("<|end|>",),
    call_ends=("<|end|>",),
    stop="<|end|>",
)
CONTROLLED_HEADER = WildFamily(  # the header of the policy holds an argument of the template; it is written in the loop
    "{% if tools %}{{ '<|role|>available_tools<|/role|>' + tools | tojson + '<|over|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|role|>' + m.role + '<|/role|>' }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ '<|tool_call|>[' + c.function.arguments | tojson + ']' }}"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}{{ '<|over|>\n' }}"
    "{% if loop.last and add_generation_prompt %}"
    "{{ '<|role|>assistant' + (' ' + controls | tojson if controls else '') + '<|/role|>' }}{% endif %}{% endfor %}",
    ("<|role|>", "<|/role|>", "<|tool_call|>", "<|over|>"),
    "<|over|>",
    answers=("<|over|>", "<|over|>\n", ""),
    calls=('"}]<|over|>', '"}]'),
    kwargs={"controls": {"length": "long"}},
    answer_ends=("<|over|>",),
    call_ends=("<|over|>",),
)
INSTRUCTED = WildFamily(  # no header for the policy; tools before the last question; turns must alternate
    "{% set ns = namespace(n=0, last=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ bos_token or '' }}"
    "{% for m in messages %}{% if m.role == 'system' %}{{ '[SYS]' + m.content + '[/SYS]' }}"
    "{% elif m.role == 'user' %}{% if loop.index0 == ns.last and tools %}"
    "{{ '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    "{{ '[RESULTS]' + m.tool_call_id + '[CONTENT]' + m.content + '[/RESULTS]' }}"
    "{% else %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '[CALL]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}{% endfor %}{{ eos_token }}{% endif %}"
    "{% endfor %}",
    (
        *("[SYS]", "[/SYS]", "[TOOLS]", "[/TOOLS]", "[INST]", "[/INST]"),
        *("[RESULTS]", "[CONTENT]", "[/RESULTS]", "[CALL]", "[ARGS]", "</s>"),
    ),
    "</s>",
    answers=("</s>", ""),
    calls=('"}</s>', '"}'),
    answer_ends=("</s>",),
    call_ends=("</s>",),
)
SEPARATORS = WildFamily(  # no token ends anything; what ends calls is a part of the call, and then a separator
    "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '\n\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### assistant:\n' }}{% endif %}",
    (),
    "<|endoftext|>",
    answers=("",),
    calls=('"}]',),
    answer_ends=("^\n\n### ",),
    call_ends=("^\n\n### ",),
)
HEADERS_END = WildFamily(  # no end of a turn but the next header; a word is appended to each question
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\n' + m.content }}"
    "{{ '/nothink' if enable_thinking is defined and not enable_thinking and not m.content.endswith('/nothink') }}"
    "{% elif m.role == 'tool' %}{{ '<|observation|>' if loop.previtem.role != 'tool' else '' }}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% elif m.role == 'assistant' %}{{ '<|assistant|>\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\n[' + c.function.name + '\n' }}"
    "{% for k, v in c.function.arguments.items() %}{{ k + '=' + v }}{% endfor %}{{ ']' }}{% endfor %}"
    "{% else %}{{ '<|system|>\n' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}"
    "{{ '\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}{% endif %}",
    ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"),
    "<|endoftext|>",
    answers=("", "<|user|>"),
    calls=("]", "]<|observation|>"),
    kwargs={"enable_thinking": False},
    answer_ends=("^<|user|>", "^<|observation|>", "^<|system|>"),
    call_ends=("^<|user|>", "^<|observation|>", "^<|system|>"),
)
ODD_BRACKETS = WildFamily(  # control strings that touch and share characters; results of a turn share one
    "{{ ']~!b[' }}{% if messages[0].role != 'system' %}{{ ']~b]system\nYou are kind.[e~[\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ ']~b]tool' if loop.previtem.role != 'tool' else '' }}{{ '\n<response>' + m.content + '</response>' }}"
    "{{ '[e~[\n' if loop.last or loop.nextitem.role != 'tool' else '' }}"
    "{% else %}{{ ']~b]' + ('ai' if m.role == 'assistant' else m.role) + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\n[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '[e~[\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}",
    ("]~!b[", "]~b]", "[e~["),
    "[e~[",
    answers=("[e~[", "[e~[\n", ""),
    calls=('"}][e~[', '"}]'),
    answer_ends=("[e~[",),
    call_ends=("[e~[",),
)
UNGUARDED_TOOLS = WildFamily(  # counts on tools and on objects as arguments; marks parts of turns for training
    "{% for t in tools %}{% for k, v in t.function.parameters.properties | items %}{{ k + ':' + v.type + '\n' }}"
    "{% endfor %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}"
    "{{ '[' + k + '=' + v + ']' }}{% endfor %}{% endfor %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n' if loop.previtem.role != 'tool' else '' }}"
    "{{ '<tool_response>\n' + m.content + '\n</tool_response>\n' }}"
    "{{ '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' else '' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    (),
    "<|im_end|>",
    answers=("<|im_end|>", "<|im_end|>\n", ""),
    calls=("]<|im_end|>", "]"),
    needs_tools=True,
)
SINGLE_CALLS = WildFamily(  # one call per turn only; results as JSON text; another end behind calls
    "{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{{ '<|header|>assistant<|/header|>\n\n<|python|>' + m.tool_calls[0].function.arguments | tojson + '<|eom_id|>' }}"
    "{% elif m.role == 'tool' %}{{ '<|header|>ipython<|/header|>\n\n' + m.content | tojson + '<|eot_id|>' }}"
    "{% else %}{{ '<|header|>' + m.role + '<|/header|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}",
    ("<|header|>", "<|/header|>", "<|python|>", "<|eom_id|>", "<|eot_id|>"),
    "<|eot_id|>",
    answers=("<|eot_id|>", ""),
    calls=('"}<|eom_id|>', '"}'),
    answer_ends=("<|eot_id|>",),
    call_ends=("<|eom_id|>",),
)
QUIET_WITH_TOOLS = WildFamily(  # the switch in the system message acts only where tools are shown
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{{ '<think></think>' if tools and messages[0].role == 'system' and '/no_think' in messages[0].content }}"
    "{% endif %}",
    (),
    "<|im_end|>",
    answers=("<|im_end|>", ""),
    calls=('"}]<|im_end|>', '"}]'),
)
SYSTEM_EACH = WildFamily(  # each question says the system message again
    "{% set first = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ first + '\n' if first and m.role == 'user' else '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    (),
    "<|im_end|>",
    answers=("<|im_end|>", "<|im_end|>\n", ""),
    calls=('"}]<|im_end|>', '"}]'),
)
END_BEFORE_NEXT = WildFamily(  # a turn's end is written by what follows it, so the last one has none
    "{% for m in messages %}{{ '<|im_end|>\n' if not loop.first else '' }}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_end|>\n<|im_start|>assistant\n' }}{% endif %}",
    (),
    "<|im_end|>",
    answers=("<|im_end|>", "<|im_end|>\n", ""),
    calls=('"}]<|im_end|>', '"}]'),
    answer_ends=("^<|im_end|>",),
    call_ends=("^<|im_end|>",),
)
THOUGHT_BEFORE = WildFamily(  # a header says whether the turn before it was thought over
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{{ '<|thought|>\n' if m.role == 'assistant' and m.reasoning_content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ("<|thought|>",),
    "<|im_end|>",
    answers=("<|im_end|>", "<|im_end|>\n", ""),
    calls=('"}]<|im_end|>', '"}]'),
)
CUT = WildFamily(  # long texts are cut, also where control strings were typed into them
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content if m.role == 'assistant' else m.content[:40] }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    answers=("<|im_end|>", "<|im_end|>\n", ""),
    calls=('"}]<|im_end|>', '"}]'),
)
MEASURED = WildFamily(  # a header says how long the text is
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}"
    "{{ ' ' ~ m.content | length if m.role != 'assistant' }}{{ '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    answers=("<|im_end|>", "<|im_end|>\n", ""),
    calls=('"}]<|im_end|>', '"}]'),
)
WILD = {
    "harmony": HARMONY,
    "return_of_id": RETURN_OF_ID,
    "numbered_list": NUMBERED_LIST,
    "results_inside": RESULTS_INSIDE,
    "no_block": NO_BLOCK,
    "working_block": WORKING_BLOCK,
    "last_switch": LAST_SWITCH,
    "named_switch": NAMED_SWITCH,
    "eos_without_prompt": EOS_WITHOUT_PROMPT,
    "controlled_header": CONTROLLED_HEADER,
    "instructed": INSTRUCTED,
    "separators": SEPARATORS,
    "headers_end": HEADERS_END,
    "odd_brackets": ODD_BRACKETS,
    "unguarded_tools": UNGUARDED_TOOLS,
    "single_calls": SINGLE_CALLS,
    "quiet_with_tools": QUIET_WITH_TOOLS,
    "system_each": SYSTEM_EACH,
    "end_before_next": END_BEFORE_NEXT,
    "thought_before": THOUGHT_BEFORE,
    "cut": CUT,
    "measured": MEASURED,
}
