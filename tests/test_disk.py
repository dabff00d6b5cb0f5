"save_cache and load_cache: a conversation goes on in another process for its own text, and no file can break a chat."
import json
import os
import subprocess
import sys
import textwrap

import pytest
import untrimmable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rishi import BadRequest, Chat, EngineBusy, EngineError, resp_text
from rishi.disk import read, write
from rishi.encode import encode
from rishi.llama.gguf import fingerprint
from rishi.testing import ScriptedEngine

llama = pytest.mark.needs('llama')
ASK = dict(temp=0, max_output_tokens=24)


@pytest.fixture(params=['tiny', 'small'])
def engine(request):
    eng = request.getfixturevalue(request.param)
    eng.forget()
    return eng


def talk(engine, **kw):
    chat = Chat(engine=engine, **ASK | kw)
    chat('My name is Zora.')
    chat('What is my name?')
    return chat


def child(code, *argv):
    "What `code` prints, in a new process."
    p = subprocess.run([sys.executable, '-W', 'error', '-c', textwrap.dedent(code), *map(str, argv)],
                       capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


# --- there and back -------------------------------------------------------------------------------------------------
GO_ON = '''
    import json, sys
    from rishi import Chat
    path, file, n_ctx = sys.argv[1:]
    with Chat(model_path=path, n_threads=1, n_ctx=int(n_ctx), temp=0, max_output_tokens=24) as chat:
        before = chat.cached_tokens
        chat.load_cache(file)
        out = dict(before=before, cached=chat.cached_tokens, hist=list(chat.hist), think=chat.think, sp=chat.sp)
        r, report = chat('And what is yours?'), chat.cache_report()
        print(json.dumps(out | dict(answer=str(r), evaluated=report.evaluated, why=report.why)))
'''


@llama
def test_a_new_process_evaluates_only_the_new_text(engine, tmp_path):
    chat, file = talk(engine, sp='Be brief.', think=False), tmp_path/'chat.kv'
    chat.save_cache(file)
    hist, cached, known = list(chat.hist), chat.cached_tokens, chat._known
    ids = encode(chat.render('And what is yours?'), known, engine).ids
    new = len(ids) - sum(a == b for a, b in zip(ids, engine.held))
    answer = resp_text(chat('And what is yours?'))
    got = child(GO_ON, engine.path, file, engine.n_ctx)
    assert got['before'] == 0 and got['cached'] == cached > 20
    assert got['hist'] == hist and got['sp'] == 'Be brief.' and got['think'] is False
    assert got['answer'] == answer and got['evaluated'] == new == chat.cache_report().evaluated
    assert got['why'] == chat.cache_report().why


@llama
def test_loading_replaces_the_history_and_keeps_the_old_one_as_a_branch(small, tmp_path):
    small.forget()
    chat, other, file = talk(small), Chat(engine=small, **ASK), tmp_path/'chat.kv'
    other('Name three fruits that are red.')
    was = list(other.hist)
    chat.save_cache(file)
    chat.close()
    other.load_cache(file)
    assert other.hist == chat.hist and other.cached_tokens == len(small.held) > 20
    assert other('Thanks.') and other.cache_report().why == 'extends the conversation'
    other.hist[:] = was
    assert other.preflight('And blue?').evaluated < 20


@llama
def test_what_the_cache_already_holds_is_not_read_twice(tiny, tmp_path, monkeypatch):
    tiny.forget()
    chat, other = talk(tiny), Chat(engine=tiny, **ASK)
    chat.save_cache(tmp_path/'chat.kv')
    monkeypatch.setattr(tiny, '_restore', None)
    other.load_cache(tmp_path/'chat.kv')
    assert other.cached_tokens == chat.cached_tokens == tiny.cells_used


@llama
def test_a_load_makes_room_in_a_full_pool(tiny_chat, tmp_path):
    with Chat(tiny_chat, n_ctx=512, n_threads=1, **ASK) as chat:
        chat('word ' * 130)
        chat.save_cache(tmp_path/'chat.kv')
        chat.engine.forget()
        others = [Chat(engine=chat.engine, **ASK) for _ in range(3)]
        for o in others: o('other ' * 60, max_output_tokens=4)
        held = chat.token_count
        chat.load_cache(tmp_path/'chat.kv')
        assert held - 1 <= chat.cached_tokens <= held
        assert resp_text(others[0]('Reply with exactly: pong')) == 'pong'


@llama
def test_a_chat_without_turns_can_be_saved(tiny, tmp_path):
    empty = Chat(engine=tiny, sp='Be brief.', messages=[{'role': 'user', 'content': 'Hi'}], **ASK)
    empty.save_cache(tmp_path/'empty.kv')
    other = Chat(engine=tiny, **ASK)
    other.load_cache(tmp_path/'empty.kv')
    assert other.hist == empty.hist and other.sp == 'Be brief.' and other.cached_tokens == 0


@llama
def test_a_saved_chat_remembers_what_thinks_and_calls(tiny, tmp_path):
    def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b
    chat = Chat(engine=tiny, tools=[add], temp=0, think=True)
    chat('What is 5 + 7?')
    chat.save_cache(tmp_path/'chat.kv')
    other = Chat(engine=tiny, tools=[add], temp=0)
    other.load_cache(tmp_path/'chat.kv')
    assert other.hist == chat.hist and other.think is True
    assert other.preflight('Thanks.') == chat.preflight('Thanks.')
    other.think = False
    other('Thanks.')
    assert other.cache_report().steps[0].why == 'settings changed'


@llama
@pytest.mark.parametrize('kind', untrimmable.MODELS)
def test_models_that_cannot_trim_are_saved_with_their_snapshots(kind, tmp_path):
    from rishi.core import finish, load_engine
    path, file = tmp_path/f'{kind}.gguf', tmp_path/'chat.kv'
    path.write_bytes(untrimmable.MODELS[kind]())
    first, second = (finish(load_engine(path, n_threads=1, n_ctx=1024, eng_kw=dict(swa_full=False))) for _ in range(2))
    chat, other = Chat(engine=first, **ASK), Chat(engine=second, **ASK)
    for msg in ('tell me a tale of a fox and a crow. ' * 4, 'and then?'): chat(msg)
    chat.save_cache(file)
    other.load_cache(file)
    for c in (chat, other): c('go on')
    assert other.hist[-1]['content'] == chat.hist[-1]['content']
    assert other.cache_report().evaluated == chat.cache_report().evaluated < 60
    other.load_cache(file)
    del other.hist[2:]
    other('no, the fox')
    assert other.cache_report().cached > 100
    for e in (first, second): e.close()


# --- refused --------------------------------------------------------------------------------------------------------
def refused(chat, file, why):
    "Loading raises one line that holds `why`, and the chat is as it was."
    was = list(chat.hist), chat.sp, chat.cached_tokens, chat._known
    with pytest.raises(BadRequest, match=why) as e: chat.load_cache(file)
    assert '\n' not in str(e.value) and was == (list(chat.hist), chat.sp, chat.cached_tokens, chat._known)


@pytest.fixture
def saved(tiny, tmp_path):
    tiny.forget()
    chat, file = talk(tiny), tmp_path/'chat.kv'
    chat.save_cache(file)
    return chat, file


def rewritten(file, **made):
    "The file as one that was made otherwise."
    head = json.loads(file.read_bytes()[52:].partition(b'"made": ')[2].partition(b'}')[0] + b'}')
    head, states = read(file, head)
    write(file, head | dict(made=head['made'] | made), states)


@llama
@pytest.mark.parametrize('made,why', [
    (dict(model='f00'), 'made by Tiny Chat · Q8_0 with another model'), (dict(template='f00'), 'another chat template'),
    (dict(library='llama-cpp-python 9'), 'with library llama-cpp-python 9, and here that is llama-cpp-python'),
    (dict(type_k=8), 'with type_k 8, and here that is 1'), (dict(colour=1), 'with colour 1, and here that is None')])
def test_what_was_made_otherwise_is_refused(saved, made, why):
    chat, file = saved
    rewritten(file, **made)
    refused(chat, file, why)
    assert resp_text(chat('Reply with exactly: pong')) == 'pong'


@llama
def test_another_model_is_refused(saved, small):
    chat = Chat(engine=small, **ASK)
    refused(chat, saved[1], 'another model')
    assert resp_text(chat('Hello')) and chat.cache_report().why == 'first turn'


@llama
def test_another_setting_of_the_cache_is_refused(saved, tiny_chat):
    with Chat(tiny_chat, n_ctx=512, n_threads=1, eng_kw=dict(rope_freq_base=5e4), **ASK) as chat:
        refused(chat, saved[1], 'rope_freq_base')
        assert resp_text(chat('Reply with exactly: pong'))


@llama
def test_more_than_the_window_holds_is_refused(tiny, tiny_chat, tmp_path):
    tiny.forget()
    big, file = Chat(engine=tiny, **ASK), tmp_path/'chat.kv'
    big('word ' * 300)
    big.save_cache(file)
    with Chat(tiny_chat, n_ctx=256, n_threads=1, **ASK) as chat:
        refused(chat, file, r'holds \d+ tokens, and the window')


def cut(n): return lambda b: b[:n]
def with_format(n): return lambda b: b[:8] + n.to_bytes(4, 'little') + b[12:]


@llama
@pytest.mark.parametrize('damage,why', [
    (cut(0), 'no cache that'), (cut(5), 'no cache that'), (cut(20), 'cut short'), (cut(300), 'cut short or damaged'),
    (cut(-1), 'damaged, with'), (lambda b: b + b'x', 'damaged, with'), (lambda b: b'GGUF' + b, 'no cache that'),
    (with_format(2), 'has format 2, and this version of rishi reads 1'), (lambda b: b'{"rishi": 1}', 'no cache that'),
    (lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:], 'its state is damaged')])
