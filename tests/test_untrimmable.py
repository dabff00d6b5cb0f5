"Models whose cache cannot be cut at any place go back by snapshots at the edges of turns, or evaluate all again."
import gc

import numpy as np
import pytest
from untrimmable import MODELS, WINDOW

from rishi import Chat, resp_text
from rishi.core import finish, load_engine
from rishi.kv import Edge, Slot, choose, plan, reason
from rishi.snapshots import edges, fit
from rishi.testing import ScriptedEngine
from rishi.types import Progress, TextDelta

STORY = 'tell me a tale of a fox and a crow, and of the cheese that both of them wanted so much. ' * 4


# --- pure -------------------------------------------------------------------------------------------------------------
def test_a_plan_goes_back_to_a_snapshot_when_the_cache_cannot_be_cut_there():
    held, wanted = list(range(20)), [*range(12), 99, 98]
    assert plan(held, wanted, False) == 0 and plan(held, wanted, False, None, {5: 0, 10: 0, 15: 0}) == 10
    assert plan(held, wanted, False, floor=12) == 12 and plan(held, wanted, False, floor=13, edges=[3]) == 3
    assert plan(held, wanted, True, edges=[3]) == 12


def test_the_choice_knows_floors_and_snapshots():
    owner = object()
    cut, snap = Slot(0, list(range(20)), owner), Slot(1, list(range(20)), edges={8: Edge(b'')})
    assert choose([cut, snap], None, [*range(10), 99], can_trim=False).keep == 8
    cut.floor = 9
    assert choose([cut, snap], None, [*range(10), 99], can_trim=False).slot is cut


def test_snapshots_are_worth_while_behind_the_first_message_and_around_the_last():
    end, control = 1, {0, 1}
    ids = [0, 5, 5, end, 9, 0, 6, end, 9, 0, 7, end, 9, 0, 8, end, 9, 0, 2]
    assert edges(ids, lambda i: i == end, control.__contains__) == {4, 12, 16}
    assert edges([0, 5, 5, 0, 2], lambda i: i == end, control.__contains__) == {0, 3}
    assert edges([5, 5], lambda i: False, lambda i: False) == set()


def test_the_reason_tells_eviction_from_what_cannot_be_cut():
    u = [{'role': 'user', 'content': c} for c in 'abc']
    a = {'role': 'assistant', 'content': 'x'}
    why = lambda new, **kw: reason([u[0], a], new, had=20, **kw)[0]
    assert why([u[1]], kept=0, shared=9, can_trim=False) == 'model cannot trim its cache'
    assert why([u[1]], kept=0, shared=9) == 'evicted'
    assert why([u[0], a, u[1]], kept=20, shared=20, can_trim=False) == 'extends the conversation'


def test_snapshots_and_parked_slots_share_a_budget_and_the_oldest_goes_first():
    engine = ScriptedEngine()
    shared, young = Edge(b'1234', used=1), Edge(b'56', used=9)
    parked = Slot(None, [1], state=b'789', used=5)
    engine.slots = [Slot(0, [1, 2], edges={1: shared}), Slot(1, [1, 2], edges={1: shared, 2: young}), parked]
    engine.host_bytes = 9
    fit(engine, None)
    assert engine.slots[0].edges == {1: shared} and parked in engine.slots       # 4 + 2 + 3: one snapshot counts once
    engine.host_bytes = 8
    fit(engine, None)
    assert engine.slots[0].edges == {} and engine.slots[1].edges == {2: young} and parked in engine.slots
    engine.host_bytes = 3
    fit(engine, None)
    assert parked not in engine.slots and engine.slots[1].edges == {2: young}


# --- real models ------------------------------------------------------------------------------------------------------
llama = pytest.mark.needs('llama')
ASK = dict(temp=0, max_output_tokens=12)


@pytest.fixture(scope='session', params=MODELS)
def engines(request, tmp_path_factory):
    "Two engines of the same model: one stays warm, the other tells what a cold one says."
    path = tmp_path_factory.mktemp('rigid')/f'{request.param}.gguf'
    path.write_bytes(MODELS[request.param]())
    more = dict(swa_full=False, n_batch=64) | (dict(n_seq_max=4) if request.param == 'sliding' else {})
    load = lambda: finish(load_engine(path, n_threads=1, n_ctx=1536, eng_kw=more))
    warm, cold = load(), load()
    warm.kind = request.param
    yield warm, cold
    for e in (warm, cold): e.close()


@pytest.fixture
def warm(engines, monkeypatch):
    for e in engines: e.forget()
    monkeypatch.setattr(engines[0], 'cold', engines[1], raising=False)
    return engines[0]


def check(chat, ids):
    "The logits behind `ids` are those of a cold engine."
    warm, cold = chat.engine.logits(list(ids)), chat.engine.cold.logits(list(ids))
    chat.engine.cold.forget()
    assert np.abs(warm - cold).max() <= .01 * np.abs(cold).max()


