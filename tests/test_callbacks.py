"Callbacks: their order, what they replace, what becomes of a turn in which one raises."
from dataclasses import replace
from json import dumps

import pytest

from rishi import BadRequest, Chat, ChatCallback, TruncationCallback, UsageStats, resp_text
from rishi.callbacks import Say, ToolReminderCallback, UsageCallback
from rishi.history import checked, turns
from rishi.testing import ScriptedEngine
from rishi.types import ToolCall, ToolResult


def call(name, **args): return f'<tool_call>\n{dumps({"name": name, "arguments": args})}\n</tool_call>'
def script(*replies, **kw): return Chat(engine=ScriptedEngine(replies), **kw)
def roles(chat): return ' '.join(m['role'][0] for m in chat.hist)


def add(a: int, b: int):
    "Add two numbers."
    return a + b


class Log(ChatCallback):
    "Notes the hooks that ran, with its name."

    def __init__(self, log, name='', order=0): self.log, self.name, self.order = log, name, order
    def before_turn(self, chat, message): self.log.append(f'{self.name}before_turn')
    def before_step(self, chat, messages): self.log.append(f'{self.name}before_step')
    def after_tool(self, chat, result): self.log.append(f'{self.name}after_tool')
    def after_answer(self, chat, more, messages): self.log.append(f'{self.name}after_answer')
    def after_turn(self, chat, resp): self.log.append(f'{self.name}after_turn')


def on(hook, fn): return type('On', (ChatCallback,), {hook: lambda self, *args: fn(*args)})()


# --- when they run ----------------------------------------------------------------------------------------------------
def test_hooks_run_at_their_places_in_a_turn_with_tools():
    log = []
    chat = script(call('add', a=1, b=2), '3', tools=[add], cbs=[Log(log)])
    chat('go')
    assert log == ['before_turn', 'before_step', 'after_tool', 'before_step', 'after_answer', 'after_turn']


def test_a_lower_order_comes_first_and_equal_ones_as_they_were_added():
    log = []
    chat = script('x', cbs=[Log(log, 'c', 5), Log(log, 'a', -5), Log(log, 'd', 5)])
    chat('go', cbs=[Log(log, 'b')])
    assert [o[0] for o in log if o.endswith('before_turn')] == ['a', 'b', 'c', 'd']


def test_the_default_ones_and_none():
    assert [type(c).__name__ for c in script().cbs] == ['UsageCallback', 'TruncationCallback', 'ToolReminderCallback']
    assert script(default_cbs=False).cbs == []
    assert repr(script().cbs[0]) == 'UsageCallback()'


def test_callbacks_of_a_call_are_for_that_turn_alone():
    log = []
    chat = script('x', 'y', default_cbs=False)
    chat('a', cbs=[Log(log)])
    seen = list(log)
    chat('b')
    assert seen and log == seen and chat.cbs == []


def test_add_and_remove():
    chat, a, b = script(default_cbs=False), Log([]), TruncationCallback(5)
    assert chat.add_cb(a).add_cbs([b, UsageCallback]) is chat
    assert chat.cbs[:2] == [a, b] and isinstance(chat.cbs[2], UsageCallback)
    assert chat.remove_cb(TruncationCallback).remove_cbs([a]).cbs == chat.cbs[-1:]
    chat.remove_cb(Log([]))
    assert len(chat.cbs) == 1, 'one that it does not have is no matter'


@pytest.mark.parametrize('bad', [[3], ['x'], [Chat], lambda chat: None, [object()]])
def test_what_is_no_callback_is_refused_at_once(bad):
    with pytest.raises(BadRequest, match='no callback'): script(cbs=bad)
    with pytest.raises(BadRequest, match='no callback'): script('x')('hi', cbs=bad)


def test_one_callback_needs_no_list():
    log = []
    script('x', cbs=Log(log))('hi')
    assert log


# --- what they replace ------------------------------------------------------------------------------------------------
def test_a_message_is_replaced_one_callback_after_the_other():
    def louder(chat, m): return m | {'content': m['content'] + '!'}
    chat = script('x', cbs=[on('before_turn', louder), on('before_turn', louder)])
    chat('hi')
    assert chat.hist[0]['content'] == 'hi!!' and 'hi!!' in chat.engine.prompts[0]


def test_messages_before_a_step_become_the_history():
    chat = script('x', 'y', cbs=on('before_step', lambda chat, messages: messages[-1:]))
    chat('a')
    chat('b')
    assert [m['content'] for m in chat.hist] == ['b', 'y'] and '\na<' not in chat.engine.prompts[1]


def test_messages_that_are_no_conversation_are_refused_and_the_turn_is_rolled_back():
    chat = script('x', 'y')
    chat('a')
    before = list(chat.hist)
    with pytest.raises(BadRequest, match='role'): chat('b', cbs=on('before_step', lambda chat, ms: [{'role': 'elf'}]))
    assert chat.hist == before


def test_a_hook_may_hand_back_the_history_itself():
    "The turn goes on in a list of its own, so that an error after it still leaves no trace."
    chat = script('x', RuntimeError('boom'))
    chat('a')
    before = list(chat.hist)
    with pytest.raises(RuntimeError): chat(cbs=on('before_step', lambda c, ms: c.hist), msg='b')
    assert chat.hist == before