def test_damage_is_told(saved, damage, why):
    chat, file = saved
    file.write_bytes(damage(file.read_bytes()))
    refused(chat, file, why)


@llama
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_flipped_bit_gets_through(saved, data):
    chat, file = saved
    was, n = file.read_bytes(), file.stat().st_size
    at = data.draw(st.one_of(st.integers(0, 80), st.integers(0, n - 1)))
    file.write_bytes(was[:at] + bytes([was[at] ^ 1 << data.draw(st.integers(0, 7))]) + was[at + 1:])
    try: refused(chat, file, 'cannot be used')
    finally: file.write_bytes(was)


@llama
def test_a_state_that_the_library_refuses_leaves_the_chat(saved, tiny):
    chat, file = saved
    head, states = read(file, tiny.identity())
    n = len(head['cells'])
    write(file, head, {n: states[n][:-8]})
    other = talk(tiny, sp='Be brief.')
    hist = list(other.hist)
    tiny.forget()
    with pytest.raises(EngineError, match='does not take the saved state'): other.load_cache(file)
    assert other.hist == hist and resp_text(other('Reply with exactly: pong'))
    assert not any(s.seq is None for s in tiny.slots)


@llama
def test_a_missing_file(saved, tmp_path):
    refused(saved[0], tmp_path/'none.kv', 'No such file')
    refused(saved[0], tmp_path, 'Is a directory|Permission denied')


