"What only the real library can prove: crashes that must not happen, exact accounts, native logs."
import subprocess
import sys
import threading
import time

import pytest

from rishi import BadRequest, Chat, EngineClosed, EngineError, ModelNotFound, resp_text
from rishi.core import finish, get_runtime, load_engine, resolve_runtime
from rishi.llama import LlamaChat

pytestmark = pytest.mark.needs('llama')


@pytest.fixture
def chat(tiny): return Chat(engine=tiny, temp=0)


@pytest.fixture(scope='module')
def smol_chat(smol):
    system = 'You are a helpful assistant.'
    with Chat(smol, temp=0, n_threads=1, n_ctx=1024, sp=system, max_output_tokens=24) as c: yield c


def python(code, *args, **kw):
    return subprocess.run([sys.executable, '-c', code, *map(str, args)], capture_output=True, text=True, timeout=120,
                          **kw)


# --- which runtime ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('name', ['Qwen/Qwen3-0.6B-GGUF', '/models/x.gguf', 'llama/org/thing', None,
                                  'unsloth/gemma-4-E2B-it-GGUF:Q4_K_M', 'org/repo-GGUF/sub/file.gguf'])
def test_names_that_mean_llama(name):
    assert resolve_runtime(name) == 'llama'
    assert type(Chat.__new__(Chat, name)) is LlamaChat is get_runtime('llama')


@pytest.mark.parametrize('name,kw', [('org/model', {}), ('x', {'runtime': 'ollama'}), ('model.bin', {})])
def test_a_name_that_says_nothing_lists_the_choices(name, kw):
    with pytest.raises(BadRequest, match='llama'): Chat(name, **kw)


def test_the_seed_checks():
    assert LlamaChat._runtime == 'llama'
    assert LlamaChat._think_sp('Be terse.', False) == 'Be terse.\n/no_think'
    assert LlamaChat._think_sp('', True) == '/think' and LlamaChat._think_sp('Be terse.', None) == 'Be terse.'


def test_the_eval_of_the_engine_sees_only_the_new_tail(smol_chat):
    "The seed's own check: instrument `engine.eval`."
    smol_chat.reset()
    seen, original = [], smol_chat.engine.eval
    smol_chat.engine.eval = lambda tokens: (seen.append(len(tokens)), original(tokens))[1]
    try:
        smol_chat('cache verification context ' * 20 + '\nReply with exactly: stored')
        before = smol_chat.engine.n_tokens
        seen.clear()
        smol_chat('What exact word did I ask you to reply with?')
        assert seen[0] < before and smol_chat.use.cached_tokens == before
    finally: del smol_chat.engine.eval


# --- accounts ---------------------------------------------------------------------------------------------------------
def test_turn_two_evaluates_exactly_the_new_text(smol_chat):
    smol_chat.reset()
    assert 'Paris' in resp_text(smol_chat('Name the capital of France.'))
    gap = '<|im_end|>\n<|im_start|>user\nAnd of Germany?<|im_end|>\n<|im_start|>assistant\n'
    assert 'Berlin' in resp_text(smol_chat('And of Germany?'))
    report = smol_chat.cache_report()
    assert report.evaluated == smol_chat.count_tokens(gap) and report.why == 'extends the conversation'


def test_an_answer_cut_by_the_budget_is_extended_too(smol_chat):
    smol_chat.reset()
    smol_chat('Tell me about the sea.', max_output_tokens=5)
    held = smol_chat.engine.n_tokens
    smol_chat('Go on.', max_output_tokens=5)
    assert smol_chat.cache_report().cached == held


def test_warm_equals_cold(smol_chat):
    smol_chat.reset()
    smol_chat('Name a fruit.')
    warm = resp_text(smol_chat('Name another.'))
    hist = smol_chat.hist[:3]
    smol_chat.reset()
    smol_chat.engine.forget()
    smol_chat.hist[:] = hist
    assert resp_text(smol_chat()) == warm and smol_chat.cache_report().cached == 0


def test_a_cache_that_was_emptied_is_paid_for_again_and_the_report_says_so(tiny):
    chat = Chat(engine=tiny, temp=0)
    chat('My name is Zora.')
    tiny.forget()
    assert resp_text(chat('What is my name?')) == 'Your name is Zora.'
    assert chat.cache_report().why == 'evicted' and chat.cache_report().lost


