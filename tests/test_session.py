"The kernel's chats and engines: what is shared, loaded, freed, kept and put back. Engines are scripted, chats real."
import threading

import pytest

from rishi.errors import BadRequest, EngineError, ModelNotFound
from rishi.testing import ScriptedEngine
from rishi.types import Done, Progress, TextDelta
from rishi_jupyter.request import CellRequest
from rishi_jupyter.session import Load, Rishi, Session


class Loader:
    "A stand-in for `load_engine`: every load gives a new engine with `replies`, and is written down."

    def __init__(self, *replies):
        self.replies, self.loads, self.engines, self.fail, self.delay = replies, [], [], {}, 0.

    def __call__(self, model, stop=None, **options):
        self.loads.append((model, options))
        if model in self.fail: raise self.fail[model]
        yield Progress('download', 1, 2)
        if stop.is_set(): raise EngineError('Loading was stopped; run it again to load it.')
        yield Progress('load', 0, 1000)
        if options.get('bad'): raise EngineError('The file is no whole model.')
        self.engines.append(ScriptedEngine(self.replies, n_ctx=options.get('n_ctx', 4096),
                                           delay=self.delay))
        self.engines[-1].name = f'Full {model}'
        return self.engines[-1]


def make(*replies, **settings):
    loader = Loader(*(replies or [f'r{i}' for i in range(9)]))
    return Session(Rishi(**settings), loader), loader


def ask(session, text='hi', **kw):
    "Run one turn to its end; the turn, its events in `got`."
    turn = session.turn(CellRequest(text=text, **kw))
    turn.got = list(turn.events)
    return turn


def said(chat): return [(m['role'], m['content']) for m in chat.hist]


def test_loading_comes_first_and_only_once():
    s, loader = make()
    first, second = ask(s), ask(s, 'again')
    assert [e.stage for e in first.got[:2]] == ['download', 'load'] and isinstance(first.got[-1], Done)
    assert all(e.stage == 'prefill' for e in second.got if isinstance(e, Progress))
    assert loader.loads == [(None, {})]
    assert said(s.chats['main'].chat) == [('user', 'hi'), ('assistant', 'r0'), ('user', 'again'), ('assistant', 'r1')]
    assert second.resp == s.chats['main'].chat.hist[-1]


def test_nothing_runs_before_the_events_are_drawn():
    s, loader = make()
    s.turn(CellRequest(text='hi'))
    assert not loader.loads and not s.chats


def test_the_header_is_fuller_once_the_engine_is_there():
    pytest.importorskip('rishi_jupyter.show')
    s, _ = make()
    turn = s.turn(CellRequest(text='hi', model='org/some-GGUF'))
    h = turn.header()
    assert (h.chat, h.model, h.turn, h.window) == ('main', 'some-GGUF', 1, 0)
    list(turn.events)
    h = turn.header()
    assert (h.model, h.turn, h.window) == ('Full org/some-GGUF', 1, 4096)
    h = s.turn(CellRequest(text='x')).header()
    assert (h.model, h.turn, h.window) == ('Full org/some-GGUF', 2, 4096)
    assert s.turn(CellRequest(text='x', new=True)).header().turn == 1
    assert s.turn(CellRequest(text='x', history=False)).header().note == 'not kept in the chat'


def test_chats_share_the_engine_of_a_model():
    s, loader = make()
    ask(s), ask(s, chat='b'), ask(s, chat='c', options=(('n_ctx', 512),))
    a, b, c = (s.chats[n].chat for n in ('main', 'b', 'c'))
    assert a.engine is b.engine is not c.engine and len(loader.loads) == 2
    assert said(a) == [('user', 'hi'), ('assistant', 'r0')] and said(b) == [('user', 'hi'), ('assistant', 'r1')]


def test_load_options_reload_only_when_they_differ_and_stay_with_the_chat():
    s, loader = make()
    for options in ((('n_ctx', 512),), (), (('n_ctx', 512),), (('n_ctx', 1024),), ()): ask(s, options=options)
    assert loader.loads == [(None, {'n_ctx': 512}), (None, {'n_ctx': 1024})]
    assert [e.closed for e in loader.engines] == [True, False]
    assert s.turns('main') == 5


def test_options_of_the_kernel_reach_chats_that_are_there_already():
    s, loader = make()
    ask(s, options=(('n_threads', 1),))
    s.settings.options = {'n_ctx': 512, 'n_threads': 2}
    ask(s), ask(s)
    assert loader.loads == [(None, {'n_threads': 1}), (None, {'n_ctx': 512, 'n_threads': 1})]


def test_options_given_to_a_model_do_not_go_to_the_next():
    s, loader = make()
    ask(s, model='a', options=(('quant', 'Q8_0'),)), ask(s, model='b'), ask(s, model='a')
    assert loader.loads == [('a', {'quant': 'Q8_0'}), ('b', {}), ('a', {})]