# --- writing --------------------------------------------------------------------------------------------------------
@llama
def test_what_cannot_be_written_is_told_and_leaves_nothing(saved, tmp_path):
    chat, file = saved
    old = file.read_bytes()
    with pytest.raises(BadRequest, match='No such file'): chat.save_cache(tmp_path/'nowhere'/'chat.kv')
    (tmp_path/'folder').mkdir()
    with pytest.raises(BadRequest, match='cannot be saved'): chat.save_cache(tmp_path/'folder')
    chat.hist[0]['content'] = {1, 2}
    with pytest.raises(BadRequest, match='not JSON serializable'): chat.save_cache(file)
    assert sorted(os.listdir(tmp_path)) == ['chat.kv', 'folder'] and file.read_bytes() == old


@llama
@pytest.mark.skipif(sys.platform == 'win32', reason='limits of file sizes are of POSIX')
def test_a_full_disk_leaves_the_old_file(tiny, saved):
    chat, file = saved
    got = child('''
        import json, resource, sys
        from pathlib import Path
        from rishi import BadRequest, Chat
        with Chat(model_path=sys.argv[1], n_threads=1, n_ctx=512, temp=0) as chat:
            chat('My name is Zora.')
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
            try: chat.save_cache(sys.argv[2])
            except BadRequest as e: print(json.dumps(str(e)))
        ''', tiny.path, file)
    assert 'cannot be saved' in got and 'too large' in got and os.listdir(file.parent) == ['chat.kv']
    chat.load_cache(file)