def test_sampling_is_seeded_and_checked(tiny):
    def ask(seed):
        tiny.forget()                    # warm and cold round apart, and a draw may fall across a border
        chat = Chat(engine=tiny, temp=2., top_k=4, top_p=1., min_p=0., seed=seed, max_output_tokens=12, think=False)
        return resp_text(chat('Tell me a story about Ana.'))
    first = ask(1)
    assert ask(1) == first and {ask(seed) for seed in range(2, 7)} - {first}
    assert resp_text(Chat(engine=tiny, temp=0, comp_kw={'repeat_penalty': 1.3})('Reply with exactly: pong'))


def test_the_window_is_read_back_and_capped(tiny_chat):
    for asked, got in ((64, 256), (100_000, 4096)):
        e = finish(load_engine(tiny_chat, n_ctx=asked, n_threads=1))
        assert e.n_ctx == got and e.info()['window'] == got
        e.close()


def test_load_tells_how_far_it_is(tiny_chat):
    def load(): engines.append((yield from load_engine(tiny_chat, n_threads=1)))
    engines = []
    seen = list(load())
    engines[0].close()
    assert {p.stage for p in seen} == {'load'} and seen[-1].done <= seen[-1].total == 1000
    assert [p.done for p in seen] == sorted(p.done for p in seen)


def test_loading_can_be_stopped(tiny_chat):
    stop = threading.Event()
    stop.set()
    with pytest.raises(EngineError, match='stopped'): finish(load_engine(tiny_chat, stop=stop))


@pytest.mark.parametrize('kw,word', [(dict(n_ctx=0), 'n_ctx'), (dict(n_ctx='x'), 'n_ctx'), (dict(n_ctxx=1), 'n_ctx'),
                                     (dict(eng_kw={'n_bach': 1}), 'n_batch'),
                                     (dict(eng_kw={'n_batch': 'x'}), 'wrong kind')])
def test_a_wrong_engine_option_is_told_in_one_line(tiny_chat, kw, word):
    with pytest.raises(BadRequest, match=word) as e: Chat(tiny_chat, **kw)
    assert '\n' not in str(e.value)


# --- crashes that must not happen -------------------------------------------------------------------------------------
def test_two_threads_on_one_engine(tiny):
    "CASES 17: plain llama.cpp aborts the process here."
    alone = resp_text(Chat(engine=tiny, temp=0)('Count from 1 to 50.'))
    chats = [Chat(engine=tiny, temp=0) for _ in range(4)]
    answers = [None] * 4
    def ask(i): answers[i] = resp_text(chats[i]('Count from 1 to 50.'))
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert answers == [alone] * 4


def test_closing_twice_and_asking_after_it(tiny_chat):
    "CASES 18 (a), (b): plain llama.cpp crashes in the second."
    c = Chat(tiny_chat, n_threads=1)
    c.close()
    c.close()
    for use in (lambda: c('hi'), lambda: c.count_tokens('hi'), lambda: list(c('hi', stream=True))):
        with pytest.raises(EngineClosed, match='closed'): use()


def test_closing_in_the_middle_of_an_answer(tiny_chat):
    c = Chat(tiny_chat, n_threads=1, temp=0)
    stream = c('Count from 1 to 50.', stream='events')
    for _ in range(4): next(stream)
    c.close()
    *_, done = stream
    assert done.finish_reason in ('cancelled', 'stop')


@pytest.mark.parametrize('name,content', [('missing.gguf', None), ('page.gguf', b'<!doctype html>'),
                                          ('empty.gguf', b'')])
def test_a_missing_or_wrong_file_is_one_clean_error(tmp_path, name, content):
    "CASES 18 (c)."
    if content is not None: (tmp_path/name).write_bytes(content)
    with pytest.raises(ModelNotFound) as e: Chat(tmp_path/name)
    assert '\n' not in str(e.value) and name in str(e.value)


def test_a_gguf_file_of_any_name_is_known_by_its_content(tmp_path, tiny_chat):
    (tmp_path/'blob').write_bytes(tiny_chat.read_bytes()[:64])
    assert resolve_runtime(tmp_path/'blob') == 'llama'


@pytest.mark.parametrize('end', ['', 'c.close()', 'next(s); next(s)', 'del c, s; import gc; gc.collect()',
                                 'raise SystemExit(0)'])
