"Conversations longer than the window: what goes, what stays."
import random
import threading

import pytest

from rishi import BadRequest, Chat, ContextWindowExceededError, SlidingWindowCallback, resp_text
from rishi.context import SUMMARY, drop, groups, recover_context, transcript
from rishi.core import finish, load_engine
from rishi.history import checked, follow_up
from rishi.testing import ScriptedEngine

SP = 'Whatever the user says, reply with exactly: pong'


def script(*replies, **kw): return Chat(engine=ScriptedEngine(replies), **kw)
def call(name): return f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
def user(text): return {'role': 'user', 'content': text}
def said(text): return {'role': 'assistant', 'content': text}


def tool_turn(n, size=10):
    call = {'id': f'c{n}', 'type': 'function', 'function': {'name': 'f', 'arguments': {'n': n}}}
    return [user(f'question {n}'), {'role': 'assistant', 'content': '', 'tool_calls': [call]},
            {'role': 'tool', 'tool_call_id': f'c{n}', 'name': 'f', 'content': 'r' * size}, said(f'answer {n}')]


def talk(n, size=40): return [m for i in range(n) for m in (user(f'{i} ' + 'q' * size), said(f'{i} ' + 'a' * size))]


# --- groups -----------------------------------------------------------------------------------------------------------
def test_a_group_is_a_message_of_the_user_with_all_that_answers_it():
    hist = [said('hello'), *tool_turn(1), user('code'), said('```x```'), follow_up('output', 'code'), said('done')]
    assert [len(g) for g in groups(hist)] == [1, 4, 4] and groups([]) == []
    assert sum(groups(hist), []) == hist


@pytest.mark.parametrize('seed', range(20))
def test_dropping_leaves_a_valid_conversation_of_whole_groups(seed):
    rnd = random.Random(seed)
    hist = [m for i in range(rnd.randrange(1, 12))
            for m in (tool_turn(i, rnd.randrange(300)) if rnd.random() < .5 else talk(1, rnd.randrange(300)))]
    chat, first, last = script(sp='Be kind.'), rnd.randrange(3), rnd.randrange(1, 3)
    budget = rnd.randrange(1, 3000)
    head, gone, rest = drop(chat, hist, budget, first, last)
    assert head + gone + rest == hist and checked(head + rest) == head + rest
    whole = groups(hist)
    assert groups(head) == whole[:len(groups(head))] and groups(rest) == whole[len(whole) - len(groups(rest)):]
    assert len(groups(head)) == min(first, len(whole))
    assert len(groups(rest)) >= min(last, len(whole) - len(groups(head)))
    back = groups(gone)[-1:] if gone else []
    if gone: assert chat._size(head + back[0] + rest) > budget, 'as few as will do'
    if len(groups(rest)) > last: assert chat._size(head + rest) <= budget


def test_system_messages_in_the_history_stay():
    chat = script()
    hist = [{'role': 'system', 'content': 'rules'}, *talk(10)]
    head, gone, rest = drop(chat, hist, 200)
    assert head == hist[:1] and gone and hist[0] not in gone + rest


# --- the sliding window -----------------------------------------------------------------------------------------------
def slide(n=12, **kw):
    "A chat of `n` turns that are too many for its window, after one more; (chat, callback)."
    cb = SlidingWindowCallback(**kw)
    chat = script('summary of it', 'last', ctx_limit=1000, messages=talk(n), sp='Be kind.', cbs=cb)
    if not kw.get('summarize'): chat.engine.replies.pop(0)
    chat('now')
    return chat, cb


def test_the_oldest_go_until_it_is_half_full():
    chat, cb = slide()
    assert cb.dropped and chat.hist == talk(12)[cb.dropped:] + chat.hist[-2:]
    assert chat.hist[-2:][0] == user('now') and resp_text(chat.turn_res) == 'last'
    assert chat.use.prompt_tokens <= 500 and 'Be kind.' in chat.engine.prompts[-1]


def test_nothing_goes_while_there_is_room():
    chat, cb = slide(3)
    assert not cb.dropped and len(chat.hist) == 8


def test_the_first_and_the_last_groups_stay():
    chat, cb = slide(keep_first=2, keep_last=5)
    assert chat.hist[:4] == talk(12)[:4] and chat.hist[-10:-2] == talk(12)[-8:]
    assert cb.dropped and len(groups(chat.hist)) >= 7


def test_what_is_kept_may_be_all():
    chat, cb = slide(keep_first=6, keep_last=7)
    assert not cb.dropped and len(chat.hist) >= 24 or chat.use.prompt_tokens <= 1000


def test_a_summary_stands_where_the_dropped_was():
    chat, cb = slide(8, summarize=True, keep_first=1)
    at = next(i for i, m in enumerate(chat.hist) if m['content'] == SUMMARY + 'summary of it')
    assert at == 2 and chat.hist[:2] == talk(12)[:2] and chat.hist[3] == talk(12)[2 + cb.dropped]
    asked, answered = chat.engine.prompts
    assert f'assistant: 1 {"a" * 40}' in asked and 'Be kind.' not in asked and SUMMARY + 'summary of it' in answered
    assert chat.use.turns == 1 and checked(chat.hist) == chat.hist