def test_options_with_the_same_text_but_another_type_are_others():
    assert Load('m', {'a': 1}).key != Load('m', {'a': '1'}).key
    assert Load('m', {'a': [1], 'b': 2}).key == Load('m', {'b': 2, 'a': [1]}).key


def test_another_model_carries_the_history_and_frees_the_first():
    s, loader = make()
    ask(s, system='Be kind.')
    chat = s.chats['main'].chat
    chat.temp = .3
    turn = ask(s, 'two', model='other')
    assert turn.notes == ['model changed · goes on from Full None']
    new = s.chats['main'].chat
    assert new is not chat and [t for _, t in said(new)] == ['hi', 'r0', 'two', 'r0']
    assert (new.sp, new.temp) == ('Be kind.', .3)
    prompt = loader.engines[1].prompts[0]
    assert loader.engines[0].closed and 'hi' in prompt and 'Be kind.' in prompt
    ask(s, 'three')
    assert [m for m, _ in loader.loads] == [None, 'other']   # the chat stays with it


def test_an_engine_that_another_chat_is_on_is_kept():
    s, loader = make()
    ask(s), ask(s, chat='b'), ask(s, model='other')
    assert not loader.engines[0].closed and len(s.engines) == 2
    ask(s, chat='b', model='other')
    assert loader.engines[0].closed and len(loader.loads) == 2 and len(s.engines) == 1


def test_a_model_that_is_not_found_leaves_the_old_one_loaded():
    s, loader = make()
    ask(s)
    loader.fail['nope'] = ModelNotFound('No such model.')
    with pytest.raises(ModelNotFound): ask(s, model='nope')
    assert not loader.engines[0].closed
    ask(s, 'on')
    assert [m for m, _ in loader.loads] == [None, 'nope'] and s.turns('main') == 2


def test_the_old_engine_is_freed_before_the_new_one_loads_and_comes_back_after_a_failure():
    s, loader = make()
    ask(s)
    with pytest.raises(EngineError): ask(s, options=(('bad', True),))
    assert loader.engines[0].closed
    ask(s, 'on')
    assert loader.loads == [(None, {}), (None, {'bad': True}), (None, {})] and s.turns('main') == 2


def test_use_moves_every_chat_at_its_next_turn():
    s, loader = make()
    ask(s, model='a/x-GGUF'), ask(s, chat='b')
    s.use('c/y-GGUF')
    assert not any(e.closed for e in loader.engines)
    ask(s), ask(s, chat='b')
    assert [m for m, _ in loader.loads] == ['a/x-GGUF', None, 'c/y-GGUF'] and s.turns('main') == s.turns('b') == 2
    with pytest.raises(BadRequest): s.use('no-such-kind-of-name')
    assert s.settings.model == 'c/y-GGUF'


def test_sampling_on_a_cell_holds_for_that_cell():
    s, loader = make(temperature=.9, top_k=7)
    ask(s, temperature=.1, seed=3, think=False)
    chat, seen = s.chats['main'].chat, []
    engine = loader.engines[0]
    sampler, engine._sampler = engine._sampler, lambda *a: seen.append(a[0]) or sampler(*a)
    ask(s, temperature=.1, seed=3, max_tokens=1), ask(s, max_tokens=99)
    chat.temp = .5
    ask(s, max_tokens=99)
    s.settings.top_k, s.settings.max_tokens = 8, 98
    ask(s)
    chat.max_output_tokens = 97
    ask(s)
    assert [(o.temp, o.seed, o.top_k, o.max_tokens) for o in seen] == [
        (.1, 3, 7, 1), (.9, None, 7, 99), (.5, None, 7, 99), (.5, None, 8, 98), (.5, None, 8, 97)]
    assert (chat.temp, chat.seed, chat.top_k, chat.think) == (.5, None, None, None)


def test_defaults_of_the_kernel():
    s, loader = make(model='d/m-GGUF', system='Short.', options={'n_ctx': 256}, max_tokens=1)
    turn = ask(s)
    assert loader.loads == [('d/m-GGUF', {'n_ctx': 256})] and 'Short.' in loader.engines[0].prompts[0]
    assert turn.got[-1].finish_reason == 'length'
    ask(s, model='e/m-GGUF', options=(('n_threads', 1),))
    assert loader.loads[-1] == ('e/m-GGUF', {'n_ctx': 256, 'n_threads': 1})


def test_system_on_a_later_turn():
    s, loader = make(system='One.')
    ask(s), ask(s, system='Two.'), ask(s)
    p = loader.engines[0].prompts
    assert 'One.' in p[0] and 'Two.' in p[1] and 'One.' not in p[1] and 'Two.' in p[2]