def test_a_script_may_end_anywhere(tiny_chat, end):
    "CASES 18 (d): no word, exit code 0, also in the middle of an answer."
    p = python(f'import sys; from rishi import Chat\nc = Chat(sys.argv[1], n_threads=1)\n'
               f's = c("Count from 1 to 50.", stream="events"); next(s)\n{end}', tiny_chat)
    assert (p.returncode, p.stdout, p.stderr) == (0, '', '')


def test_an_engine_that_nobody_holds_is_freed(tiny_chat):
    p = python('import sys, gc, threading; from rishi import Chat\n'
               'for _ in range(3): Chat(sys.argv[1], n_threads=1)("Reply with exactly: pong")\n'
               'gc.collect()\n'
               'for t in threading.enumerate(): t.name.startswith("rishi-") and t.join(60)\n'
               'print(threading.active_count())', tiny_chat)
    assert (p.returncode, p.stdout) == (0, '1\n'), p.stderr


ODD = 'type("Odd", (), {"write": lambda s, t: None, "flush": lambda s: None})()'


@pytest.mark.parametrize('stdout', ['io.StringIO()', ODD])
def test_streams_without_a_file_number_and_no_native_log(tiny_chat, stdout):
    "CASES 21."
    p = python(f'import sys, io; from rishi import Chat\nsys.stdout = sys.stderr = {stdout}\n'
               'r = Chat(sys.argv[1], n_threads=1, temp=0)("Reply with exactly: pong")\n'
               'assert r["content"] == "pong", r', tiny_chat)
    assert (p.returncode, p.stdout, p.stderr) == (0, '', '')


def test_no_native_log_reaches_the_terminal(tiny_chat, smol):
    p = python('import sys; from rishi import Chat\n'
               'for m in sys.argv[1:]: Chat(m, n_threads=1, n_ctx=512)("hi", max_output_tokens=2)', tiny_chat, smol)
    assert (p.returncode, p.stdout, p.stderr) == (0, '', '')


# --- stop and interrupt -----------------------------------------------------------------------------------------------
def test_prefill_stops_at_once_and_keeps_what_it_read(smol_chat, monkeypatch):
    smol_chat.reset()
    plain = smol_chat.engine.eval
    monkeypatch.setattr(smol_chat.engine, 'eval', lambda tokens: (plain(tokens), time.sleep(.3)))
    events = smol_chat('The sky is blue. ' * 150, stream='events')
    for e in events:
        if e.done > e.cached: break
    smol_chat.cancel()
    *_, done = events
    assert done.finish_reason == 'cancelled' and smol_chat.hist == []
    assert smol_chat.engine.n_tokens >= 256 - 1, 'finished batches stay'
    assert 'Paris' in resp_text(smol_chat('Name the capital of France.'))


def test_sigint_in_prefill(smol):
    "CASES 15 (b): the prompt comes back, the message is dropped, the next turn works."
    p = python('''
import os, signal, sys, threading
from rishi import Chat
c = Chat(sys.argv[1], temp=0, n_threads=1, sp='You are a helpful assistant.', max_output_tokens=24)
threading.Timer(.4, os.kill, (os.getpid(), signal.SIGINT)).start()
try: c('The sky is blue and the grass is green. ' * 600)
except KeyboardInterrupt: print('interrupted', len(c.hist))
print(len(str(c('Name a fruit.'))))''', smol)
    first, answer = p.stdout.split('\n')[:2]
    assert first == 'interrupted 0' and int(answer) > 1, p.stderr


def test_sigint_in_an_answer_keeps_it(tiny_chat):
    "CASES 15: an interrupt of the blocking call."
    p = python('''
import os, signal, sys
from rishi import Chat
c = Chat(sys.argv[1], temp=0, n_threads=1)
piece, n = c.engine.piece, [0]
def slow(i):
    n[0] += 1
    if n[0] == 60: os.kill(os.getpid(), signal.SIGINT)
    return piece(i)
c.engine.piece = slow
try: c('Count from 1 to 50.')
except KeyboardInterrupt: pass
print(c.hist[-1]['meta']['finish_reason'], c.hist[-1]['content'][:7], '|', c('Reply with exactly: pong'))''', tiny_chat)
    assert p.stdout == 'cancelled 1, 2, 3 | pong\n', p.stderr
