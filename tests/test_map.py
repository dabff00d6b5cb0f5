"Many prompts behind one prefix: the same answers, one evaluation of the prefix, and others get in between."
import _thread
import enum
import json
import threading
from dataclasses import dataclass

import pytest

import rishi.batch
from rishi import Chat, resp_text
from rishi.errors import BadRequest, ContextWindowExceededError, EngineClosed, EngineError
from rishi.testing import ScriptedEngine

llama = pytest.mark.needs('llama')
ASK = dict(temp=0, think=False)
QUIET = dict(progress=False)
SUMS = [f'What is {a} + {b}?' for a, b in zip(range(11, 31), range(45, 25, -1))]
WORDS = [f'Reply with exactly: {w}' for w in ('pong', 'ping', 'tango', 'lima', 'oscar')]
LONG = 'Whatever the user says, reply with exactly: pong. ' * 12


@pytest.fixture
def engine(tiny):
    tiny.forget()
    return tiny


@pytest.fixture
def chat(engine): return Chat(engine=engine, **ASK)


@pytest.fixture
def in_turns(monkeypatch): monkeypatch.setattr(rishi.batch, 'SLICE', 0)      # one batch a job


def watch(engine, monkeypatch, call=lambda rows: None):
    "The (position, tokens) of all that is evaluated; `call(rows)` is called before each batch."
    seen, real = [], engine._eval_rows
    def counted(rows, stop):
        call(rows)
        seen.extend((at, len(tokens)) for tokens, _, at in rows)
        return real(rows, stop)
    monkeypatch.setattr(engine, '_eval_rows', counted)
    return seen


def slots_of_rows(engine):
    "Slots that a map left behind; asked behind all that waits on the engine's thread."
    return engine.owner.call(lambda: [s for s in engine.slots if isinstance(s.owner, rishi.batch._Row)])


def cells_held(engine):
    from rishi.llama.native import L
    memory = engine._native.memory
    return engine.owner.call(lambda: sum(L.llama_memory_seq_pos_max(memory, s) >= 0 for s in range(engine.n_seq)))


# --- answers ----------------------------------------------------------------------------------------------------------
@llama
@pytest.mark.parametrize('think', [False, True])
def test_rows_answer_as_one_shots_do_in_their_order(chat, think):
    prompts = [q for pair in zip(SUMS, WORDS * 4) for q in pair]
    out = chat.map(prompts, think=think, **QUIET)
    assert out == [chat.oneshot(q, think=think) for q in prompts]
    assert all(bool(r.get('thinking')) == think for r in out) and chat.hist == [] and chat.map_res == out
    assert resp_text(out[0]) == 'The answer is 56.' and out[0]['meta']['finish_reason'] == 'stop'


@llama
@pytest.mark.parametrize('batch', [1, 3, 8])
def test_the_prefix_is_evaluated_once(engine, monkeypatch, batch):
    chat = Chat(engine=engine, sp=LONG, **ASK)
    ids = [engine.tokenize(chat.render(q).encode(), True) for q in SUMS]
    prefix = next(i for i, column in enumerate(zip(*ids)) if len(set(column)) > 1)
    seen = watch(engine, monkeypatch)
    out = chat.map(SUMS, batch=batch, **QUIET)
    assert set(map(resp_text, out)) <= {'pong', 'pong.'} and prefix > 100
    assert sum(max(min(at + n, prefix) - at, 0) for at, n in seen) == prefix
    assert sum(n for at, n in seen if at >= prefix) < sum(len(i) - prefix + 3 for i in ids)


@llama
def test_several_rows_run_in_one_batch_and_places_are_taken_again(chat, monkeypatch):
    wide = []
    watch(chat.engine, monkeypatch, lambda rows: wide.append(len(rows)))
    chat.map([*SUMS, *WORDS], batch=4, **QUIET)
    assert max(wide) == 4 and wide.count(4) > len(wide) // 2


@llama
def test_the_conversation_so_far_is_the_prefix_and_goes_on_untouched(chat):
    chat('My name is Zora.')
    hist, held = list(chat.hist), chat.token_count
    ask = ['What is my name?', *WORDS, 'What is my name?']
    out = chat.map(ask, **QUIET)
    assert resp_text(out[0]) == resp_text(out[-1]) == 'Your name is Zora.' and chat.hist == hist
    assert resp_text(chat.map(ask, messages=(), **QUIET)[0]) == 'You have not told me that.'
    assert resp_text(chat('What is my name?')) == 'Your name is Zora.' and chat.cache_report().cached + 40 > held


@llama
def test_a_row_that_fails_has_its_error_in_its_place(chat):
    out = chat.map([WORDS[0], '', None, 3, float('nan'), 'word ' * 5000, WORDS[1]], **QUIET)
    assert [resp_text(out[0]), resp_text(out[-1])] == ['pong', 'ping']
    assert [type(o) for o in out[1:-1]] == [BadRequest] * 4 + [ContextWindowExceededError]


