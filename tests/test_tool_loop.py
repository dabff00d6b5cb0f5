"Turns with tools, over the scripted engine and a real model that really calls."
import threading
from json import dumps

import pytest

from rishi import BadRequest, Chat, resp_text
from rishi.core import hitl_policy
from rishi.history import INTERRUPTED, checked
from rishi.testing import ScriptedEngine
from rishi.types import ApprovalNeeded, Done, TextDelta, ToolCall, ToolResult


def add(a: int, b: int):
    "Add two numbers."
    return a + b


def multiply(x: int, y: int):
    "Multiply two numbers."
    return x * y


def subtract(a: int, b: int):
    "Subtract b from a."
    raise ValueError('timeout')


def get_weather(city: str):
    "Get the weather of a city."
    return {'Paris': 'sunny', 'London': 'rain'}[city]


def call(name, **args):
    return f'<tool_call>\n{dumps({"name": name, "arguments": args})}\n</tool_call>'


def script(*replies, **kw): return Chat(engine=ScriptedEngine(replies), **kw)


@pytest.fixture(params=['scripted', pytest.param('llama', marks=pytest.mark.needs('llama'))])
def make(request):
    "A chat that says the replies; the real model says its own, to prompts that make it say the same."
    if request.param == 'scripted': return script
    tiny = request.getfixturevalue('tiny')
    return lambda *replies, **kw: Chat(engine=tiny, temp=0, **{'think': False} | kw)


def results(chat): return [m['content'] for m in chat.hist if m['role'] == 'tool']
def roles(chat): return ' '.join(m['role'][0] for m in chat.hist)


# --- what the issue asks of tiny-chat ---------------------------------------------------------------------------------
def test_a_chain_of_two_rounds(make):
    chat = make(call('add', a=12, b=30), call('multiply', x=42, y=2), 'The answer is 84.', tools=[add, multiply])
    assert resp_text(chat('First add 12 and 30, then multiply the result by 2.')) == 'The answer is 84.'
    assert results(chat) == ['42', '84'] and roles(chat) == 'u a t a t a'
    assert [s.did for s in chat.cache_report().steps] == ['called add', 'called multiply', 'answered']


@pytest.mark.parametrize('parallel', [False, True])
def test_two_calls_in_one_step_give_the_same_history_side_by_side_or_not(make, parallel):
    both = call('get_weather', city='Paris') + '\n' + call('get_weather', city='London')
    chat = make(both, 'The results are sunny and rain.', tools=[get_weather], parallel_tools=parallel)
    assert resp_text(chat('What is the weather in Paris and London?')) == 'The results are sunny and rain.'
    assert roles(chat) == 'u a t t a' and results(chat) == ['sunny', 'rain']
    ids = [c['id'] for c in chat.hist[1]['tool_calls']]
    assert len(set(ids)) == 2 and [m['tool_call_id'] for m in chat.hist[2:4]] == ids


def test_a_tool_that_raises_is_a_result_that_the_model_reads(make):
    chat = make(call('subtract', a=12, b=5), 'The tool failed: timeout', tools=[subtract])
    assert resp_text(chat('What is 12 minus 5?')) == 'The tool failed: timeout'
    assert results(chat) == ['Error: ValueError: timeout']


@pytest.mark.parametrize('approve', [lambda c: False, lambda c: '', hitl_policy({'multiply': 'dont_run'})])
def test_a_denied_call(make, approve):
    ran = []
    def multiply(x: int, y: int):
        "Multiply two numbers."
        ran.append(x)
    chat = make(call('multiply', x=3, y=4), 'The tool call was denied, so I cannot answer.', tools=[multiply],
                approve=approve)
    assert resp_text(chat('What is 3 times 4?')) == 'The tool call was denied, so I cannot answer.'
    assert not ran and 'denied' in results(chat)[0]


def test_a_spent_budget_asks_for_prose(make):
    chat = make(call('add', a=12, b=30), 'I have used my tools, here is the answer: 42.', tools=[add, multiply],
                max_steps=1, final_prompt='Stop using tools and give your final answer.')
    answer = chat('First add 12 and 30, then multiply the result by 2.')
    assert resp_text(answer) == 'I have used my tools, here is the answer: 42.'
    assert roles(chat) == 'u a t u a' and chat.hist[3]['content'].startswith('Stop using tools')