def test_a_summary_is_summed_up_in_its_turn():
    chat, cb = slide(8, summarize=True, keep_first=1)
    chat.hist[-2:-2] = talk(4)
    chat.engine.replies[:] = ['newer summary', 'next']
    chat('go on')
    notes = [m['content'] for m in chat.hist if m['content'].startswith(SUMMARY)]
    assert notes == [SUMMARY + 'newer summary'] and SUMMARY + 'summary of it' in chat.engine.prompts[-2]


def test_no_summary_without_words():
    cb = SlidingWindowCallback(summarize=True)
    chat = script('  ', 'last', ctx_limit=1000, messages=talk(12), cbs=cb)
    assert resp_text(chat('now')) == 'last' and not any(SUMMARY in m['content'] for m in chat.hist)


def test_a_stop_reaches_the_summary():
    chat = Chat(engine=ScriptedEngine(['s' * 400, 'never'], delay=.02), ctx_limit=1000, messages=talk(12),
                cbs=SlidingWindowCallback(summarize=True))
    threading.Timer(.1, chat.cancel).start()
    *_, done = chat('now', stream='events')
    assert done.finish_reason == 'cancelled' and chat.hist == talk(12)


@pytest.mark.parametrize('kw', [dict(at=0), dict(at=.3, to=.5), dict(to=0), dict(at=1.2)])
def test_shares_that_make_no_sense(kw):
    with pytest.raises(BadRequest, match='0 < to <= at <= 1'): SlidingWindowCallback(**kw)


# --- when it does not fit ---------------------------------------------------------------------------------------------
def test_without_a_callback_the_oldest_go_when_there_is_no_room():
    chat = script('last', ctx_limit=1000, messages=talk(12), sp='Be kind.')
    assert resp_text(chat('now')) == 'last' and 2 < len(chat.hist) < 24 and 'Be kind.' in chat.engine.prompts[-1]


def test_a_long_turn_is_saved_by_shorter_results():
    def dump(): return 'x' * 700
    chat = script(call('dump'), call('dump'), 'done', tools=[dump], ctx_limit=1800)
    assert resp_text(chat('go')) == 'done'
    results = [m['content'] for m in chat.hist if m['role'] == 'tool']
    assert len(results) == 2 and all(len(r) < 700 and 'cut' in r for r in results) and checked(chat.hist) == chat.hist


def test_nothing_is_cut_in_the_history_that_was_given():
    chat = script(ctx_limit=500)
    hist = [*talk(2), *tool_turn(1, 600)]
    before = [dict(m) for m in hist]
    kept = recover_context(chat, hist)
    assert hist == before and kept[0] == hist[4] and len(kept[2]['content']) < 200


def test_the_error_comes_when_nothing_helps_and_changes_nothing():
    chat = script('x', ctx_limit=400, messages=talk(3), sp='Be kind.')
    with pytest.raises(ContextWindowExceededError) as e: chat('w' * 500)
    assert e.value.used > e.value.limit == 400 and chat.hist == talk(3)
    assert resp_text(chat('short')) == 'x'


def test_a_transcript_is_as_long_as_it_may_be_and_new():
    chat = script(ctx_limit=200)
    text = transcript(chat, talk(20))
    assert 90 < len(text) <= 120 and text.endswith(f'assistant: 19 {"a" * 40}')
    assert transcript(chat, talk(1, 3)) == 'user: 0 qqq\nassistant: 0 aaa' and transcript(chat, []) == ''
    chat.ctx_limit = 1
    assert transcript(chat, talk(1)) == ''


# --- a real model -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def small(tiny_chat):
    engine = finish(load_engine(tiny_chat, n_threads=1, n_ctx=1024))
    assert engine.n_ctx == 1024
    yield engine
    engine.close()


@pytest.mark.needs('llama')
@pytest.mark.parametrize('cbs', [(), (SlidingWindowCallback,)], ids=['recover', 'slide'])
def test_two_hundred_turns_in_a_small_window(small, cbs, monkeypatch):
    prompts, plain = [], small.stream
    def stream(ids, *args, **kw):
        prompts.append(b''.join(map(small.piece, ids)).decode())
        return plain(ids, *args, **kw)
    monkeypatch.setattr(small, 'stream', stream)
    with Chat(engine=small, sp=SP, temp=0, think=False, max_output_tokens=12, cbs=cbs) as chat:
        for i in range(200):
            assert resp_text(chat(f'This is message number {i}, please keep it in mind.')), i
            assert chat.token_count <= 1024
    assert len(prompts) == 200 and all(p.startswith(f'<|im_start|>system\n{SP}<|im_end|>') for p in prompts)
    assert 4 < len(chat.hist) < 400 and checked(chat.hist) == chat.hist


@pytest.mark.needs('llama')
def test_tool_turns_in_a_small_window(small):
    def get_weather(city: str):
        "Get the weather of a city."
        return 'sunny'
    chat = Chat(engine=small, sp='Be kind.', temp=0, think=False, tools=[get_weather], cbs=SlidingWindowCallback)
    for _ in range(25): assert resp_text(chat('What is the weather in Paris?')) == 'The weather in Paris is sunny.'
    assert checked(chat.hist) == chat.hist and len(chat.hist) < 100 and chat.cbs[-1].dropped
