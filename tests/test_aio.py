"`AsyncChat`, and both kinds of chat inside a running event loop."
import asyncio
import copy
import gc
import threading
import time
from json import dumps

import nbformat
import pytest
from nbclient import NotebookClient

from rishi import AsyncChat, BadRequest, Chat, EngineError, resp_text
from rishi.history import checked
from rishi.testing import ScriptedEngine
from rishi.types import Done, TextDelta, ToolResult

COUNT = ', '.join(map(str, range(1, 51)))
ASK = 'Count from 1 to 50.'


def call(name, **args): return f'<tool_call>\n{dumps({"name": name, "arguments": args})}\n</tool_call>'


@pytest.fixture(params=['scripted', pytest.param('llama', marks=pytest.mark.needs('llama'))])
def make(request):
    "An AsyncChat that says the replies; the real model says its own, to prompts that make it say the same."
    def scripted(*replies, delay=0, **kw): return AsyncChat(engine=ScriptedEngine(replies, delay=delay), **kw)
    if request.param == 'scripted': return scripted
    tiny, patch = request.getfixturevalue('tiny'), request.getfixturevalue('monkeypatch')
    def real(*replies, delay=0, **kw):
        plain = tiny.eval
        if delay: patch.setattr(tiny, 'eval', lambda tokens: (time.sleep(delay), plain(tokens)))
        return AsyncChat(engine=tiny, **{'temp': 0, 'think': False} | kw)
    return real


def script(*replies, delay=0, **kw): return AsyncChat(engine=ScriptedEngine(replies, delay=delay), **kw)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition(): await asyncio.sleep(.005)


def idle(chat): return chat._turn is None and not chat._stops


# --- awaiting ---------------------------------------------------------------------------------------------------------
def test_await_gives_the_answer_and_async_for_the_pieces(make):
    chat = make('pong', 'pong', 'pong')
    async def main():
        assert resp_text(await chat('Reply with exactly: pong')) == 'pong'
        assert ''.join([p async for p in chat('Reply with exactly: pong', stream=True)]) == 'pong'
        events = [e async for e in chat('Reply with exactly: pong', stream='events')]
        assert isinstance(events[-1], Done) and ''.join(e.text for e in events if isinstance(e, TextDelta)) == 'pong'
    asyncio.run(main())
    assert len(chat.hist) == 6 and checked(chat.hist) == chat.hist and chat.use.turns == 1


def test_the_loop_goes_on_meanwhile(make):
    chat, ticks = make(COUNT, delay=.004), []
    async def tick():
        while True:
            ticks.append(len(ticks))
            await asyncio.sleep(.005)
    async def main():
        task = asyncio.create_task(tick())
        await chat(ASK)
        task.cancel()
    asyncio.run(main())
    assert len(ticks) > 5


def test_everything_else_is_that_of_the_chat_within(make):
    chat = make(think=None)
    chat.temp, chat.sp = .5, 'Be kind.'
    assert (chat.chat.temp, chat.chat.sp) == (.5, 'Be kind.') and isinstance(chat.chat, Chat)
    assert repr(chat) == f'Async{chat.chat!r}' and chat._repr_markdown_() == '**System** · Be kind.'
    assert AsyncChat(chat.chat).chat is chat.chat and copy.copy(chat).chat is chat.chat
    assert not hasattr(chat, 'nothing')


def test_errors_come_where_it_is_awaited(make):
    chat = make('pong')
    async def main():
        with pytest.raises(BadRequest, match='cannot be sent'): await chat('')
        with pytest.raises(BadRequest, match='stream='):
            async for _ in chat('x', stream='yes'): pass
        assert resp_text(await chat('Reply with exactly: pong')) == 'pong'
    asyncio.run(main())
    assert len(chat.hist) == 2


def test_an_engine_that_fails_rolls_the_turn_back():
    chat = script('a', RuntimeError('boom'), 'b')
    async def main():
        await chat('one')
        with pytest.raises(RuntimeError, match='boom'): await chat('two')
        return await chat('three')
    assert resp_text(asyncio.run(main())) == 'b' and len(chat.hist) == 4


def test_oneshots_are_awaited(make):
    chat = make('pong', 'good', 'true', 'yes', '3')
    async def main():
        assert resp_text(await chat.oneshot('Reply with exactly: pong')) == 'pong'
        assert await chat.classify('x', ['good', 'bad']) in ('good', 'bad')
        assert await chat.structured('x', bool, max_output_tokens=50) in (True, False)
        assert await chat.check('x') in (True, False) and await chat.grades('x')
    asyncio.run(main())
    assert chat.hist == []


def test_turns_asked_at_once_come_one_after_the_other():
    chat = script(*'abc', delay=.01)
    async def main(): return await asyncio.gather(*[chat(str(i)) for i in range(3)])
    assert sorted(map(resp_text, asyncio.run(main()))) == ['a', 'b', 'c']
    assert [m['role'] for m in chat.hist] == ['user', 'assistant'] * 3 and checked(chat.hist) == chat.hist


