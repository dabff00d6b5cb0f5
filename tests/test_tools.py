"""A call and what becomes of it: arguments bound, mistakes told to the model, threads and loops, stopping, approval."""
import _thread
import asyncio
import contextvars
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rishi.errors import BadRequest
from rishi.tools import Toolbox, asks, check, decide, hitl_policy, interrupted, run, run_many
from rishi.types import ToolCall


def add(a: int, b: int = 1): return a + b
def call(*functions, **arguments): return run(ToolCall(functions[0].__name__, arguments), Toolbox(functions))
def raw(arguments, fn=add, **kw): return run(ToolCall(fn.__name__, arguments, **kw), Toolbox(fn))


# --- arguments ------------------------------------------------------------------------------------------------------
def test_coerced_in_the_call():
    seen = {}
    def f(a: int, /, b: 'float', *rest: int, c: bool = False, **more: Path):
        seen.update(a=a, b=b, rest=rest, c=c, more=more)
    assert call(f, b='2', a='1', rest=['3', 4], c='yes', where='x').error is None
    assert seen == {'a': 1, 'b': 2.0, 'rest': (3, 4), 'c': True, 'more': {'where': Path('x')}}
    def g(a=1, b=2, /, c=3, **more): return [a, b, c, more]
    assert call(g, b=5).content == '[1, 5, 3, {}]' and call(g, more=1).content == '[1, 2, 3, {"more": 1}]'


def test_defaults_are_the_functions_own():
    mark = object()
    def f(a: int = 0, b=mark): return b is mark
    assert call(f).content == call(f, a=1).content == 'True'


@pytest.mark.parametrize('arguments,text', [
    ({}, 'a is missing (an integer). add takes: a, b'), ({'a': 1, 'c': 2}, 'there is no argument c. add takes: a, b'),
    ({'c': 1}, 'a is missing (an integer); there is no argument c. add takes: a, b'),
    ({'a': 'x'}, 'a must be an integer, not "x"'), ({'a': 1, 'b': None}, 'b must be an integer, not null'),
    ([1, 2], 'the arguments of add must be an object with names, not [1, 2]'),
    ('"x"', 'the arguments of add must be an object with names, not "x"')])
def test_wrong_arguments(arguments, text):
    r = raw(arguments)
    assert (r.content, r.error) == (f'Error: {text}', text)


def test_arguments_as_text():
    def f(**more): return more
    for o in ('', ' ', 'null', None, '{}'): assert raw(o, f).content == '{}'
    assert raw('{"p": 1}', f).content == '{"p": 1}' and raw('{"a": 1, "b": 2}').content == '3'
    assert raw(r'{"p": "\d+"}', f).error.startswith('the arguments of f are not valid JSON')


def test_a_call_that_the_parser_refused():
    ran = []
    def f(): ran.append(1)
    r = raw({}, f, error='the arguments are not valid JSON: cut short')
    assert r.content == 'Error: the arguments are not valid JSON: cut short' and not ran


@pytest.mark.parametrize('name', ['add.__globals__', 'ad', 'Add', '', '__import__', 'a\nb', None, ['add'], 'x'*9999])
def test_unknown_tool(name):
    r = run(ToolCall(name, {'a': 1}), Toolbox(add))
    assert r.error.startswith('there is no tool') and 'there are: add' in r.error
    assert '\n' not in r.content and len(r.content) < 250
    assert ('Did you mean add?' in r.error) == (str(name) in ('ad', 'Add', "['add']"))


def test_check_runs_nothing():
    ran = []
    def f(a: int): ran.append(a)
    box = Toolbox(f)
    assert check(ToolCall('f', {'a': '1'}), box) is None
    for bad in (ToolCall('g'), ToolCall('f'), ToolCall('f', {'a': 'x'}), ToolCall('f', {'a': 1}, error='broken')):
        assert check(bad, box).error == run(bad, box).error
    assert ran == []
    assert 'no tools are available' in run(ToolCall('f'), Toolbox()).error


