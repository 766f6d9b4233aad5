"""Writes models/tests/fixtures/chat.json: conversations as `transformers` renders them.

    pip install transformers jinja2
    python scripts/parity/chat.py

The templates are written here in the style of the published ones (Qwen2.5, Llama 3, Qwen3, and one that uses the rest of
the dialect); what counts is that the same constructs give the same text.
"""

import json
from pathlib import Path

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

QWEN25 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}"""

QWEN3 = """\
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role in ["user", "system"] %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in message.content %}
                {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
                {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

DIALECT = """\
{% if strftime_now is not defined %}{{ raise_exception('no clock') }}{% endif %}
{%- macro turn(role, content) %}[{{ role | upper }}] {{ content }}{% endmacro %}
{% for message in messages %}
  {% if message.role == 'system' %}
    {% continue %}
  {% endif %}
  {% if message.content == 'stop' %}{% break %}{% endif %}
  {{ turn(message.role, message.content) }}
  {{ message | tojson }}|{{ message.role.title() ~ message.content.replace('a', 'b') }}|{{ message.content | length }}
  {{- {'k': [1, 2.5, true, none, "<&'>"]} | tojson(indent=2) }}
  {% generation %}said{% endgeneration %}

{% endfor %}
{{ eos_token }}
"""

TALKS = [
    [("user", "Who wrote it?")],
    [("system", "Be brief."), ("user", "  padded  \n"), ("assistant", "Yes <b> & 'so' \"on\"."), ("user", "日本 😀 \\ end")],
    [("user", "a"), ("assistant", "<think>\nfirst\n</think>\n\nanswer"), ("user", "b")],
    [("user", "a"), ("assistant", "<think>\nonly\n</think>\n\nanswer")],
    [("user", "a"), ("tool", "{\"x\": 1}"), ("tool", "two"), ("user", "stop"), ("assistant", "never seen")],
    [("system", ""), ("user", "")],
]


def main():
    templates = {"qwen2.5": QWEN25, "llama3": LLAMA3, "qwen3": QWEN3, "dialect": DIALECT}
    cases = []
    for name, template in templates.items():
        for talk in TALKS:
            messages = [{"role": role, "content": content} for role, content in talk]
            for prompt in (True, False):
                rendered, _ = render_jinja_template(
                    [messages], chat_template=template, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
                )
                cases.append({"template": name, "messages": talk, "prompt": prompt, "text": rendered[0]})
    made_by = f"scripts/parity/chat.py, transformers {transformers.__version__}"
    out = Path(__file__).parents[2] / "models/tests/fixtures/chat.json"
    out.write_text(json.dumps({"made_by": made_by, "templates": templates, "cases": cases}, indent=1) + "\n")
    print(out, len(cases))


if __name__ == "__main__":
    main()
