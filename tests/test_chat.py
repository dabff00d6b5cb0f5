"The contract of `Chat`, over the scripted engine and a real model."
import threading
import time

import pytest

from rishi import BadRequest, Chat, ContextWindowExceededError, resp_text, thought
from rishi.testing import ScriptedEngine
from rishi.types import Done, Progress, TextDelta, ThinkingDelta


def script(*replies, **kw): return Chat(engine=ScriptedEngine(replies, **kw.pop('engine', {})), **kw)


@pytest.fixture(params=['scripted', pytest.param('llama', marks=pytest.mark.needs('llama'))])
def make(request):
    "`make(*replies)`: a chat that says the replies; the real model says its own, to prompts that make it say the same."
    if request.param == 'scripted':
        yield script
        return
    tiny, patch = request.getfixturevalue('tiny'), request.getfixturevalue('monkeypatch')
    def real(*replies, engine=None, **kw):
        slow, plain = (engine or {}).get('delay'), tiny.eval
        if slow: patch.setattr(tiny, 'eval', lambda tokens: (time.sleep(slow), plain(tokens)))
        patch.setattr(tiny, 'batch', (engine or {}).get('batch', tiny.batch))
        return Chat(engine=tiny, temp=0, **kw)
    yield real


ZORA = ['My name is Zora.', 'What is my name?']
SAID = ['<think>\nThe user is called Zora.\n</think>\n\nNice to meet you, Zora!', 'Your name is Zora.']


# --- one turn ---------------------------------------------------------------------------------------------------------
def test_a_turn_answers_and_remembers(make):
    chat = make(*SAID)
    r = chat(ZORA[0])
    assert resp_text(r) == 'Nice to meet you, Zora!' and thought(r) == 'The user is called Zora.'
    assert resp_text(chat(ZORA[1])) == 'Your name is Zora.'
    assert [m['role'] for m in chat.hist] == ['user', 'assistant'] * 2
    assert chat.hist[1]['thinking'] == 'The user is called Zora.' and chat.turn_res['content'] == 'Your name is Zora.'


def test_events_markdown_and_the_result_are_one_turn(make):
    events = list(make(*SAID)(ZORA[0], stream='events'))
    assert isinstance(events[-1], Done) and events[-1].finish_reason == 'stop'
    think = ''.join(e.text for e in events if isinstance(e, ThinkingDelta))
    text = ''.join(e.text for e in events if isinstance(e, TextDelta))
    assert (think, text) == ('The user is called Zora.', 'Nice to meet you, Zora!')
    assert sum(e.tokens for e in events if isinstance(e, ThinkingDelta | TextDelta)) <= events[-1].report.generated
    prefill = [e for e in events if isinstance(e, Progress)]
    assert prefill[-1].done == prefill[-1].total == events[-1].report.prompt_tokens
    md = ''.join(make(*SAID)(ZORA[0], stream=True))
    assert md == '> **🧠 Thinking**\n>\n> The user is called Zora.\n\nNice to meet you, Zora!'
    assert events[-1].resp._repr_markdown_() == md


def test_usage_is_that_of_the_last_turn(make):
    chat = make(*SAID)
    chat(ZORA[0])
    first = chat.use
    chat(ZORA[1])
    assert first.cached_tokens < first.prompt_tokens and chat.use.turns == 1
    assert chat.use.prompt_tokens > first.prompt_tokens and (first + chat.use).turns == 2
    assert str(chat.use).startswith(f'total={chat.use.total_tokens}|in={chat.use.prompt_tokens}|out=')


def test_the_report_adds_up(make):
    chat = make(*SAID)
    for m in ZORA:
        chat(m)
        r = chat.cache_report()
        assert r.cached + r.evaluated == r.prompt_tokens and r.window_used <= r.window and r.kv_bytes > 0
        assert r.to_dict()['cache_n'] == r.cached and r.to_dict()['predicted_n'] == r.generated
    assert chat.cached_tokens <= chat.token_count and 0 < chat.pct_full < 1


def test_a_plain_turn_evaluates_only_what_is_new(make):
    chat = make('Your name is Zora.', 'Your name is Zora.', think=False, sp='My name is Zora.')
    chat.think = None if isinstance(chat.engine, ScriptedEngine) else False
    chat(ZORA[1])
    held = chat.engine.n_tokens
    chat(ZORA[1])
    report = chat.cache_report()
    if chat.think is None: assert (report.cached, report.why) == (held, 'extends the conversation')
    else: assert report.why == 'template rewrote message 2'     # it drops the empty thinking


