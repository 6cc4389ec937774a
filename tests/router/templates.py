"""Chat templates in the manner of the families whose calls and reasoning are read."""

from __future__ import annotations

# Hermes and Qwen: tools in the system message, calls and results between markers.
HERMES = """
{%- if tools %}<|im_start|>system
You may call functions:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer with <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
<|im_start|>{{ message.role if message.role != 'tool' else 'user' }}
{%- if message.role == 'tool' %}
<tool_response>
{{ message.content }}
</tool_response>
{%- elif message.content %}
{{ message.content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

# Llama 3.1: tools before the first question, one call in a message, results of the role ipython.
LLAMA31 = """
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>ipython\\n' + message.content | tojson + '<|im_end|>\\n' }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('One call at a time.') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|im_start|>assistant\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson + '}<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.first and tools %}
            {%- for tool in tools %}
                {{- tool | tojson(indent=4) + '\\n\\n' }}
            {%- endfor %}
        {%- endif %}
        {{- message.content | trim + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Qwen3: thinking can be switched off; R1: the prompt begins it.
REASONING = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}
        {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- elif open_thinking %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""