def test_a_fork_is_async_too():
    chat = script('a', 'b')
    async def main():
        await chat('one')
        other = chat.fork()
        return other, await other('two')
    other, r = asyncio.run(main())
    assert resp_text(r) == 'b' and len(chat.hist) == 2 and len(other.hist) == 4 and isinstance(other, AsyncChat)


def test_it_closes_with_its_block():
    async def main():
        async with script('a') as chat: await chat('x')
        return chat
    chat = asyncio.run(main())
    assert not chat.engine.closed, 'a shared engine is not its own to close'


# --- cancelling -------------------------------------------------------------------------------------------------------
async def begun(chat, n=8):
    "A task that asks, once some of the answer is there."
    seen = []
    async def ask():
        async for e in chat(ASK, stream='events'): seen.append(e)
    task = asyncio.create_task(ask())
    await until(lambda: sum(isinstance(e, TextDelta) for e in seen) >= n)
    return task


def test_cancelling_the_task_ends_the_turn_and_keeps_the_partial_answer(make):
    chat = make(COUNT, 'pong', delay=.01)
    async def main():
        task = await begun(chat)
        task.cancel()
        with pytest.raises(asyncio.CancelledError): await task
        assert idle(chat.chat) and chat.hist[-1]['meta']['finish_reason'] == 'cancelled'
        assert chat.hist[-1]['content'].startswith('1, 2') and len(chat.hist[-1]['content']) < len(COUNT)
        return await chat('Reply with exactly: pong')
    assert resp_text(asyncio.run(main())) == 'pong' and checked(chat.hist) == chat.hist


def test_a_time_limit_is_a_cancel(make):
    chat = make(COUNT, 'pong', delay=.02)
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(.15): await chat(ASK)
        assert idle(chat.chat)
        return await chat('Reply with exactly: pong')
    assert resp_text(asyncio.run(main())) == 'pong'


def test_leaving_the_loop_over_the_pieces_ends_the_turn(make):
    chat = make(COUNT, 'pong', delay=.01)
    async def main():
        async for p in chat(ASK, stream=True):
            if '3' in p: break
        gc.collect()
        return await chat('Reply with exactly: pong')
    assert resp_text(asyncio.run(main())) == 'pong'
    assert [m['role'] for m in chat.hist] == ['user', 'assistant'] * 2
    assert chat.hist[1]['meta']['finish_reason'] == 'cancelled'


def test_a_turn_that_is_cancelled_leaves_the_others_alone():
    chat = script(COUNT, 'b', delay=.01)
    async def main():
        first = await begun(chat)
        second, third = (asyncio.create_task(chat(str(i))) for i in range(2))
        await asyncio.sleep(.05)
        third.cancel()
        await first
        assert resp_text(await second) == 'b'
        with pytest.raises(asyncio.CancelledError): await third
    asyncio.run(main())
    assert [m['content'] for m in chat.hist] == [ASK, COUNT, '0', 'b']


def test_a_question_aside_that_is_cancelled_leaves_the_turn_alone():
    engine = ScriptedEngine([COUNT, 'x' * 400], delay=.01)
    chat = AsyncChat(engine=engine)
    async def main():
        turn = await begun(chat)
        aside = asyncio.create_task(chat.oneshot('x'))
        await asyncio.sleep(.02)
        aside.cancel()
        with pytest.raises(asyncio.CancelledError): await aside
        await turn
        judge = asyncio.create_task(chat.check('x', judge=Chat(engine=engine)))
        await until(lambda: len(engine.prompts) == 2)
        judge.cancel()
        with pytest.raises(asyncio.CancelledError): await judge
        await until(lambda: not engine.owner._stops)     # the other chat's turn was ended with it
    asyncio.run(main())
    assert chat.hist[-1]['content'] == COUNT and len(chat.hist) == 2


def test_cancel_from_elsewhere_ends_it_with_a_result():
    chat = script(COUNT, 'y' * 400, delay=.01)
    async def main():
        asyncio.get_running_loop().call_later(.1, chat.cancel)
        r = await chat(ASK)
        asyncio.get_running_loop().call_later(.1, chat.cancel)
        with pytest.raises(EngineError, match='cancelled'): await chat.structured('x', str)
        return r
    assert asyncio.run(main())['meta']['finish_reason'] == 'cancelled'


def test_a_tool_that_does_not_end_is_left_behind():
    gate = threading.Event()
    def slow(): gate.wait(20)
    chat = script(call('slow'), 'pong', tools=[slow])
    async def main():
        task = asyncio.create_task(chat('go'))
        await until(lambda: chat.engine.prompts)
        await asyncio.sleep(.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError): await task
        assert not idle(chat.chat)
        asyncio.get_running_loop().call_later(.05, gate.set)
        return await chat('go on')
    assert resp_text(asyncio.run(main())) == 'pong' and checked(chat.hist) == chat.hist