def test_history_goes_on_from_another_chat(make):
    first = make(*SAID)
    first(ZORA[0])
    second = make(SAID[1], messages=first.hist)
    assert resp_text(second(ZORA[1])) == 'Your name is Zora.'
    assert len(first.hist) == 2, 'the other chat has a history of its own'


def test_none_answers_the_history_as_it_stands(make):
    chat = make(SAID[1], messages=[{'role': 'user', 'content': ZORA[0]}, {'role': 'assistant', 'content': 'Hi.'},
                                   {'role': 'user', 'content': ZORA[1]}])
    assert resp_text(chat()) == 'Your name is Zora.'
    with pytest.raises(BadRequest, match='nothing to answer'): chat()


def test_max_output_tokens_ends_with_length(make):
    chat = make('1, 2, 3, 4, 5, 6, 7, 8, 9, 10')
    *_, done = chat('Count from 1 to 50.', stream='events', max_output_tokens=3)
    assert done.finish_reason == 'length' and done.report.generated == 3
    assert chat.hist[-1]['meta']['finish_reason'] == 'length'


# --- what goes wrong --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('bad', ['', '  \n', 'a\ud800', 3, {'role': 'user'}, object()])
def test_a_message_that_cannot_be_sent_is_refused_at_once(make, bad):
    chat = make(*SAID)
    with pytest.raises(BadRequest, match='cannot be sent'): chat(bad)
    assert chat.hist == []


def test_a_prompt_that_does_not_fit_leaves_the_chat_as_it_was(make):
    "CASES 14: both numbers, nothing in the history, the next turn works."
    chat = make(*SAID, ctx_limit=200)
    with pytest.raises(ContextWindowExceededError, match='200') as e: chat('word ' * 400)
    assert e.value.used > e.value.limit == 200 and chat.hist == []
    assert resp_text(chat(ZORA[0])) == 'Nice to meet you, Zora!'


def test_the_window_ends_an_answer(make):
    chat = make('1, 2, 3, ' * 40)
    used = len(chat.engine.tokenize(chat.render('Count from 1 to 50.').encode(), True))
    chat.ctx_limit = used + 5
    *_, done = chat('Count from 1 to 50.', stream='events')
    assert done.finish_reason == 'length' and done.report.generated == 5


def test_an_engine_that_fails_rolls_the_turn_back():
    chat = script('one', RuntimeError('boom'), 'two')
    chat('a')
    before = [dict(m) for m in chat.hist]
    with pytest.raises(RuntimeError, match='boom'): chat('b')
    assert chat.hist == before
    assert resp_text(chat('c')) == 'two' and chat.cache_report().why == 'extends the conversation'


def test_an_answer_of_nothing_leaves_no_empty_turn():
    chat = script('', 'here')
    assert resp_text(chat('a')) == '' and chat.hist == []
    assert resp_text(chat('b')) == 'here' and len(chat.hist) == 2


@pytest.mark.parametrize('kw,name', [(dict(temp=-1), 'temp'), (dict(top_p=2), 'top_p'), (dict(top_k='x'), 'top_k'),
                                     (dict(max_output_tokens=0), 'max_tokens'), (dict(comp_kw={'x': 1}), 'comp_kw')])
def test_a_bad_setting_is_told_before_anything_is_loaded(kw, name):
    with pytest.raises(BadRequest, match=name): Chat('/nowhere/x.gguf', **kw)


def test_options_of_an_engine_are_refused_beside_a_loaded_one():
    with pytest.raises(BadRequest, match='n_ctx'): script('x', n_ctx=64)


# --- stop and interrupt -----------------------------------------------------------------------------------------------
COUNT = ', '.join(map(str, range(1, 51)))


def test_cancel_keeps_the_partial_answer_marked(make):
    chat = make(COUNT, 'pong', engine={'delay': .005})
    seen, events = '', chat('Count from 1 to 50.', stream='events')
    for e in events:
        if isinstance(e, TextDelta): seen += e.text
        if len(seen) > 8: chat.cancel()
    assert e.finish_reason == 'cancelled' and seen.startswith('1, 2, 3')
    assert chat.hist[-1]['content'] == seen and chat.hist[-1]['meta']['finish_reason'] == 'cancelled'
    assert resp_text(chat('Reply with exactly: pong')) == 'pong'


