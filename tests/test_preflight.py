"What a chat says of its cache: before a turn (preflight), after it (the report and its reasons), and of all slots."
import threading

import pytest
import untrimmable

from rishi import BadRequest, Chat, ContextWindowExceededError
from rishi.callbacks import ChatCallback
from rishi.context import SlidingWindowCallback
from rishi.kv import Slot, state, used
from rishi.testing import ScriptedEngine
from rishi.types import Preflight

llama = pytest.mark.needs('llama')
ASK = dict(temp=0, max_output_tokens=8)
LONG = 'Name a fruit, tell me about it in one long sentence, and say where it grows and who eats it. '


@pytest.fixture(params=['tiny', 'small'])
def engine(request):
    eng = request.getfixturevalue(request.param)
    eng.forget()
    return eng


def exact(chat, msg='And then?'):
    "The turn is what its preflight has told; returns that."
    told = chat.preflight(msg)
    assert chat.preflight(msg) == told       # asking changes nothing
    chat(msg)
    step = chat.cache_report().steps[0]
    assert told == Preflight(step.prompt_tokens, step.cached, step.evaluated, chat.ctx_limit)
    return told


# --- before: the same numbers as after --------------------------------------------------------------------------------
@llama
def test_from_turn_to_turn(engine):
    chat = Chat(engine=engine, **ASK)
    assert exact(chat, LONG).cached == 0
    assert exact(chat).cached > 20
    chat.oneshot('What is 5 + 7?')
    exact(chat)
    chat.hist.pop()
    assert exact(chat, None).evaluated == 1


@llama
def test_back_and_forth(engine):
    chat = Chat(engine=engine, **ASK)
    for _ in range(3): exact(chat, LONG)
    long = list(chat.hist)
    chat.rewind(2)
    exact(chat, 'Name a river.')
    chat.hist[:] = long
    exact(chat)
    chat.hist[0] = dict(chat.hist[0], content='Name a colour.')
    exact(chat)


@llama
def test_beside_other_chats(engine):
    sp = 'You are a helpful assistant who answers in one short sentence. ' * 3
    chat, other = (Chat(engine=engine, sp=sp, **ASK) for _ in range(2))
    exact(chat, LONG)
    assert exact(other, 'Name a river.').cached > 20
    fork = chat.fork()
    assert exact(fork).cached > 40
    exact(chat)
    chat.reconfigure(sp='Be brief.')
    exact(chat)


@llama
def test_of_a_chat_in_host_memory_and_of_an_evicted_one(engine, monkeypatch):
    chat = Chat(engine=engine, **ASK)
    exact(chat, LONG)
    crowd = [Chat(engine=engine, **ASK) for _ in range(engine.n_seq)]
    for c in crowd: c('Hi', max_output_tokens=1)
    assert 'in host memory' in {s['state'] for s in engine.slots_info() if s['owner'] is chat._key}
    assert exact(chat).cached > 20
    monkeypatch.setattr(engine, 'host_bytes', 0)
    for c in crowd: c('Hi', max_output_tokens=1)
    exact(chat)


@llama
@pytest.mark.parametrize('kind', untrimmable.MODELS)
def test_of_models_that_cannot_trim(kind, tmp_path):
    path = tmp_path/f'{kind}.gguf'
    path.write_bytes(untrimmable.MODELS[kind]())
    with Chat(path, n_ctx=1024, n_threads=1, eng_kw=dict(swa_full=False), **ASK) as chat:
        for msg in (LONG, 'And then?', LONG): exact(chat, msg)
        chat.oneshot('What is 5 + 7?')
        chat.rewind(2)
        assert exact(chat, 'No, a river.').cached > 20
        exact(chat.fork(), LONG)
        chat.hist.pop()
        exact(chat, None)


@llama
def test_with_tools_and_with_thinking(tiny):
    def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b
    chat = Chat(engine=tiny, tools=[add], think=True, temp=0)
    exact(chat, 'What is 5 + 7?')
    assert len(chat.cache_report().steps) == 2
    exact(chat, 'Thanks.')


@llama
def test_where_the_history_is_shortened(tiny_chat):
    with Chat(tiny_chat, n_ctx=256, n_threads=1, **ASK) as chat:
        for _ in range(3): exact(chat, LONG)
        sliding = Chat(engine=chat.engine, cbs=[cb := SlidingWindowCallback(at=.4, to=.2)], **ASK)
        for _ in range(4): exact(sliding, LONG)
        assert cb.dropped == 8 - len(sliding.hist) > 0


@llama
def test_what_does_not_fit(tiny):
    chat = Chat(engine=tiny, ctx_limit=60, **ASK)
    exact(chat, 'Hello')
    told = chat.preflight('word ' * 100)
    assert not told.fits and told.prompt_tokens > 60 == told.window
    with pytest.raises(ContextWindowExceededError) as e: chat('word ' * 100)
    assert e.value.used == told.prompt_tokens and len(chat.hist) == 2


def test_callbacks_count_turns_not_preflights():
    chat = Chat(engine=ScriptedEngine(['one', 'two']))
    exact(chat, 'first'), exact(chat, 'second')
    assert chat.cbs[0].total.turns == 2


def test_nothing_to_ask():
    with pytest.raises(BadRequest, match='nothing to answer'): Chat(engine=ScriptedEngine()).preflight()