def test_new_forgets_the_turns_and_the_system_prompt():
    s, loader = make(system='One.')
    ask(s, system='Two.')
    chat = s.chats['main'].chat
    ask(s, 'fresh', new=True)
    assert s.chats['main'].chat is chat and said(chat) == [('user', 'fresh'), ('assistant', 'r1')] and chat.sp == 'One.'
    ask(s, new=True, system='Three.')
    assert chat.sp == 'Three.' and s.turns('main') == 1


@pytest.mark.parametrize('new', [False, True])
def test_no_history_leaves_no_trace(new):
    s, loader = make()
    ask(s, 'first')
    turn = ask(s, 'aside', history=False, system='Other.', new=new)
    assert turn.resp['content'] == 'r1' and ('first' in loader.engines[0].prompts[1]) is not new
    chat = s.chats['main'].chat
    assert said(chat) == [('user', 'first'), ('assistant', 'r0')] and chat.sp == ''


@pytest.mark.parametrize('kw', [{}, dict(new=True), dict(system='x'), dict(temperature=0.)])
def test_an_error_leaves_the_chat_as_it_was(kw):
    s, _ = make('one', EngineError('It broke.'), 'two')
    ask(s, system='Keep.')
    chat = s.chats['main'].chat
    with pytest.raises(EngineError, match='It broke'): ask(s, 'bad', **kw)
    assert said(chat) == [('user', 'hi'), ('assistant', 'one')] and (chat.sp, chat.temp) == ('Keep.', None)
    assert not s.running and ask(s, 'good').resp['content'] == 'two'


def test_stop_while_loading():
    s, loader = make()
    turn = s.turn(CellRequest(text='hi'))
    events = iter(turn.events)
    assert next(events).stage == 'download' and s.running == {turn}
    assert s.stop() == 1
    with pytest.raises(EngineError, match='stopped'): next(events)
    assert not s.running and not s.chats and ask(s).resp['content'] == 'r0'


def test_stop_after_the_last_event_of_loading():
    s, loader = make()
    turn = s.turn(CellRequest(text='hi'))
    events = iter(turn.events)
    while next(events).stage != 'load': pass
    turn.stop()
    with pytest.raises(EngineError, match='stopped'): next(events)
    assert s.turns('main') == 0


def test_stop_while_answering_keeps_the_partial_answer():
    s, loader = make('abcd' * 50)
    loader.delay = .01
    turn = s.turn(CellRequest(text='hi'))
    got = []
    for e in turn.events:
        got.append(e)
        if isinstance(e, TextDelta): threading.Thread(target=turn.stop).start()
    assert got[-1].finish_reason == 'cancelled' and 0 < len(turn.resp['content']) < 200
    assert s.chats['main'].chat.hist[-1]['content'] == turn.resp['content']


def test_a_stop_that_comes_before_the_chat_has_begun_is_not_lost():
    s, loader = make('one', 'abcd' * 50)
    loader.delay = .01
    ask(s)
    turn = s.turn(CellRequest(text='hi'))
    chat = s.chats['main'].chat
    call = type(chat).__call__
    class Late(type(chat)):
        def __call__(self, *a, **kw):
            events = call(self, *a, **kw)
            turn.stop()
            return events
    chat.__class__ = Late
    assert list(turn.events)[-1].finish_reason == 'cancelled'


def test_an_abandoned_turn_lets_go():
    s, _ = make('abcd' * 50, 'two')
    turn = s.turn(CellRequest(text='hi', temperature=0.))
    for e in turn.events:
        if isinstance(e, TextDelta): break
    turn.events.close()
    assert not s.running and s.chats['main'].chat.temp is None and ask(s).resp['content'] == 'two'


def test_unload_keeps_the_history():
    s, loader = make()
    ask(s), ask(s, chat='b', model='other')
    assert s.unload() == 2 and all(e.closed for e in loader.engines) and s.unload() == 0
    ask(s, 'on')
    assert s.turns('main') == 2 and len(loader.loads) == 3 and not s.chats['main'].chat.engine.closed


def test_chat_loads_and_gives_the_chat():
    s, loader = make()
    chat = s.chat()
    assert chat is s.chat() is s.chats['main'].chat and len(loader.loads) == 1
    chat('from Python')
    ask(s, 'from a cell')
    assert [t for r, t in said(chat) if r == 'user'] == ['from Python', 'from a cell']


def test_a_chat_that_is_not_there():
    s, _ = make()
    ask(s, chat='main')
    with pytest.raises(BadRequest, match="no chat 'mian'. Did you mean main"): s.bound('mian')
    assert s.bound() is s.bound('main')


@pytest.mark.parametrize('kw', [dict(top_p=2), dict(temperature=-1), dict(max_tokens=0), dict(top_k=-1)])
def test_defaults_that_cannot_be(kw):
    from traitlets import TraitError
    with pytest.raises(TraitError): Rishi(**kw)