# --- what tools raise -----------------------------------------------------------------------------------------------
class Mute(Exception):
    def __str__(self): raise RuntimeError('no words')


@pytest.mark.parametrize('error,text', [
    (ValueError('bad\n  value'), 'ValueError: bad value'), (ValueError(), 'ValueError'),
    (KeyError('k'), "KeyError: 'k'"), (SystemExit(2), 'SystemExit: 2'), (Mute(), 'Mute'),
    (ExceptionGroup('several', [ValueError('a')]), None),
    (GeneratorExit(), 'GeneratorExit'), (asyncio.CancelledError(), 'CancelledError'), (StopIteration(3), None),
    (BadRequest('no'), 'BadRequest: no')], ids=lambda o: repr(o)[:20])
@pytest.mark.parametrize('is_async', [False, True])
def test_exceptions_are_results(error, text, is_async):
    def f(): raise error
    async def g():
        await asyncio.sleep(0)
        raise error
    r = call(g if is_async else f)
    assert r.content == f'Error: {r.error}' and '\n' not in r.content
    assert r.error == text or text is None and (type(error).__name__ in r.error or is_async)


@pytest.mark.parametrize('parallel', [False, True])
@pytest.mark.parametrize('is_async', [False, True])
def test_keyboard_interrupt_is_the_users(is_async, parallel):
    def f(): raise KeyboardInterrupt
    async def g(): raise KeyboardInterrupt
    calls = [ToolCall('add', {'a': 1}), ToolCall('g' if is_async else 'f')]
    results = run_many(calls, Toolbox([add, f, g]), parallel=parallel)
    assert next(results).content == '2'
    with pytest.raises(KeyboardInterrupt): next(results)
    async def after(): return 'alive'
    assert call(after).content == 'alive'


def test_printed_output_is_left_alone(capsys):
    def f(): print('seen')
    assert call(f).content == 'None' and capsys.readouterr().out == 'seen\n'


# --- async ----------------------------------------------------------------------------------------------------------
who = contextvars.ContextVar('who', default='nobody')


async def ask_who(n: int = 1):
    await asyncio.sleep(0)
    return f'{who.get()} {n}'


def test_async_tools():
    who.set('ann')
    def late(n: int): return ask_who(n)
    async def count():
        for i in range(3): yield i
    assert call(ask_who, n='2').content == 'ann 2' and call(late, n=3).content == 'ann 3'
    assert call(count).content == '[0, 1, 2]'


def test_async_inside_a_running_loop():
    async def main():
        who.set('bob')
        return call(ask_who).content
    with ThreadPoolExecutor() as apart:      # the browser tests leave a loop running in the main thread
        assert apart.submit(lambda: asyncio.run(main())).result() == 'bob 1'


def test_a_client_outlives_the_call():
    loops = []
    async def f(): loops.append(asyncio.get_running_loop())
    call(f), call(f)
    assert loops[0] is loops[1] and not loops[0].is_closed()


def test_async_tool_inside_an_async_tool():
    async def inner(): return await ask_who(7)
    async def outer(): return call(inner).content
    async def through_a_thread(): return await asyncio.to_thread(lambda: call(inner).content)
    who.set('ann')
    assert call(outer).content == call(through_a_thread).content == 'ann 7'


def test_no_noise_at_exit():
    code = ('from rishi.tools import *; from rishi.types import ToolCall\n'
            'import asyncio, threading\n'
            'async def f(): return 1\n'
            'async def outer(): return run(ToolCall("f"), Toolbox(f)).content\n'
            'async def hang(): await asyncio.sleep(99)\n'
            'box = Toolbox([f, outer, hang]); stop = threading.Event(); stop.set()\n'
            'print(run(ToolCall("outer"), box).content, run(ToolCall("hang"), box, stop=stop).error)\n')
    p = subprocess.run([sys.executable, '-W', 'error', '-X', 'dev', '-c', code], capture_output=True, text=True,
                       cwd=Path(__file__).parents[1])
    assert (p.returncode, p.stdout, p.stderr) == (0, '1 interrupted while it ran\n', '')