def test_a_result_is_replaced():
    chat = script(call('add', a=1, b=2), 'ok', tools=[add],
                  cbs=on('after_tool', lambda chat, r: replace(r, content=f'about {r.content}')))
    results = [e for e in chat('go', stream='events') if isinstance(e, ToolResult)]
    assert results[0].content == chat.hist[2]['content'] == 'about 3'


def test_a_text_after_the_answer_goes_on_within_the_turn():
    more = iter(['Are you sure?', None])
    chat = script('4', 'Yes, 4.', 'z', cbs=on('after_answer', lambda chat, m, messages: next(more, None)))
    chat('one')
    assert roles(chat) == 'u a u a' and chat.hist[2]['content'] == 'Are you sure?' and chat.use.turns == 1
    assert turns(chat.hist) == [0] and checked(chat.hist) == chat.hist
    chat('two')
    chat.rewind(2)
    assert chat.hist == [], 'what was said for the user is no turn of its own'


def test_more_may_come_with_events_and_may_be_the_end():
    call = ToolCall('f', {}, 'f1')
    end = Say('noted', events=(call, ToolResult(call, 'fine')), go_on=False)
    chat = script('4', cbs=on('after_answer', lambda chat, m, messages: end))
    assert ''.join(chat('one', stream=True)) == '4\n\n⏳ `f()`\n\n→ `fine`'
    assert roles(chat) == 'u a u' and resp_text(chat.turn_res) == '4'


@pytest.mark.parametrize('reply,limit', [('', None), ('1, 2, 3', 2)])
def test_nothing_is_said_to_an_answer_that_is_none_or_was_cut(reply, limit):
    asked = []
    chat = script(reply, cbs=on('after_answer', lambda *args: asked.append(args)))
    chat('one', max_output_tokens=limit)
    assert not asked


# --- one that raises --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('hook', ['before_turn', 'before_step', 'after_tool', 'after_answer', 'after_turn'])
def test_a_callback_that_raises_rolls_the_turn_back(hook):
    def fail(*args): raise ValueError('mine')
    chat = script('x', call('add', a=1, b=2), '3', '4', tools=[add])
    chat('a')
    before, use, res, report = list(chat.hist), chat.use, chat.turn_res, chat.cache_report()
    with pytest.raises(ValueError, match='mine'): chat('b', cbs=on(hook, fail))
    assert (chat.hist, chat.use, chat.turn_res, chat.cache_report()) == (before, use, res, report)
    chat.engine.replies[:] = ['5']
    assert resp_text(chat('c')) == '5'


def test_a_callback_may_not_take_a_turn_of_its_chat():
    with pytest.raises(Exception, match='middle of a turn'):
        script('x', 'y')('hi', cbs=on('before_step', lambda chat, messages: chat('again')))


# --- the ones that come with rishi ------------------------------------------------------------------------------------
def test_usage_adds_up():
    chat = script('x', 'y', 'aside')
    for m in 'ab': chat(m)
    total = chat.cbs[0].total
    assert total.turns == 2 and total.prompt_tokens > chat.use.prompt_tokens
    chat.oneshot('c')
    assert chat.cbs[0].total == total and isinstance(total, UsageStats)


@pytest.mark.parametrize('kw,cut', [(dict(tool_max_len=10), 10), (dict(cbs=[TruncationCallback(20)]), 20),
                                    (dict(tool_max_len=0), 0), ({}, None),
                                    (dict(tool_max_len=5, default_cbs=False), None)])
def test_long_results_are_cut(kw, cut):
    def dump(): return 'x' * 300
    chat = script(call('dump'), 'ok', tools=[dump], **kw)
    chat('go')
    kept, note, _ = chat.hist[2]['content'].partition('…')
    assert kept == 'x' * (300 if cut is None else cut) and bool(note) == (cut is not None)


@pytest.mark.parametrize('prose', ['I will call add(2, 3) now.', 'So: {"name": "add", "parameters": {}}'])
def test_a_call_that_is_only_written_about_is_asked_for_once(prose):
    chat = script(prose, call('add', a=2, b=3), '5', prose, prose, tools=[add])
    assert resp_text(chat('go')) == '5' and roles(chat) == 'u a u a t a' and 'add' in chat.hist[2]['content']
    chat('go')
    assert roles(chat).endswith('u a u a'), 'once a turn'


@pytest.mark.parametrize('said', ['madd(2)', 'use `add(2, 3)`', '```python\nadd(2, 3)\n```', 'I add (both).',
                                  'np.add(1)'])
def test_no_reminder_for_code_or_other_words(said):
    chat = script(said, tools=[add])
    assert resp_text(chat('go')) == said and roles(chat) == 'u a'


def test_no_reminder_when_a_tool_was_called_or_there_is_none():
    chat = script(call('add', a=2, b=3), 'I called add(2, 3): 5', tools=[add])
    assert roles(chat) == '' and chat('go') and roles(chat) == 'u a t a'
    assert chat.remove_cb(ToolReminderCallback) and len(chat.cbs) == 2
    plain = script('add(2, 3)')
    assert plain('go') and roles(plain) == 'u a'
