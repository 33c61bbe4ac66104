"""Chat templates in the styles of the common families, written for the tests."""

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CHATML_WITH_DEFAULT_SYSTEM = """\
{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{% else %}{% set system = 'You help.' %}{% set rest = messages %}{% endif %}
<|im_start|>system
{{ system }}<|im_end|>
{% for message in rest %}
<|im_start|>{{ message['role'] }}
{{ message['content'] | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}{{ message.content | tojson }}
        {%- else %}{{ message.content }}{% endif %}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('Only one tool call at once!') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- {"name": call.name, "parameters": call.arguments} | tojson }}
    {%- else %}
        {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' ~ message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}
{% set system_message = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{% set turns = messages[1:] %}
{% else %}{% set system_message = '' %}{% set turns = messages %}{% endif %}
{% for message in turns %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{% set prefix = system_message if loop.first else '' %}
{{ bos_token + '[INST] ' + prefix + message['content'].strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}
{% endfor %}
"""

MISTRAL_TOOLS = """\
{{- bos_token }}
{%- set last = namespace(user=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and loop.index0 == last.user %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {{- tool | tojson }}{{ ', ' if not loop.last else ']' }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls | length > 0 %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}
            {%- if call.id is not defined or call.id | length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
            {%- endif %}
            {{- ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- elif message.role in ['tool', 'tool_results'] %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}' }}
        {{- '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception('Only user, assistant and tool roles are supported') }}
    {%- endif %}
{%- endfor %}
"""

THINKING = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.multi_step and message.role == 'user' and message.content is string %}
        {%- set ns.multi_step = false %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{% set content = message.content %}{% else %}{% set content = '' %}{% endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}{% set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

PARTS_OR_TEXT = """\
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message.content is string %}{{ message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}{{ '<image>' }}{% endif %}
        {%- endfor %}
    {%- endif %}
    {{- '</' + message.role + '>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}
"""

ONLY_PARTS = """\
{% for turn in messages %}{{ turn.role }}:{% for part in turn.content %}{{ part.text }}{% endfor %};{% endfor %}
"""

GEMMA = """\
{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% set role = 'model' if message.role == 'assistant' else message.role %}
{{ '<start_of_turn>' ~ role ~ '\\n' ~ message.content | trim ~ '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

MACROS_AND_LOOP_CONTROLS = """\
{%- macro turn(role, text='') -%}<{{ role }}>{{ text }}{{ caller() if caller }}</{{ role }}>{%- endmacro -%}
{%- for message in messages -%}
    {%- if message.role == 'developer' %}{% continue %}{% endif -%}
    {{ turn(message.role, message.content | replace('\\n', ' ')) }}
    {%- if loop.index == 4 %}{% break %}{% endif -%}
{%- endfor -%}
{{ loop_length | default(messages | length) }}/{{ messages | map(attribute='role') | join(',') }}
{%- call turn('end') %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{% endcall %}
"""

GENERATION_BLOCK = """\
{% for message in messages %}{% if message.role == 'assistant' %}
A: {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}

{% else %}
Q: {{ message.content }}
{% endif %}{% endfor %}
"""

DOCUMENTS = """\
{% if documents %}{% for document in documents %}
Document {{ loop.index }} of {{ loop.length }}: {{ document.title }}
{{ document.text | indent(2) }}
{% endfor %}{% endif %}
{% for message in messages %}{{ '%-9s' | format(message.role) | upper }}| {{ message.content }}
{% endfor %}
"""

TEMPLATES = {
    "chatml": CHATML,
    "chatml with a default system message": CHATML_WITH_DEFAULT_SYSTEM,
    "llama 3": LLAMA3,
    "llama 2": LLAMA2,
    "mistral with tools": MISTRAL_TOOLS,
    "thinking": THINKING,
    "parts or text": PARTS_OR_TEXT,
    "gemma": GEMMA,
    "macros and loop controls": MACROS_AND_LOOP_CONTROLS,
    "generation block": GENERATION_BLOCK,
    "documents": DOCUMENTS,
}