# --- several, and stopping ------------------------------------------------------------------------------------------
def calls(*names): return [ToolCall(n, {}, id=str(i)) for i, n in enumerate(names)]


def test_parallel_is_side_by_side_and_in_order():
    meet = threading.Barrier(3, timeout=20)
    def f(): return meet.wait() >= 0
    async def g(): return await asyncio.to_thread(lambda: meet.wait() >= 0)
    got = list(run_many(calls('f', 'g', 'f'), Toolbox([f, g]), parallel=True))
    assert [(r.call.id, r.content) for r in got] == [('0', 'True'), ('1', 'True'), ('2', 'True')]


@pytest.mark.parametrize('max_parallel', [1, 2, None])
def test_parallel_gives_what_sequence_gives(max_parallel):
    who.set('eve')
    def bad(): raise ValueError('bad')
    box, todo = Toolbox([add, ask_who, bad]), calls('bad', 'ask_who', 'nope', 'add', 'bad')
    plain = [(r.call.id, r.content, r.error) for r in run_many(todo, box)]
    side = [(r.call.id, r.content, r.error) for r in run_many(todo, box, parallel=True, max_parallel=max_parallel)]
    assert plain == side and plain[1][1] == 'eve 1' and list(run_many([], box, parallel=True)) == []


def test_max_parallel():
    now, most, lock = [], [], threading.Lock()
    def f():
        with lock:
            now.append(1)
            most.append(len(now))
        threading.Event().wait(.01)
        with lock: now.pop()
    assert len(list(run_many(calls(*'ffffff'), Toolbox(f), parallel=True, max_parallel=2))) == 6 and max(most) <= 2


def test_stop_between_calls():
    stop = threading.Event()
    def f(): stop.set()
    got = list(run_many(calls('f', 'f', 'f'), Toolbox(f), stop=stop))
    assert [r.error for r in got] == [None, *['interrupted before it ran']*2]


def test_stop_while_tools_run():
    stop, free, begun = threading.Event(), threading.Event(), threading.Semaphore(0)
    def f():
        begun.release()
        free.wait(20)
    def halt():
        for _ in range(2): begun.acquire()
        stop.set()
    threading.Thread(target=halt).start()
    got = [r.error for r in run_many(calls('f', 'f', 'f'), Toolbox(f), parallel=True, max_parallel=2, stop=stop)]
    free.set()
    assert got == ['interrupted while it ran']*2 + ['interrupted before it ran']
    assert [interrupted(calls('f')[0], running=o).error for o in (True, False)] == got[1:]


def test_stop_an_async_tool():
    stop, ended = threading.Event(), threading.Event()
    async def f():
        stop.set()
        try: await asyncio.sleep(60)
        finally: ended.set()
    r = run(ToolCall('f'), Toolbox(f), stop=stop)
    assert r.content == 'Error: interrupted while it ran' and ended.wait(20)


@pytest.mark.parametrize('is_async', [False, True])
def test_interrupt_while_waiting(is_async):
    free, ended = threading.Event(), threading.Event()
    def f():
        _thread.interrupt_main()
        free.wait(60)
    async def g():
        _thread.interrupt_main()
        try: await asyncio.sleep(60)
        finally: ended.set()
    box, name = Toolbox([f, g]), 'g' if is_async else 'f'
    with pytest.raises(KeyboardInterrupt): list(run_many(calls(name, name), box, parallel=not is_async))
    free.set()
    assert not is_async or ended.wait(20)


def test_a_coroutine_that_blocks_is_left_behind():
    stop, free = threading.Event(), threading.Event()
    async def f():
        stop.set()
        free.wait(60)
    assert run(ToolCall('f'), Toolbox(f), stop=stop).error == 'interrupted while it ran'
    assert call(ask_who).content.endswith(' 1')
    free.set()


