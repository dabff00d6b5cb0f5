"Slots: chats, one-shots, forks and branches share one pool and never disturb each other."
import gc

import numpy as np
import pytest

from rishi import Chat, resp_text
from rishi.kv import BRANCH, Choice, Slot, choose, evictable
from rishi.testing import ScriptedEngine

A, B = object(), object()


# --- the choice, pure -------------------------------------------------------------------------------------------------
def test_the_own_slot_is_extended():
    s = Slot(0, [1, 2, 3], A)
    assert choose([s], A, [1, 2, 3, 4]) == Choice('own', s, 3)


def test_a_longer_prefix_elsewhere_is_copied():
    own, other = Slot(0, [1, 9], A), Slot(1, [1, 2, 3, 4], B)
    assert choose([own, other], A, [1, 2, 3, 5]) == Choice('copy', other, 3)


def test_a_one_shot_never_takes_a_slot():
    s = Slot(0, [1, 2, 3], A)
    assert choose([s], None, [1, 2, 3, 4]) == Choice('copy', s, 3)


def test_a_branch_worth_keeping_is_left_and_a_short_tail_is_cut():
    long, short = Slot(0, list(range(100)), A), Slot(0, list(range(60 + BRANCH)), A)
    assert choose([long], A, [*range(50), 777]).how == 'copy'
    assert choose([short], A, [*range(60), 777]).how == 'own'


def test_nothing_shared_begins_anew_and_equal_prefixes_prefer_the_own():
    own, other = Slot(0, [1, 2], A), Slot(1, [1, 2], B)
    assert choose([Slot(0, [9], B)], A, [1, 2]).how == 'new'
    assert choose([other, own], A, [1, 2, 3]) == Choice('own', own, 2)


def test_without_trimming_only_whole_slots_serve():
    s = Slot(0, [1, 2, 3], A)
    assert choose([s], A, [1, 2, 9], can_trim=False).keep == 0
    assert choose([s], A, [1, 2, 3, 4], can_trim=False) == Choice('own', s, 3)


def test_eviction_takes_nobodys_first_then_the_oldest():
    a, b, c, parked = Slot(0, [1], A, 1), Slot(1, [1], B, 5), Slot(2, [1], None, 9), Slot(None, [1], None, 0)
    assert evictable([a, b, c, parked], None) is c
    assert evictable([a, b, parked], None) is a and evictable([a, b, parked], a) is b
    assert evictable([parked], None) is None


# --- the engine, real -------------------------------------------------------------------------------------------------
llama = pytest.mark.needs('llama')
ASK = dict(temp=0, think=False)


@pytest.fixture
def engine(tiny):
    tiny.forget()
    return tiny


def new_tokens(chat, msg):
    "What the next turn has to evaluate: all that no slot holds."
    ids = chat.engine.tokenize(chat.render(msg).encode(), first=True)
    return len(ids) - min(chat.engine.cached(ids), len(ids) - 1)


@llama
def test_one_shots_and_other_chats_cost_the_conversation_nothing(engine):
    chat, other = Chat(engine=engine, **ASK), Chat(engine=engine, **ASK)
    chat('My name is Zora.')
    held = chat.engine.n_tokens
    chat.oneshot('What is 5 + 7?')
    other('Reply with exactly: pong')
    chat.classify('I love it', ['good', 'bad'])
    assert resp_text(chat('What is my name?')) == 'Your name is Zora.'
    assert chat.cache_report().cached + BRANCH > held and chat.cache_report().why != 'evicted'
    assert resp_text(other('Reply with exactly: ping')) == 'ping' and other.cache_report().why != 'evicted'


@llama
def test_chats_share_a_system_prompt(engine):
    sp = 'Whatever the user says, reply with exactly: pong. ' * 6
    a, b = Chat(engine=engine, sp=sp, **ASK), Chat(engine=engine, sp=sp, **ASK)
    a('Hello')
    b('Good day')
    report = b.cache_report()
    assert report.cached >= len(engine.tokenize(sp.encode(), False)) and report.why == 'first turn'