@llama
def test_the_length_is_limited_row_by_row(chat):
    out = chat.map(['Count from 1 to 50.', 'Reply with exactly: pong'], max_output_tokens=6, **QUIET)
    assert [o['meta']['finish_reason'] for o in out] == ['length', 'stop']
    assert out[0] == chat.oneshot('Count from 1 to 50.', max_output_tokens=6)


@llama
def test_sampling_with_a_seed_is_that_of_one_shots(chat):
    hot = dict(temp=1.5, seed=7, max_output_tokens=8)
    assert chat.map(WORDS, batch=1, **hot, **QUIET) == [chat.oneshot(q, **hot) for q in WORDS]


def test_nothing_to_answer_is_no_work(): assert Chat(engine=ScriptedEngine()).map([]) == []


@pytest.mark.parametrize('bad', ['one text', b'bytes', {'a': 1}, 7, None])
def test_what_is_no_list_of_prompts_is_refused(bad):
    with pytest.raises(BadRequest, match='give a list of texts'): Chat(engine=ScriptedEngine()).map(bad)


@pytest.mark.parametrize('batch', [0, -1, 2.5, True])
def test_a_batch_that_is_no_number_of_rows_is_refused(batch):
    with pytest.raises(BadRequest, match='batch='): Chat(engine=ScriptedEngine()).map(['a'], batch=batch)


# --- values and tables ------------------------------------------------------------------------------------------------
class Kind(enum.Enum):
    good = 'good'
    bad = 'bad'


@dataclass
class Sum:
    total: int


@llama
def test_a_schema_makes_values(chat):
    assert all(isinstance(v, Kind) for v in chat.map(SUMS, schema=Kind, **QUIET))
    out = chat.map(WORDS, schema={'const': 'x' * 40}, max_output_tokens=5, **QUIET)
    assert all(isinstance(o, EngineError) and 'max_output_tokens' in str(o) for o in out)


def test_a_schema_with_one_row_after_another():
    engine = ScriptedEngine(['{"total": 3}', '{"total": 4}'])
    engine._sampler = _unconstrained(engine)
    assert Chat(engine=engine).map(['1+2', '2+2'], schema=Sum, **QUIET) == [Sum(3), Sum(4)]


def _unconstrained(engine):
    plain = engine._sampler
    return lambda sampling, constraint: plain(sampling, None)


def test_a_series_gives_a_series():
    pandas = pytest.importorskip('pandas')
    asked = pandas.Series(['a', 'b', None], index=['x', 'y', 'z'], name='ask')
    out = Chat(engine=ScriptedEngine(['one', 'two'])).map(asked, **QUIET)
    assert list(out.index) == ['x', 'y', 'z'] and out.name == 'ask' and list(out[:2].map(str)) == ['one', 'two']
    assert isinstance(out['z'], BadRequest)
    with pytest.raises(BadRequest, match='DataFrame'): Chat(engine=ScriptedEngine()).map(asked.to_frame())


# --- progress, stop, interrupt ----------------------------------------------------------------------------------------
@llama
def test_progress_is_counted_or_drawn(chat, capsys):
    seen = []
    chat.map([*WORDS, ''], progress=lambda *at: seen.append(at))
    assert seen == [(i, 6) for i in range(1, 7)]
    chat.map(WORDS)
    assert '5/5' in capsys.readouterr().err


@llama
def test_cancel_ends_it_and_says_which_rows_are_missing(chat, in_turns):
    prompts = [*WORDS[:2], *['Count from 1 to 50.'] * 20]
    out = chat.map(prompts, progress=lambda done, total: chat.cancel())
    assert isinstance(out[-1], EngineError) and 'Row 22 was not finished' in str(out[-1])
    assert 'pong' in map(str, out) and len(out) == len(prompts)
    assert not slots_of_rows(chat.engine) and resp_text(chat('Reply with exactly: ping')) == 'ping'