# --- tools and approval -----------------------------------------------------------------------------------------------
def test_async_tools_and_an_async_approval(make):
    asked = []
    async def get_weather(city: str):
        "Get the weather of a city."
        await asyncio.sleep(.01)
        return 'sunny'
    async def approve(call):
        await asyncio.sleep(.01)
        asked.append(call.arguments)
        return True
    chat = make(call('get_weather', city='Paris'), 'The weather in Paris is sunny.', tools=[get_weather],
                approve=approve)
    assert resp_text(asyncio.run(chat('What is the weather in Paris?'))) == 'The weather in Paris is sunny.'
    assert asked == [{'city': 'Paris'}]


def test_cancelling_an_async_tool_ends_it_and_answers_its_call():
    ended = threading.Event()
    async def slow():
        try: await asyncio.sleep(60)
        finally: ended.set()
    chat = script(call('slow'), 'pong', tools=[slow])
    async def main():
        task = asyncio.create_task(chat('go'))
        await until(lambda: chat.engine.prompts)
        await asyncio.sleep(.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError): await task
        assert idle(chat.chat) and 'interrupted' in chat.hist[-1]['content']
        return await chat('go on')
    assert resp_text(asyncio.run(main())) == 'pong' and ended.wait(5) and checked(chat.hist) == chat.hist


@pytest.mark.parametrize('parallel', [False, True])
@pytest.mark.parametrize('kind', ['async', 'sync', 'async asks sync'])
def test_a_tool_that_asks_its_own_chat_is_told_so_and_nothing_waits_for_ever(kind, parallel):
    async def ask(): return resp_text(await chat('inner') if kind == 'async' else chat.chat('inner'))
    def ask_sync(): return resp_text(chat.chat('inner'))
    tool = {'ask': ask_sync if kind == 'sync' else ask}
    chat = script(call('ask'), 'ok', tools=tool, parallel_tools=parallel)
    async def main():
        async with asyncio.timeout(10): return [e async for e in chat('go', stream='events')]
    results = [e.content for e in asyncio.run(main()) if isinstance(e, ToolResult)]
    assert len(results) == 1 and 'middle of a turn' in results[0]


# --- both kinds of chat in a running loop -----------------------------------------------------------------------------
def test_the_synchronous_call_works_inside_a_coroutine(make):
    async def get_weather(city: str):
        "Get the weather of a city."
        await asyncio.sleep(.01)
        return 'sunny'
    chat = make(call('get_weather', city='Paris'), 'The weather in Paris is sunny.', 'pong', tools=[get_weather]).chat
    async def main():
        assert resp_text(chat('What is the weather in Paris?')) == 'The weather in Paris is sunny.'
        return ''.join(chat('Reply with exactly: pong', stream=True))
    assert asyncio.run(main()) == 'pong'


CELLS = '''
import asyncio
from rishi import AsyncChat, Chat, display_stream
from rishi.testing import ScriptedEngine
async def add(a: int, b: int):
    "Add two numbers."
    await asyncio.sleep(.01)
    return a + b
CALL = '<tool_call>{"name": "add", "arguments": {"a": 5, "b": 7}}</tool_call>'
def engine(*replies): return ScriptedEngine([CALL, 'The answer is 12.', *replies])
---
chat = AsyncChat(engine=engine('pong'), tools=[add])
str(await chat('What is 5 plus 7?'))
---
[p async for p in chat('Reply with exactly: pong', stream=True)]
---
sync = Chat(engine=engine('pong'), tools=[add])
str(sync('What is 5 plus 7?'))
---
async def inside(): return ''.join(sync('Reply with exactly: pong', stream=True))
await inside()
---
text = display_stream(Chat(engine=engine(), tools=[add])('What is 5 plus 7?', stream=True))
---
text
---
sync
'''


def test_in_a_kernel(tmp_path):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c.strip()) for c in CELLS.split('---')])
    NotebookClient(nb, timeout=60, resources={'metadata': {'path': str(tmp_path)}}).execute()
    shown = [[o.get('data', o) for o in c.outputs] for c in nb.cells]
    plain = [o[0]['text/plain'] for o in shown[1:5]]
    assert plain == ["'The answer is 12.'", "['pong']", "'The answer is 12.'", "'pong'"]
    want = '⏳ `add(a=5, b=7)`\n\n→ `12`\n\nThe answer is 12.'
    assert len(shown[5]) == 1 and shown[5][0]['text/markdown'] == shown[6][0]['text/markdown'] == want
    assert shown[7][0]['text/markdown'].startswith('**User** · What is 5 plus 7?\n\n⏳ `add')