@pytest.mark.parametrize('how', ['close', 'forget', 'raise'])
def test_a_stream_that_is_left_keeps_what_was_read(make, how):
    "CASES 15 (a); an interrupt raised in the reader, a closed stream, and one that is simply dropped."
    chat = make(COUNT, 'pong', engine={'delay': .005})
    stream = chat('Count from 1 to 50.', stream='events')
    seen = ''
    while len(seen) < 8: seen += e.text if isinstance(e := next(stream), TextDelta) else ''
    if how == 'close': stream.close()
    if how == 'raise':
        with pytest.raises(KeyboardInterrupt): stream.throw(KeyboardInterrupt)
    if how == 'forget': del stream
    reply = chat('Reply with exactly: pong')
    assert resp_text(reply) == 'pong'
    assert [m['role'] for m in chat.hist] == ['user', 'assistant'] * 2
    assert chat.hist[1]['content'].startswith(seen.rstrip()) and chat.hist[1]['meta']['finish_reason'] == 'cancelled'


def test_after_an_interrupt_the_chat_answers_like_a_fresh_one(make):
    "CASES 15: the greedy answer equals that of a chat that was given the same history."
    chat = make(COUNT, 'pong', engine={'delay': .005})
    stream = chat('Count from 1 to 50.', stream='events')
    while not isinstance(next(stream), TextDelta): pass
    stream.close()
    fresh = make('pong', messages=chat.hist)
    assert resp_text(chat('Reply with exactly: pong')) == resp_text(fresh('Reply with exactly: pong')) == 'pong'


def test_a_cancel_before_the_first_token_drops_the_message(make):
    chat = make('x', 'pong', engine={'delay': .05, 'batch': 8})
    events = chat('word ' * 300, stream='events')
    next(events)
    chat.cancel()
    *_, done = events
    assert done.finish_reason == 'cancelled' and chat.hist == []
    if not isinstance(chat.engine, ScriptedEngine): assert resp_text(chat('Reply with exactly: pong')) == 'pong'


def test_two_threads_on_one_chat_take_turns():
    chat = script('one', 'two', engine={'delay': .02})
    first = chat('a', stream='events')
    next(first)
    seen = []
    t = threading.Thread(target=lambda: seen.extend(chat('b', stream='events')))
    t.start()
    rest = list(first)
    t.join()
    assert rest[-1].resp['content'] == 'one' and seen[0] == Progress('wait', 0, 0)
    assert [m['content'] for m in chat.hist] == ['a', 'one', 'b', 'two']


def test_a_turn_that_waits_can_be_stopped():
    chat = script('one', 'two', engine={'delay': .02})
    first = chat('a', stream='events')
    next(first)
    seen = []
    t = threading.Thread(target=lambda: seen.extend(chat('b', stream='events')))
    t.start()
    while not seen: pass
    chat.cancel()
    assert list(first)[-1].finish_reason == 'cancelled'
    t.join()
    assert seen[-1].finish_reason == 'cancelled' and not any(m['content'] == 'b' for m in chat.hist)


# --- around it --------------------------------------------------------------------------------------------------------
def test_rewind_drops_whole_turns_and_keeps_the_rest_warm(make):
    chat = make(*SAID, SAID[1])
    for m in ZORA: chat(m)
    chat.rewind()
    assert len(chat.hist) == 2
    assert resp_text(chat(ZORA[1])) == 'Your name is Zora.' and chat.cache_report().why == 'went back to turn 2'
    with pytest.raises(BadRequest, match='2 turns'): chat.rewind(3)


def test_reset_starts_over(make):
    chat = make(*SAID)
    chat(ZORA[0])
    chat.reset()
    assert chat.hist == [] and chat.token_count == 0


def test_the_system_prompt_can_change(make):
    chat = make('pong', 'ping', sp='Whatever the user says, reply with exactly: pong')
    assert resp_text(chat('Hello')) == 'pong'
    chat.reconfigure(sp='Whatever the user says, reply with exactly: ping')
    assert resp_text(chat('Hello')) == 'ping' and chat.cache_report().why in ('settings changed',)


def test_the_stream_kind_is_checked(make):
    with pytest.raises(BadRequest, match='stream='): make()('hi', stream='yes')


def test_a_shared_engine_outlives_its_chats(make):
    chat = make(*SAID)
    chat.close()
    assert not chat.engine.closed and resp_text(chat(ZORA[0]))