# --- after: every field, every reason -------------------------------------------------------------------------------
@llama
def test_a_report_holds_what_was_promised(engine):
    chat = Chat(engine=engine, **ASK)
    chat(LONG)
    chat('And then?')
    r = chat.cache_report()
    assert r.cached + r.evaluated == r.prompt_tokens and 0 < r.generated <= 8
    assert r.window == engine.n_ctx and r.window_used == len(engine.held) and r.kv_bytes > 50 * r.window_used
    assert r.ttft > 0 and r.prefill_tps > 0 and r.decode_tps > 0 and (r.media_encoded, r.media_reused) == (0, 0)
    named = r.to_dict()
    assert (named['cache_n'], named['prompt_n'], named['predicted_n']) == (r.cached, r.evaluated, r.generated)
    assert {'prompt_tokens', 'media', 'media_encoded', 'media_reused', 'ttft', 'prefill_tps', 'decode_tps', 'window',
            'window_used', 'kv_bytes', 'why'} <= named.keys()


@llama
def test_the_window_of_a_report_is_its_own_chats(tiny):
    tiny.forget()
    chat, other = Chat(engine=tiny, **ASK), Chat(engine=tiny, **ASK)
    class Meddler(ChatCallback):
        def after_answer(self, *a): other('Hi', max_output_tokens=1)
    chat(LONG, cbs=[Meddler()])
    r = chat.cache_report()
    assert r.window_used >= r.prompt_tokens > other.token_count
    assert r.kv_bytes == round(tiny.token_bytes * r.window_used)


def first_turn(engine): return Chat(engine=engine, **ASK)


def extended(engine):
    chat = Chat(engine=engine, **ASK)
    chat(LONG)
    return chat


def gone_back(engine):
    chat = extended(engine)
    chat('And then?')
    chat.rewind(1)
    return chat


def edited(engine):
    chat = gone_back(engine)
    chat('And then?')
    chat.hist[2] = dict(chat.hist[2], content='And before?')
    return chat


def evicted(engine):
    chat = extended(engine)
    engine.forget()
    return chat


def changed(engine):
    chat = extended(engine)
    chat.reconfigure(sp='Be brief.')
    return chat


@llama
@pytest.mark.parametrize('before,why,lost', [
    (first_turn, 'first turn', False), (extended, 'extends the conversation', False),
    (gone_back, 'went back to turn 2', False), (edited, 'history edited at message 3', True),
    (evicted, 'evicted', True), (changed, 'settings changed', True)])
def test_reasons(small, before, why, lost):
    small.forget()
    chat = before(small)
    chat('Thank you.')
    assert (chat.cache_report().why, chat.cache_report().lost) == (why, lost)


@llama
def test_a_template_that_drops_old_thinking_is_named(tiny):
    chat = Chat(engine=tiny, think=True, temp=0)
    chat('What is 5 + 7?')
    assert chat.hist[-1]['thinking']
    chat('Thanks.')
    assert chat.cache_report().why == 'template rewrote message 2' and chat.cache_report().lost


def test_a_cache_that_cannot_be_trimmed_is_named():
    engine = ScriptedEngine(['one', 'two', 'three'])
    engine.can_trim, engine._floor = False, lambda seq: 10**6
    chat = Chat(engine=engine)
    chat('first'), chat('second')
    chat.rewind(1)
    assert exact(chat, 'third').cached == 0
    assert (chat.cache_report().why, chat.cache_report().lost) == ('model cannot trim its cache', True)


# --- of all slots -----------------------------------------------------------------------------------------------------
def test_what_a_slot_is():
    key = object()
    assert [state(s) for s in (Slot(0, owner=key), Slot(0), Slot(0, once=True), Slot(None, owner=key))] == [
        'idle', 'branch', 'one-shot', 'in host memory']


def test_shared_cells_count_once():
    assert used([]) == 0 and used([[1, 2, 3], [1, 2, 9], [1, 2, 3, 4], [7]]) == 6


@llama
def test_the_slots_of_an_engine(engine):
    chat = Chat(engine=engine, **ASK)
    for _ in range(3): chat(LONG)
    chat.rewind(2)
    chat('Name a river.')
    chat.oneshot('What is 5 + 7?')
    told = engine.slots_info()
    assert [(s['owner'], s['state']) for s in told] == [(None, 'one-shot'), (chat._key, 'idle'), (None, 'branch')]
    assert all(s['bytes'] > 50 * s['tokens'] > 0 for s in told) and told[1]['tokens'] == chat.cache_report().window_used
    assert max(s['tokens'] for s in told) <= engine.cells_used < sum(s['tokens'] for s in told)


def test_the_slot_that_answers_is_active():
    chat = Chat(engine=ScriptedEngine(['one two three'], delay=.01))
    events = chat('hi', stream='events')
    next(events)
    assert [s['state'] for s in chat.engine.slots_info()] == ['active']
    events.close()
    assert [s['state'] for s in chat.engine.slots_info()] == ['idle']


def test_a_chat_is_free_when_its_answer_is_there():
    chat, said = Chat(engine=ScriptedEngine(['one', 'two'])), []
    chat('first')
    t = threading.Thread(target=lambda: said.append(chat('second')), daemon=True)
    t.start()
    t.join(10)
    assert said and len(chat.hist) == 4


def test_the_table_in_the_notebook():
    from rishi_jupyter.session import Bound, Load, Session
    from rishi_jupyter.status import slots, status
    engine = ScriptedEngine(['one', 'two', 'three', 'four'])
    session = Session()
    session.chats = {n: Bound(Chat(engine=engine), Load()) for n in ('main', 'other')}
    assert not slots(session, engine)
    for b in session.chats.values(): b.chat('hi')
    mine = Chat(engine=engine)
    mine('hello')
    session.chats['main'].chat.oneshot('hm')
    (table,) = slots(session, engine)
    assert [r[:2] for r in table.rows] == [('', 'one-shot'), ('one made in Python', 'idle'), ('other', 'idle'),
                                           ('main', 'idle')]
    assert f'{engine.cells_used:,} of 8,192 tokens in use' in table.text() and table.rows[0][3].endswith('MiB')
    assert table in status(session)
    engine.close()
    assert not slots(session, engine)