def test_events_come_in_order(make):
    chat = make(call('add', a=5, b=7), 'The answer is 12.', tools=[add], approve=lambda c: True)
    events = [e for e in chat('What is 5 plus 7?', stream='events') if not hasattr(e, 'stage')]
    kinds = [type(e) for e in events]
    assert [k for i, k in enumerate(kinds) if not i or kinds[i - 1] is not k] == [ToolCall, ApprovalNeeded, ToolResult,
                                                                                  TextDelta, Done]
    assert events[0] == events[1].call == events[2].call
    assert events[0].arguments == {'a': 5, 'b': 7} and events[2].content == '12' and events[2].error is None


def test_markdown_shows_calls_as_lines(make):
    chat = make(call('add', a=5, b=7), 'The answer is 12.', tools=[add])
    assert ''.join(chat('What is 5 plus 7?', stream=True)) == '⏳ `add(a=5, b=7)`\n\n→ `12`\n\nThe answer is 12.'


def test_the_next_turn_goes_on_from_a_turn_with_tools(make):
    chat = make(call('add', a=5, b=7), 'The answer is 12.', 'pong', tools=[add])
    chat('What is 5 plus 7?')
    assert resp_text(chat('Reply with exactly: pong')) == 'pong'
    assert checked(chat.hist) == chat.hist


# --- faults of the model ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize('raw,says', [
    (call('ad', a=1, b=2), 'there is no tool ad'),
    (call('add.__globals__'), 'there is no tool add.__globals__'),
    (call('add', a=1), 'b is missing'),
    (call('add', a='x', b=2), 'must be'),
    (call('add', a=1, b=2, c=3), 'no argument c'),
    ('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": \n</tool_call>', 'Error'),
    ('<tool_call>\n{"name": "add", "arguments": [1, 2]}\n</tool_call>', 'object'),
])
def test_whatever_the_model_does_wrong_is_a_result(raw, says):
    chat = script(raw, 'sorry', tools=[add])
    assert resp_text(chat('go')) == 'sorry' and says in results(chat)[0] and '\n' not in results(chat)[0]
    assert checked(chat.hist) == chat.hist


def test_a_call_in_unclosed_thinking_is_run():
    "CASES 5."
    chat = script('<think>\ngo ' + call('add', a=1, b=2), '3', tools=[add])
    assert resp_text(chat('go')) == '3' and results(chat) == ['3']


def test_thinking_without_an_answer_is_told_and_not_an_empty_reply():
    "CASES 5: never an empty answer in silence."
    chat = script('<think>\nhm, let me see', '4')
    *_, done = chat('go', stream='events')
    assert done.resp['thinking'] == 'hm, let me see' and 'without an answer' in done.resp['meta']['notice']
    assert 'without an answer' in done.resp._repr_markdown_() and checked(chat.hist) == chat.hist
    assert resp_text(chat('again')) == '4'
    assert 'without an answer' in ''.join(script('<think>\nhm')('go', stream=True))


def test_calls_beyond_the_budget_are_answered_and_not_run():
    chat = script(call('add', a=1, b=1) * 3, 'done', tools=[add], max_steps=2)
    chat('go')
    assert results(chat)[:2] == ['2', '2'] and 'budget' in results(chat)[2]


def test_a_model_that_never_stops_calling_is_ended():
    chat = script(*[call('add', a=1, b=1)] * 9, tools=[add], max_steps=2)
    *_, done = chat('go', stream='events')
    assert done.finish_reason == 'tool_calls' and checked(chat.hist) == chat.hist
    assert 'budget' in results(chat)[-1]


def test_long_results_are_cut_and_say_so():
    def dump(): return 'x' * 9000
    chat = script(call('dump'), 'ok', tools=[dump], tool_max_len=100)
    chat('go')
    assert len(results(chat)[0]) < 200 and '8,900' in results(chat)[0]


def test_async_tools_and_async_approval():
    async def slow(n: int):
        import asyncio
        await asyncio.sleep(.01)
        return n + 1
    async def approve(c): return True
    chat = script(call('slow', n=1), 'ok', tools=[slow], approve=approve)
    assert resp_text(chat('go')) == 'ok' and results(chat) == ['2']