def test_given_up_half_way():
    ran, free = [], threading.Event()
    def f():
        ran.append(1)
        free.wait(20)
    def g(): return 'g'
    results = run_many(calls('g', 'f', 'f', 'f'), Toolbox([f, g]), parallel=True, max_parallel=1)
    assert next(results).content == 'g'
    results.close()
    free.set()
    assert len(ran) <= 1


# --- approval -------------------------------------------------------------------------------------------------------
ONE = ToolCall('rm', {'path': 'x'})


@pytest.mark.parametrize('answer,text', [
    (True, None), (False, 'The user denied this tool call.'), (None, 'The user denied this tool call.'),
    ('', 'The user denied this tool call.'), ('not\n today', 'The user denied this call: not today')])
@pytest.mark.parametrize('is_async', [False, True])
def test_approve(answer, text, is_async):
    seen = []
    def plain(c): return seen.append(c) or answer
    async def waits(c): return plain(c)
    r = decide(ONE, waits if is_async else plain)
    assert seen == [ONE] and (r and (r.content, r.error, r.call)) == (text and (text, text, ONE))


def test_approve_that_fails_denies():
    def broken(c): raise ValueError('no\nscreen')
    def leave(c): raise SystemExit
    def stops(c): raise KeyboardInterrupt
    r = decide(ONE, broken)
    assert r.content == 'The user denied this call: the approval failed'
    assert r.error == 'the approval failed: ValueError: no screen'
    assert decide(ONE, lambda: True).error.startswith('the approval failed: TypeError') and decide(ONE, leave).error
    with pytest.raises(KeyboardInterrupt): decide(ONE, stops)
    assert decide(ONE, None) is None and not asks(ONE, None) and asks(ONE, broken)


def test_stop_while_waiting_for_approval():
    stop = threading.Event()
    async def slow(c):
        stop.set()
        await asyncio.sleep(60)
    assert decide(ONE, slow, stop).error == 'interrupted before it ran'


def test_policy():
    asked = []
    def ask(c): return asked.append(c.name) or 'because'
    p = hitl_policy({'add': 'approved', 'rm': 'dont_run', 'mail': 'check'}, ask)
    made = {n: decide(ToolCall(n), p) for n in ('add', 'rm', 'mail', 'other')}
    assert made['add'] is None and made['rm'].content == 'The user denied this call: rm is not allowed here'
    assert made['mail'].content == made['other'].content == 'The user denied this call: because'
    assert asked == ['mail', 'other'] and [asks(ToolCall(n), p) for n in made] == [False, False, True, True]
    assert decide(ToolCall('x'), hitl_policy({}, default='approved')) is None
    assert decide(ToolCall('x'), hitl_policy({}, default='dont_run')).error
    async def later(c): return True
    assert decide(ToolCall('x'), hitl_policy({}, later)) is None


@pytest.mark.parametrize('answer,ok', [('y', True), (' YES ', True), ('n', False), ('', False), ('too big', False)])
def test_policy_asks_on_the_console(monkeypatch, answer, ok):
    asked = []
    monkeypatch.setattr('builtins.input', lambda text: asked.append(text) or answer)
    r = decide(ONE, hitl_policy({'rm': 'check'}))
    assert (r is None) is ok and asked == ['Run rm({"path": "x"})? y, n, or why not: ']
    assert ok or ('too big' in r.content) == (answer == 'too big')


@pytest.mark.parametrize('bad', [dict(policy={'rm': 'deny'}), dict(policy={'rm': True}), dict(policy={}, default='no'),
                                 dict(policy=['rm']), dict(policy={}, ask='me'), dict(policy={'rm': ['check']})])
def test_bad_policies(bad):
    with pytest.raises(BadRequest) as e: hitl_policy(**bad)
    assert '\n' not in str(e.value)