@llama
def test_saving_again_replaces_the_file(saved):
    chat, file = saved
    chat('Reply with exactly: pong')
    chat.save_cache(file)
    chat.reset()
    chat.load_cache(file)
    assert len(chat.hist) == 6


def test_not_in_the_middle_of_a_turn(tmp_path):
    chat = Chat(engine=ScriptedEngine(['one two three']))
    events = chat('hi', stream='events')
    next(events)
    with pytest.raises(EngineBusy): chat.save_cache(tmp_path/'chat.kv')
    with pytest.raises(EngineBusy): chat.load_cache(tmp_path/'chat.kv')
    events.close()


def test_an_engine_without_a_state_says_so(tmp_path):
    chat = Chat(engine=ScriptedEngine(['one']))
    chat('hi')
    with pytest.raises(EngineError, match='no state that could be saved; `chat.save`'): chat.save_cache(tmp_path/'a')
    assert not os.listdir(tmp_path) and len(chat.hist) == 2


@llama
def test_a_closed_engine_says_so(tiny_chat, tmp_path):
    chat = Chat(tiny_chat, n_threads=1, n_ctx=512)
    chat.close()
    with pytest.raises(EngineError, match='closed'): chat.save_cache(tmp_path/'a')


# --- which model it is ----------------------------------------------------------------------------------------------
def test_a_model_is_known_by_its_header_its_weights_and_its_size(tiny_chat, tmp_path):
    data, copy = bytearray(tiny_chat.read_bytes()), tmp_path/'renamed.gguf'
    def of(b):
        copy.write_bytes(b)
        return fingerprint(copy)
    first = fingerprint(tiny_chat)
    assert of(data) == first
    data[-1] ^= 1
    assert len({first, of(data), of(data + b'x')}) == 3


def test_far_weights_are_sampled(tmp_path):
    file = tmp_path/'far.gguf'
    with file.open('wb') as f: f.truncate(64 << 20)
    first = fingerprint(file)
    with file.open('r+b') as f:
        f.seek(40 << 20)
        f.write(os.urandom(2 << 20))
    assert fingerprint(file) != first


@llama
def test_preserve_cache_is_taken_and_changes_nothing(tiny, tiny_chat):
    plain, kept = Chat(engine=tiny, **ASK), Chat(engine=tiny, preserve_cache=True, **ASK)
    for c in (plain, kept):
        tiny.forget()
        c('My name is Zora.')
        c.oneshot('What is 5 + 7?')
        assert resp_text(c('What is my name?')) == 'Your name is Zora.'
    assert plain.cache_report().evaluated == kept.cache_report().evaluated
    with Chat(tiny_chat, preserve_cache=True, n_ctx=256, n_threads=1) as chat: assert chat.engine.n_ctx == 256
    with pytest.raises(BadRequest, match='n_ctx'): Chat(engine=tiny, preserve_cache=True, n_ctx=256)