def turn(chat, msg=None):
    "One turn, whose every token is what a cold engine chooses too, but for ties."
    prompt, cold = chat.engine.tokenize(chat.render(msg).encode(), first=True), chat.engine.cold
    chat(msg)
    ids, n = list(chat._known.ids), len(prompt)
    assert ids[:n] == prompt and len(ids) == n + ASK['max_output_tokens']
    for k in range(n, len(ids)):
        logits = cold.logits(ids[:k])
        assert logits[ids[k]] >= logits.max() - .01 * np.abs(logits).max()
    cold.forget()
    check(chat, ids)
    return chat.cache_report()


def tokens(chat, text): return len(chat.engine.tokenize(text.encode(), first=True))


@llama
def test_what_can_be_cut_is_asked(warm):
    chat = Chat(engine=warm, **ASK)
    assert not warm.can_trim and warm.n_seq == 4
    chat('hello')
    slot, asked = warm._slot, lambda: warm.owner.call(lambda: warm._floor(warm._slot.seq))
    assert asked() == (0 if warm.kind == 'sliding' else len(slot.cells))
    chat(STORY)
    assert WINDOW < asked() <= len(slot.cells)
    if warm.kind == 'sliding': assert warm.owner.call(lambda: warm._trim(slot.seq, WINDOW))    # it says yes to anything


@llama
def test_a_whole_sliding_window_is_cut_like_any_cache_while_it_is_there(tmp_path):
    "The library's default keeps all cells of the window's layers; then no snapshot is taken."
    path = tmp_path/'sliding.gguf'
    path.write_bytes(MODELS['sliding']())
    with Chat(path, n_threads=1, n_ctx=1536, **ASK) as chat:
        chat(STORY)
        chat(STORY)
        chat.rewind(1)
        chat('no, the fox')
        assert chat.cache_report().why == 'went back to turn 2' and not any(s.edges for s in chat.engine.slots)
        ids = list(chat._known.ids)
        warm = chat.engine.logits(ids)
        chat.engine.forget()
        cold = chat.engine.logits(ids)
        assert np.abs(warm - cold).max() <= .01 * np.abs(cold).max()


@llama
def test_every_step_says_what_a_cold_engine_says(warm):
    chat = Chat(engine=warm, sp='you are a poet', **ASK)
    turn(chat, STORY)
    report = turn(chat, 'and then?')
    assert report.why == 'extends the conversation' and report.evaluated < 60
    chat.oneshot('what is five and seven?')
    assert turn(chat, 'go on').why == 'extends the conversation'
    fork = chat.fork()
    assert turn(fork, 'what now?').evaluated < 60
    report = turn(chat, 'and the crow?')
    assert report.why == 'extends the conversation' and report.evaluated < 60
    chat.rewind(2)
    report = turn(chat, 'no, the fox')
    assert report.evaluated < 60 and report.why in ('model cannot trim its cache', 'went back to turn 3')
    turn(fork, 'and what else?')
    chat.hist[1] = dict(chat.hist[1], content='something else')
    turn(chat, 'is that so?')
    said = chat.hist.pop()
    turn(chat)
    assert chat.hist[-1]['content'] == said['content']


@llama
def test_going_back_starts_at_the_nearest_snapshot(warm):
    chat = Chat(engine=warm, **ASK)
    chat('hello')
    before = tokens(chat, chat._render(chat._messages(chat.hist), generate=False)) - 1     # to the end mark, no newline
    chat(STORY)
    chat('and then?')
    chat.rewind(2)
    report = turn(chat, 'good day')
    assert report.cached == before and report.why == 'model cannot trim its cache'


@llama
def test_regenerating_evaluates_the_start_of_the_answer_only(warm):
    chat = Chat(engine=warm, **ASK)
    chat(STORY)
    first = chat.hist.pop()['content']
    report = turn(chat)
    assert chat.hist[-1]['content'] == first and report.evaluated <= tokens(chat, '\n<|im_start|>assistant\n')


@llama
def test_chats_and_one_shots_share_a_system_prompt(warm):
    sp = 'you are a poet who writes of foxes. ' * 8
    a, b = (Chat(engine=warm, sp=sp, **ASK) for _ in range(2))
    turn(a, 'hello')
    turn(a, STORY)
    assert turn(b, 'hi').cached > len(sp)
    a.oneshot('good day')
    assert turn(a, 'go on').why == 'extends the conversation'


@llama
def test_without_a_snapshot_all_is_evaluated_and_the_reason_is_given(warm, monkeypatch):
    "Case 16."
    monkeypatch.setattr(warm, 'host_bytes', 0)
    chat = Chat(engine=warm, **ASK)
    turn(chat, STORY)
    turn(chat, 'and then?')
    chat.hist[0] = dict(chat.hist[0], content='x' + STORY)
    report = turn(chat, 'what now?')
    assert report.cached == 0 and (report.why, report.steps[0].lost) == ('model cannot trim its cache', True)