@llama
@pytest.mark.parametrize('where', ['decode', 'progress'])
def test_an_interrupt_leaves_what_was_finished_and_a_sound_engine(chat, monkeypatch, where):
    held = cells_held(chat.engine)
    def tell(done, total):
        if where == 'progress' and done == 2: raise KeyboardInterrupt
    def interrupt(rows):
        if where == 'decode' and len(batches) == 30: _thread.interrupt_main()
        batches.append(rows)
    batches = []
    watch(chat.engine, monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        chat.map([*WORDS, *['Count from 1 to 50.'] * 30], progress=tell)
        threading.Event().wait(60)       # where the signal comes late
    assert 'pong' in map(str, chat.map_res) and chat.map_res[-1] is None
    assert not slots_of_rows(chat.engine) and cells_held(chat.engine) == held
    assert resp_text(chat('Reply with exactly: ping')) == 'ping'


@llama
def test_a_closed_engine_is_told(tiny_chat):
    chat = Chat(tiny_chat, n_threads=1, **ASK)
    with pytest.raises(EngineClosed): chat.map(['Count from 1 to 50.'] * 20 + WORDS, progress=lambda *at: chat.close())
    with pytest.raises(EngineClosed): chat.map(WORDS, **QUIET)


@llama
def test_no_cell_leaks(chat):
    chat.map([*SUMS, '', *WORDS], **QUIET)
    assert not slots_of_rows(chat.engine) and cells_held(chat.engine) == 0


# --- beside others ----------------------------------------------------------------------------------------------------
@llama
def test_a_conversation_goes_on_between_the_rows(engine, chat, monkeypatch, in_turns):
    chat('My name is Zora.')
    events, first, turned, out = [], threading.Event(), threading.Event(), []
    watch(engine, monkeypatch, lambda rows: events.append('rows' if len(rows) > 1 else 'one'))
    def tell(done, total):
        first.set()
        turned.wait(60)
    ask = ['Reply with exactly: pong', *['Count from 1 to 50.'] * 4, 'What is my name?']
    mapper = threading.Thread(target=lambda: out.extend(chat.map(ask, batch=5, progress=tell)))
    mapper.start()
    first.wait(60)
    before = len(events)
    assert resp_text(chat('What is my name?')) == 'Your name is Zora.' and not out
    after = len(events)
    turned.set()
    mapper.join()
    assert 'rows' in events[:before] and 'rows' in events[after:]        # the turn had the engine in the middle of it
    assert resp_text(out[0]) == 'pong' and resp_text(out[-1]) == 'Your name is Zora.'
    assert len({resp_text(o) for o in out[1:5]}) == 1 and '50' in resp_text(out[1])
    assert resp_text(chat('Reply with exactly: ping')) == 'ping'


@llama
@pytest.mark.parametrize('n_ctx', [256, 512])
def test_a_small_pool_runs_fewer_rows_and_keeps_the_conversation(tiny_chat, n_ctx):
    with Chat(tiny_chat, n_ctx=n_ctx, n_threads=1, **ASK) as chat:
        chat('My name is Zora.')
        pad = 'word ' * 20
        asked, most = [f'{pad}\n{q}' for q in SUMS], dict(max_output_tokens=40)
        assert chat.map(asked, **most, **QUIET) == [chat.oneshot(q, messages=chat.hist, **most) for q in asked]
        assert resp_text(chat('What is my name?')) == 'Your name is Zora.' and chat.cache_report().why != 'evicted'


@llama
def test_rows_whose_place_was_taken_are_taken_up_again(tiny_chat, in_turns):
    with Chat(tiny_chat, n_ctx=512, n_threads=1, **ASK) as chat:
        other = Chat(engine=chat.engine, **ASK)
        def tell(done, total): other.oneshot('word ' * 400, max_output_tokens=2)
        out = chat.map([*WORDS, *['Count from 1 to 50.'] * 3, *SUMS[:5]], max_output_tokens=60, progress=tell)
        assert list(map(resp_text, out[:5])) == [w.split()[-1] for w in WORDS]
        assert [resp_text(o) for o in out[8:]] == [resp_text(chat.oneshot(q)) for q in SUMS[:5]]
        assert out[5] == out[6] == out[7] == chat.oneshot('Count from 1 to 50.', max_output_tokens=60)


@llama
def test_more_rows_than_sequences(engine, chat):
    chats = [Chat(engine=engine, **ASK) for _ in range(engine.n_seq + 2)]
    for i, c in enumerate(chats): c(f'My name is Zora{i}.')
    assert [resp_text(o) for o in chat.map(WORDS, batch=64, **QUIET)] == [w.split()[-1] for w in WORDS]
    for c in chats:
        c('What is my name?')
        assert c.cache_report().why != 'evicted'


# --- engines without batches ------------------------------------------------------------------------------------------
def test_one_row_after_another_where_an_engine_has_no_batches():
    engine = ScriptedEngine(['<think>hm</think>one', EngineError('broken'), 'three'])
    chat, seen = Chat(engine=engine, sp='Be brief.'), []
    out = chat.map(['a', '', 'b', 'c'], progress=lambda *at: seen.append(at))
    assert out[0]['thinking'] == 'hm' and [str(o) for o in (out[0], out[2], out[3])] == ['one', 'broken', 'three']
    assert isinstance(out[1], BadRequest) and seen[-1] == (4, 4) and chat.hist == []
    assert all(p.count('<|im_start|>user') == 1 and 'Be brief.' in p for p in engine.prompts)


def test_cancel_where_an_engine_has_no_batches():
    chat = Chat(engine=ScriptedEngine(['one', 'two', 'three']))
    out = chat.map(['a', 'b', 'c'], progress=lambda *at: chat.cancel())
    assert str(out[0]) == 'one' and all('cancelled' in str(o) for o in out[1:])


def test_results_are_plain_data():
    assert json.loads(json.dumps(Chat(engine=ScriptedEngine(['one'])).map(['a'], **QUIET)))[0]['content'] == 'one'