def test_parallel_tools_run_side_by_side():
    together = threading.Barrier(2, timeout=5)
    def meet(): return together.wait() is not None
    chat = script(call('meet') * 2, 'ok', tools=[meet], parallel_tools=True)
    chat('go')
    assert results(chat) == ['true', 'true'] or results(chat) == ['True', 'True']


def test_two_functions_of_one_name_are_refused():
    def other(): pass
    other.__name__ = 'add'
    with pytest.raises(BadRequest, match='add'): script(tools=[add, other])


# --- stop and interrupt -----------------------------------------------------------------------------------------------
def test_an_interrupt_in_a_tool_keeps_a_valid_conversation(make):
    "CASES 15 (c)."
    def add(a: int, b: int):
        "Add two numbers."
        raise KeyboardInterrupt
    chat = make(call('add', a=5, b=7), 'pong', tools=[add])
    with pytest.raises(KeyboardInterrupt): chat('What is 5 plus 7?')
    assert roles(chat) == 'u a t' and 'interrupted' in results(chat)[0]
    assert chat.hist[1]['meta']['finish_reason'] in ('cancelled', 'tool_calls')
    assert resp_text(chat('Reply with exactly: pong')) == 'pong'


def test_cancel_while_a_tool_runs():
    def add(a: int, b: int):
        chat.cancel()
        return a + b
    chat = script(call('add', a=1, b=2) + call('add', a=3, b=4), 'never', 'pong', tools=[add])
    *_, done = chat('go', stream='events')
    assert done.finish_reason == 'cancelled' and results(chat)[0] == '3' and 'interrupted' in results(chat)[1]
    assert checked(chat.hist) == chat.hist


@pytest.mark.parametrize('how', ['close', 'throw', 'cancel'])
def test_a_tool_turn_cut_at_every_event_leaves_a_valid_conversation(how):
    replies = ['<think>hm</think>Let me see. ' + call('add', a=1, b=2) + call('get_weather', city='Paris'),
               'So. ' + call('add', a=3, b=4), 'The answer is 7.']
    def fresh(): return script(*replies, 'pong', tools=[add, get_weather], approve=lambda c: True)
    whole = list(fresh()('go', stream='events'))
    for n in range(len(whole)):
        chat = fresh()
        stream = chat('go', stream='events')
        for _ in range(n): next(stream)
        if how == 'close': stream.close()
        elif how == 'cancel':
            chat.cancel()
            *_, last = [None, *stream]
            assert last is None or isinstance(last, Done)
        else:
            with pytest.raises(KeyboardInterrupt): stream.throw(KeyboardInterrupt)
        assert checked(chat.hist) == chat.hist, (how, n)
        assert not any(m['role'] == 'assistant' and not (m['content'] or m.get('tool_calls') or m.get('thinking'))
                       for m in chat.hist)
        chat.engine.replies[:] = ['pong']
        assert resp_text(chat('again')) == 'pong' and INTERRUPTED not in str(chat.hist[-1])


def test_a_tool_may_not_ask_its_own_chat():
    def nested(): return str(chat('inner'))
    chat = script(call('nested'), 'ok', tools=[nested])
    assert resp_text(chat('go')) == 'ok' and 'middle of a turn' in results(chat)[0]


def test_a_tool_may_ask_another_chat_on_the_same_engine(make):
    def ask(): return str(other('Reply with exactly: pong'))
    ask.__doc__ = 'Get the weather of a city.'
    engine = ScriptedEngine([call('ask'), 'pong', 'The answer is pong.'])
    other = Chat(engine=engine)
    chat = Chat(engine=engine, tools=[ask])
    assert resp_text(chat('go')) == 'The answer is pong.' and results(chat) == ['pong']


def test_stopping_leaves_a_slow_parallel_tool_behind():
    gate = threading.Event()
    def slow(): gate.wait()
    chat = script(call('slow'), 'never', tools=[slow], parallel_tools=True)
    threading.Timer(.1, chat.cancel).start()
    *_, done = chat('go', stream='events')
    assert done.finish_reason == 'cancelled' and 'interrupted' in results(chat)[0]
    gate.set()