@llama
def test_a_fork_goes_its_own_way_for_the_price_of_its_own_text(engine):
    chat = Chat(engine=engine, **ASK)
    chat('My name is Zora.')
    fork = chat.fork()
    assert resp_text(fork('What is my name?')) == 'Your name is Zora.'
    assert fork.cache_report().cached > 10
    chat('My name is Milo.')
    assert resp_text(fork('What is my name?')) == 'Your name is Zora.'


@llama
def test_going_back_and_forth_between_branches_evaluates_only_what_is_new(small):
    "SmolLM2, whose template leaves old turns as they are."
    small.forget()
    chat = Chat(engine=small, temp=0, max_output_tokens=24)
    chat('Name a fruit, and tell me about it in one long sentence.')
    chat('Tell me more about its taste and its colour.')
    long = list(chat.hist)
    chat.rewind(1)
    chat('Name a river.')
    assert chat.cache_report().why == 'went back to turn 2'
    chat.hist[:] = long
    new = new_tokens(chat, 'Thank you.')
    chat('Thank you.')
    assert chat.cache_report().evaluated == new < 30


@llama
def test_regenerating_evaluates_next_to_nothing(engine):
    chat = Chat(engine=engine, **ASK)
    chat('Tell me a story about Ana.')
    first = chat.hist.pop()
    assert resp_text(chat()) == first['content'] and chat.cache_report().evaluated == 1


@llama
def test_more_chats_than_sequences_take_turns(engine):
    chats = [Chat(engine=engine, **ASK) for _ in range(engine.n_seq + 4)]
    for i, c in enumerate(chats): c(f'My name is Zora{i}.')
    assert len(engine.slots) == len(chats) and sum(s.seq is None for s in engine.slots) == 4      # in host memory
    for c in chats:
        c('What is my name?')
        assert c.cache_report().why != 'evicted' and c.cache_report().cached > 10


@llama
def test_parked_slots_stay_within_their_budget(engine, monkeypatch):
    monkeypatch.setattr(engine, 'host_bytes', 1)
    chats = [Chat(engine=engine, **ASK) for _ in range(engine.n_seq + 2)]
    for c in chats: c('Reply with exactly: pong')
    assert not any(s.seq is None for s in engine.slots)
    assert resp_text(chats[0]('Reply with exactly: ping')) == 'ping'


@llama
def test_a_full_pool_makes_room_for_whoever_would_fit_alone(tiny_chat):
    with Chat(tiny_chat, n_ctx=512, n_threads=1, **ASK) as chat:
        others = [Chat(engine=chat.engine, **ASK) for _ in range(3)]
        for o in others: o('word ' * 60, max_output_tokens=4)
        assert chat('word ' * 130, max_output_tokens=4)['meta']['finish_reason'] == 'length'
        assert resp_text(others[0]('Reply with exactly: pong')) == 'pong'


@llama
@pytest.mark.parametrize('how', ['close', 'drop'])
def test_no_cell_leaks(engine, how):
    chats = [Chat(engine=engine, **ASK) for _ in range(3)]
    for c in chats: c.oneshot('Reply with exactly: pong'), c('My name is Zora.')
    assert engine.slots
    if how == 'close':
        for c in chats: c.close()
    del c, chats
    gc.collect()
    keys = {id(k) for k in engine.keys}
    from rishi.llama.native import L
    memory = engine._native.memory
    left = engine.owner.call(lambda: [L.llama_memory_seq_pos_max(memory, s) for s in range(engine.n_seq)])
    assert not engine.slots and set(left) == {-1}, keys


def logits_close(warm, cold): assert np.abs(warm - cold).max() <= .01 * np.abs(cold).max()


@llama
def test_warm_logits_equal_cold_ones(engine):
    a, b = Chat(engine=engine, **ASK), Chat(engine=engine, **ASK)
    a('My name is Zora.')
    b('Count from 1 to 50.')
    a.oneshot('What is 5 + 7?')
    a.rewind(0)
    ids = engine.tokenize(a.render('What is my name?').encode(), True)
    warm = engine.logits(ids)
    engine.forget()
    logits_close(warm, engine.logits(ids))


def test_a_scripted_engine_has_slots_too():
    engine = ScriptedEngine(['one', 'two', 'three'])
    a, b = Chat(engine=engine), Chat(engine=engine)
    a('first')
    b('second')
    a('third')
    assert a.cache_report().why == 'extends the conversation' and len(engine.slots) == 2
