"""Messages to text: templates that are strict in their own ways, tools for those that know none, history untouched."""
import copy
from datetime import datetime

import pytest

from rishi.dialect import Template, by_name, detect
from rishi.dialect.shape import describe, flat, folded, merged
from rishi.errors import BadRequest

NOW = datetime(2025, 3, 4)
TOOLS = [{'type': 'function', 'function': {'name': 'add', 'description': 'Adds.', 'parameters': {
    'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'integer'}}}}}]
ASK = {'role': 'user', 'content': 'hi'}
CALLED = {'role': 'assistant', 'content': None, 'tool_calls': [
    {'id': '1', 'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1, 'b': 'é "x"'}}}]}
RESULT = {'role': 'tool', 'tool_call_id': '1', 'name': 'add', 'content': '3'}
CASE10 = [ASK, CALLED, RESULT, {'role': 'user', 'content': [{'type': 'text', 'text': 'again'}]}]
ARGS = '{"a": 1, "b": "é \\"x\\""}'

# Written for these tests, each strict or peculiar in one known way.
GEMMA = """
{{- bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}{% endif %}
    {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) }}
{{ m.content | trim + '<end_of_turn>' }}
{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
LLAMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set sys = messages[0].content %}{%- set messages = messages[1:] %}
{%- endif %}
{{- 'system:Today: ' + strftime_now('%d %b %Y') + (sys or '') }}
{%- for t in tools or [] %}{{ t | tojson(indent=2) }}{% endfor %}
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
        {%- set f = m.tool_calls[0].function %}
        {{- 'A:{"name": "' + f.name + '", "parameters": ' }}{{ f.arguments | tojson }}{{ '}' }}
    {%- else %}{{- m.role + ':' + m.content }}{%- endif %}
{%- endfor %}{% generation %}{% endgeneration %}"""
MISTRAL = """
{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
    {%- elif m.tool_calls is defined and m.tool_calls %}{{ '[TOOL_CALLS][' }}
        {%- for c in m.tool_calls %}
            {%- if c.id | length != 9 %}{{ raise_exception('Tool call IDs should be 9 long') }}{% endif %}
            {%- set out = c.function | tojson %}{{ out[:-1] + ', "id": "' + c.id + '"}' }}
        {%- endfor %}{{ ']' }}
    {%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.tool_call_id + '=' + m.content }}
    {%- elif m.role == 'assistant' %}{{ m.content }}{%- endif %}
{%- endfor %}{{ tools }}"""
JOINED = """
{%- for m in messages %}
    {%- if m.role == 'assistant' and m['content'] is none %}
        {%- for t in m.tool_calls %}
            {{- '<call>' + t['function']['name'] + '<sep>' + t['function']['arguments'] + '<end>' }}
        {%- endfor %}
    {%- else %}{{ m['role'] + ':' + m['content'] }}{% endif %}
{%- endfor %}{{ tools | length }}"""
PAIRS = """
{%- for m in messages %}{{ m.role + ':' + m.content }}
    {%- for t in m.tool_calls or [] %}
        {%- set args = t.function.arguments or {} %}
        {%- for k, v in args.items() %}<{{ k }}>{{ v | tojson if v is not string else v }}{% endfor %}
        {%- for k, v in args | items %}{{ k }}{% endfor %}{{ t.function.arguments }}
    {%- endfor %}
{%- endfor %}{{ tools }}"""
OSS = """
{%- for m in messages %}
    {%- if m.tool_calls and m.content and m.thinking %}{{ raise_exception('Cannot pass both') }}{% endif %}
    {{- m.role + ':' + (m.thinking or '') + '|' + m.content + ';' }}
{%- endfor %}{{ tools }}"""
QWEN3 = """
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and loop.index0 > ns.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
    {{- m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""


def render(source, messages, **kw):
    "The prompt; what goes in must come out as it was."
    before = copy.deepcopy(messages)
    out = Template(source, bos='<s>').render(messages, now=NOW, **kw)
    assert messages == before
    return out


# --- what is in messages ----------------------------------------------------------------------------------------------
def smol_template(path):
    from rishi.llama.weights import check_gguf
    return check_gguf(path).chat_template


def test_null_content_and_lists_of_text_case_10(smol):
    out = render(smol_template(smol), CASE10)
    assert 'None' not in out and "[{'type'" not in out
    assert f'<|im_start|>assistant\n<tool_call>\n{{"name": "add", "arguments": {ARGS}}}\n</tool_call><|im_end|>' in out
    assert '<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>user\nagain<|im_end|>' in out


def test_tiny_chat_has_tools_of_its_own(tiny_chat):
    t = Template((tiny_chat.parent/'tiny-chat'/'chat_template.jinja').read_text('utf-8'))
    out = t.render(CASE10, now=NOW, tools=TOOLS, enable_thinking=False)
    assert t.supports_tools and 'You can call tools. Their' in out and describe(TOOLS) not in out
    assert f'<tool_call>\n{{"name": "add", "arguments": {ARGS}}}\n</tool_call>' in out and 'None' not in out
    assert by_name('hermes').thinking(out) == 'closed'


@pytest.mark.parametrize('content, text', [
    (None, ''), ('a', 'a'), ([], ''), (['a', {'type': 'text', 'text': 'b'}], 'a\nb'), ([{'text': 'a'}], 'a')])
def test_flat(content, text): assert flat(content) == text


def test_media_stay_parts():
    parts = [{'type': 'text', 'text': 'a'}, {'type': 'image', 'key': 'k'}]
    assert flat(parts) is parts
    for source in (GEMMA, LLAMA, QWEN3):         # the first would print them as Python does
        with pytest.raises(BadRequest, match='takes text only'): render(source, [{'role': 'user', 'content': parts}])


def test_arguments_are_a_mapping_and_json_at_once():
    assert f'<call>add<sep>{ARGS}<end>' in render(JOINED, CASE10, tools=TOOLS)
    assert '<a>1<b>é "x"ab' + ARGS in render(PAIRS, CASE10, tools=TOOLS)
    assert '"parameters": ' + ARGS + '}' in render(LLAMA, CASE10, tools=TOOLS)


def test_arguments_kept_as_text_are_read():
    hist = [ASK, CALLED | {'tool_calls': [{'id': '1', 'function': {'name': 'add', 'arguments': '{"a": 1}'}}]}, RESULT]
    assert '<call>add<sep>{"a": 1}<end>' in render(JOINED, hist) and '<a>1a{"a": 1}' in render(PAIRS, hist)
    hist[1]['tool_calls'][0]['function']['arguments'] = ''
    assert '<call>add<sep>{}<end>' in render(JOINED, hist)


def test_thinking_goes_under_the_names_that_templates_know():
    hist = [ASK, {'role': 'assistant', 'content': 'A', 'thinking': 'T', 'meta': {'x': 1}}, ASK]
    source = '{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{{ m.meta }}{% endfor %}'
    assert render(source, hist) == 'TT'


# --- what jinja must know ---------------------------------------------------------------------------------------------
def test_jinja_as_real_templates_use_it():
    source = ("{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
              "{{ {'b': '<é>', 'a': 1} | tojson(indent=1, sort_keys=true) }}"
              "{% generation %}{{ strftime_now('%Y-%m-%d') }}{% endgeneration %}{% endfor %}{{ bos_token }}"
              "{{ [1] | tojson(separators=(',', ':')) }}")
    assert render(source, [ASK, ASK]) == '{\n "a": 1,\n "b": "<é>"\n}2025-03-04<s>[1]'
    assert 'Today: 04 Mar 2025' in render(LLAMA, [ASK])


@pytest.mark.parametrize('source', ['{{ messages.append(1) }}', "{{ cycler.__init__.__globals__['os'] }}"])
def test_a_template_reaches_nothing(source):
    with pytest.raises(BadRequest): render(source, [ASK])


def test_a_broken_template():
    with pytest.raises(BadRequest, match='cannot be read'): render('{% if %}', [ASK])
    with pytest.raises(BadRequest, match='cannot be read'): assert Template('{% for %}').supports_tools
    with pytest.raises(BadRequest, match='fails on these messages'): render('{{ messages[0].content + 1 }}', [ASK])


# --- strict templates (case 11) ---------------------------------------------------------------------------------------
SYS = {'role': 'system', 'content': 'Be brief.'}


def test_system_and_two_users_case_11():
    assert render(GEMMA, [SYS, ASK, {'role': 'user', 'content': 'and?'}]) == (
        '<s><start_of_turn>user\nBe brief.\n\nhi\n\nand?<end_of_turn>\n<start_of_turn>model\n')


def test_assistants_in_a_row_and_tool_turns():
    hist = [SYS, ASK, {'role': 'assistant', 'content': 'A'}, {'role': 'assistant', 'content': 'B'}, *CASE10]
    out = render(GEMMA, hist, tools=TOOLS)
    assert out.count('<start_of_turn>user') == 3 and 'A\n\nB' in out and describe(TOOLS) in out
    assert 'Be brief.' in out and '<tool_response>\n3\n</tool_response>\n\nagain' in out


def test_what_no_way_can_say_names_the_templates_words():
    with pytest.raises(BadRequest, match='Conversation roles must alternate'):
        render(GEMMA, [{'role': 'assistant', 'content': 'A'}, ASK])
    two = CALLED | {'tool_calls': CALLED['tool_calls'] * 2}
    with pytest.raises(BadRequest, match='one call at once'): render(LLAMA, [ASK, two], tools=TOOLS)


def test_thinking_goes_before_content_does():
    hist = [SYS, ASK, CALLED | {'content': 'Let me.', 'thinking': 'T'}, RESULT]
    assert Template(OSS + '{{ tools }}').supports_tools
    assert 'system:|Be brief.;' in render(OSS, hist) and 'assistant:|Let me.;' in render(OSS, hist)
    assert 'assistant:T|;' in render(OSS, [ASK, CALLED | {'thinking': 'T'}, RESULT])


def test_a_system_prompt_that_a_template_drops_is_said_to_it():
    drops = "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    assert render(drops, [SYS, ASK]) == 'user:Be brief.\n\nhi\n'
    shouts = '{% for m in messages %}{{ m.role }}:{{ m.content | upper }}\n{% endfor %}'
    assert render(shouts, [SYS, ASK]) == 'system:BE BRIEF.\nuser:HI\n'


def test_the_usual_conversation_is_left_alone():
    hist = [SYS, ASK, ASK]
    assert render(None, hist) == ('<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n'
                                  '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n')
    assert render(None, [ASK], generate=False) == '<|im_start|>user\nhi<|im_end|>\n'


def test_merging_keeps_media_and_calls_apart():
    image = {'type': 'image', 'key': 'k'}
    assert merged([ASK, {'role': 'user', 'content': [image]}])[0]['content'] == [{'type': 'text', 'text': 'hi'}, image]
    assert merged([RESULT, RESULT, CALLED, CALLED]) == [RESULT, RESULT, CALLED, CALLED]
    assert folded([SYS]) == [{'role': 'user', 'content': 'Be brief.'}] and folded([ASK]) == [ASK]


# --- tools ------------------------------------------------------------------------------------------------------------
def test_tools_for_templates_that_know_none(smol):
    t = Template(smol_template(smol))
    assert not t.supports_tools and not Template(None).supports_tools and not Template(GEMMA).supports_tools
    out = render(t.source, [SYS, ASK], tools=TOOLS)
    assert f'<|im_start|>system\nBe brief.\n\n{describe(TOOLS)}<|im_end|>' in out and '"name": "add"' in out
    assert describe(TOOLS) in render(t.source, [ASK], tools=TOOLS)
    assert '<tools>' not in render(t.source, [SYS, ASK], tools=[])


def test_two_results_are_one_turn_for_them():
    two = [ASK, CALLED, RESULT, RESULT | {'content': '4'}]
    assert 'user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><end' in render(GEMMA, two)


def test_templates_with_tools_get_them():
    assert all(Template(s).supports_tools for s in (LLAMA, MISTRAL, JOINED, PAIRS))
    out = render(LLAMA, [ASK], tools=TOOLS)
    assert '"name": "add"' in out and describe(TOOLS) not in out


def test_ids_where_nine_letters_are_wanted():
    out = render(MISTRAL, CASE10, tools=TOOLS)
    assert '"id": "call00000"}]' in out and '[TOOL_RESULTS]call00000=3' in out
    own = copy.deepcopy(CASE10)
    own[1]['tool_calls'][0]['id'] = own[2]['tool_call_id'] = 'VvvODy9mT'
    assert '"id": "VvvODy9mT"}]' in render(MISTRAL, own) and '[TOOL_RESULTS]VvvODy9mT=3' in render(MISTRAL, own)


# --- thinking ---------------------------------------------------------------------------------------------------------
def test_the_switch_goes_under_the_templates_name():
    assert render('{{ thinking }}{{ messages | length }}', [ASK], enable_thinking=False) == 'False1'
    assert render('{{ enable_thinking is defined }}{{ thinking is defined }}', [ASK]) == 'FalseFalse'
    tail = Template(QWEN3).render([ASK], now=NOW, enable_thinking=False)
    assert detect(QWEN3).thinking(tail) == 'closed' and detect(QWEN3).thinking(render(QWEN3, [ASK])) == 'unset'


def test_a_template_that_rewrites_the_last_answer_case_13():
    "The prompts part where the template dropped the empty thinking, and nowhere before: that much can be reused."
    first = render(QWEN3, [ASK], enable_thinking=False)
    answered = [ASK, {'role': 'assistant', 'content': 'Yes.'}]
    assert render(QWEN3, answered, generate=False) == first + 'Yes.<|im_end|>\n'
    second = render(QWEN3, [*answered, ASK], enable_thinking=False)
    same = next(i for i, (a, b) in enumerate(zip(first, second)) if a != b)
    assert first[same:].startswith('<think>') and first[:same].endswith('assistant\n')
    assert second[same:].startswith('Yes.')