@llama
@pytest.mark.parametrize('how', ['close', 'cancel'])
def test_an_interrupted_answer_is_gone_on_from(warm, how):
    chat = Chat(engine=warm, **ASK)
    turn(chat, STORY)
    stream, n = chat('go on', stream='events'), 0
    for e in stream:
        n += isinstance(e, TextDelta)
        if n == 3 and how == 'close': break
        if n == 3: chat.cancel()
    stream.close()
    assert chat.hist[-1]['meta']['finish_reason'] == 'cancelled'
    check(chat, chat._known.ids)
    report = turn(chat, 'and then?')
    assert report.evaluated < 60        # the engine may have been ahead of what was read
    assert report.why in ('extends the conversation', 'model cannot trim its cache')


@llama
def test_an_interrupted_prefill_keeps_what_was_evaluated(warm):
    chat = Chat(engine=warm, **ASK)
    turn(chat, 'hello')
    held = warm.n_tokens
    stream = chat(STORY, stream='events')
    for e in stream:
        if isinstance(e, Progress) and e.done > held + 100: break
    stream.close()
    assert len(chat.hist) == 2
    assert turn(chat, STORY).cached > held + 60


@llama
def test_a_batch_that_is_broken_off_costs_no_more_than_itself(warm):
    "The stop is seen inside the native call: a recurrent state is of no use then."
    chat, asked = Chat(engine=warm, **ASK), []
    turn(chat, 'hello')
    held, real = warm.n_tokens, warm._eval
    def eval_(ids, seq, at, stop):
        if at > held + 100 and not asked:
            asked.append(at)
            stop.set()
        return real(ids, seq, at, stop)
    warm._eval = eval_
    try: chat(STORY)
    finally: del warm._eval
    assert asked and warm.n_tokens >= held + 60
    check(chat, warm.held)
    assert turn(chat, STORY).cached >= held + 60


@llama
def test_parked_slots_come_back_with_their_snapshots(warm):
    chats = [Chat(engine=warm, sp=f'you are poet {i}', **ASK) for i in range(6)]
    for c in chats: turn(c, STORY)
    for c in chats: turn(c, 'and then?')
    assert all(c.cache_report().why == 'extends the conversation' for c in chats)
    assert sum(s.seq is None for s in warm.slots) >= 2
    for c in chats:
        c.rewind(1)
        assert turn(c, 'no').evaluated < 60


@llama
def test_the_budget_holds_and_no_cell_leaks(warm, monkeypatch):
    monkeypatch.setattr(warm, 'host_bytes', 60_000)
    chats = [Chat(engine=warm, **ASK) for _ in range(4)]
    for k in range(3):
        for i, c in enumerate(chats):
            turn(c, f'{k} {i} ' + STORY[:100])
            kept = {id(e): len(e.state) for s in warm.slots for e in s.edges.values()}
            assert sum(kept.values()) + sum(len(s.state) for s in warm.slots if s.seq is None) <= 60_000
    for c in chats: c.close()
    gc.collect()                         # the chats of the tests before
    from rishi.llama.native import L
    left = warm.owner.call(lambda: [L.llama_memory_seq_pos_max(warm._native.memory, s) for s in range(warm.n_seq)])
    assert not warm.slots and set(left) == {-1}


@llama
def test_rows_of_a_map_say_what_they_say_alone(warm):
    chat = Chat(engine=warm, sp='you are a poet', **ASK)
    turn(chat, STORY)
    rows = ['a fox', 'a crow and ' * 5, 'some cheese']
    batches, real = [], warm._eval_rows
    warm._eval_rows = lambda rows, stop: batches.append(len(rows)) or real(rows, stop)
    try: answers = chat.map(rows, progress=False)
    finally: del warm._eval_rows
    assert max(batches) > 1
    for row, answer in zip(rows, answers, strict=True):
        ids = warm.tokenize((chat.render(row) + resp_text(answer)).encode(), first=True)
        for k in range(len(ids) - ASK['max_output_tokens'], len(ids)):
            logits = warm.cold.logits(ids[:k])
            assert logits[ids[k]] >= logits.max() - .01 * np.abs(logits).max()
    assert turn(chat, 'and then?').why == 'extends the conversation'


@llama
def test_a_cache_that_refuses_to_be_cut_is_evaluated_again(tiny, monkeypatch):
    "Whatever was thought of it before."
    tiny.forget()
    monkeypatch.setattr(tiny, '_trim', lambda seq, n: not n and tiny._native.trim(seq, 0))
    chat = Chat(engine=tiny, temp=0, think=False)
    chat('My name is Zora.')
    chat('What is my name?')
    chat.rewind(1)
    chat.hist[0] = dict(chat.hist[0], content='My name is Milo.')
    assert 'Milo' in resp_text(chat('What is my name?'))
