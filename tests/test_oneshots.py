"Questions beside the conversation: they answer, and leave no trace."
from dataclasses import dataclass
from enum import Enum
from json import dumps
from typing import Literal, TypedDict

import pytest

from rishi import BadRequest, Chat, EngineError, resp_text
from rishi.testing import ScriptedEngine

llama = pytest.mark.needs('llama')


class Colour(Enum):
    RED = 'red'
    BLUE = 'blue'
    def __str__(self): return self.value


@dataclass
class City:
    name: Literal['Paris', 'London']
    people: int


class Point(TypedDict):
    x: bool


@pytest.fixture(params=['scripted', pytest.param('llama', marks=llama)])
def make(request):
    "A chat that says the replies; the real model says what constraints let it."
    def scripted(*replies, **kw): return Chat(engine=ScriptedEngine(replies), **kw)
    if request.param == 'scripted': return scripted
    tiny = request.getfixturevalue('tiny')
    return lambda *replies, **kw: Chat(engine=tiny, temp=0, **kw)


@pytest.fixture
def real(tiny): return lambda **kw: Chat(engine=tiny, temp=0, **kw)


def state(chat):
    return ([dict(m) for m in chat.hist], chat.use, chat.turn_res, chat.cache_report(), chat.token_count, chat.sp,
            chat.temp, chat.think, list(chat.cbs), chat.tools)


class Unchanged:
    "Whatever happens inside leaves the chat as it is."
    def __init__(self, chat): self.chat = chat
    def __enter__(self): self.before = state(self.chat)
    def __exit__(self, *_): assert state(self.chat) == self.before


ZORA = '<think>\nThe user is called Zora.\n</think>\n\nNice to meet you, Zora!'


@pytest.fixture
def talked(make):
    "`talked(*replies)`: a chat after one turn."
    def begin(*replies, **kw):
        chat = make(ZORA, *replies, **kw)
        chat('My name is Zora.')
        return chat
    return begin


# --- each of them -----------------------------------------------------------------------------------------------------
def test_a_oneshot_knows_nothing_and_leaves_nothing(talked):
    chat = talked('You have not told me that.', 'Your name is Zora.')
    with Unchanged(chat):
        assert resp_text(chat.oneshot('What is my name?', think=False)) == 'You have not told me that.'
        assert resp_text(chat.oneshot('What is my name?', messages=chat.hist, think=False)) == 'Your name is Zora.'


def test_a_oneshot_has_the_prompt_and_the_settings_of_the_chat_or_its_own(make):
    rule = 'Whatever the user says, reply with exactly: {}'
    chat = make('pong', 'ping', sp=rule.format('pong'), think=False)
    with Unchanged(chat):
        assert resp_text(chat.oneshot('Hello')) == 'pong'
        assert resp_text(chat.oneshot('Hello', sp=rule.format('ping'), max_output_tokens=9, temp=0)) == 'ping'
        with pytest.raises(BadRequest, match='temprature'): chat.oneshot('Hello', temprature=1)


def test_a_oneshot_has_tools_only_when_they_are_given():
    def add(a: int, b: int): return a + b
    call = f'<tool_call>{dumps({"name": "add", "arguments": {"a": 1, "b": 2}})}</tool_call>'
    chat = Chat(engine=ScriptedEngine(['plain', call, '3']), tools=[add])
    with Unchanged(chat):
        chat.oneshot('x')
        assert resp_text(chat.oneshot('x', tools=[add])) == '3'
    assert 'add' not in chat.engine.prompts[0] and 'add' in chat.engine.prompts[1]


@pytest.mark.parametrize('schema,reply,want', [
    (City, '{"name":"Paris","people":3}', City), (Point, '{"x":true}', dict), (Colour, '"red"', Colour),
    (bool, 'true', bool),
    ({'type': 'object', 'properties': {'n': {'type': 'integer'}}, 'required': ['n'], 'additionalProperties': False},
     '{"n":3}', dict)], ids=lambda o: getattr(o, '__name__', None))
def test_structured_gives_a_value(talked, schema, reply, want):
    chat = talked(reply)
    with Unchanged(chat): value = chat.structured('Which city?', schema, max_output_tokens=400)
    assert isinstance(value, want)
    if schema is City: assert value.name in ('Paris', 'London') and type(value.people) is int
    if schema is Point: assert value.keys() == {'x'} and type(value['x']) is bool


@pytest.mark.parametrize('temp', [0, 2])
@llama
def test_structured_at_any_temperature_and_with_thinking_on(real, temp):
    chat = real()
    for seed in range(5):
        for think in (None, True):
            got = chat.structured('My name is Zora.', City, temp=temp, seed=seed, think=think, max_output_tokens=400)
            assert got.name in ('Paris', 'London') and type(got.people) is int


def test_a_value_that_is_cut_short_is_an_error(talked):
    chat = talked('{"name":"Paris","people":3}')
    with Unchanged(chat), pytest.raises(EngineError, match='not complete after 2 tokens'):
        chat.structured('Which city?', City, max_output_tokens=2)


def test_a_schema_that_cannot_be_enforced_raises_before_anything_is_generated(talked):
    "CASES 20 is about its siblings too; tests/test_grammar.py has them."
    chat = talked()
    bad = {'type': 'object', 'properties': {'t': {'type': 'string', 'pattern': '(?=x)x'}}, 'required': ['t']}
    with Unchanged(chat), pytest.raises(BadRequest): chat.structured('time?', bad)
    with Unchanged(chat), pytest.raises(BadRequest): chat.structured('time?', object())


@pytest.mark.parametrize('labels', [['good', 'bad'], (1, 2, 30), Colour, [True, False],
                                    ['<think>', '</think>x', '{"a": 1}']])
def test_classify_gives_one_of_the_labels_as_they_were_given(talked, labels):
    labels = list(labels)
    chat = talked(str(labels[0]))
    with Unchanged(chat): got = chat.classify('I love it', labels)
    assert any(got is o for o in labels)


@llama
@pytest.mark.parametrize('labels', [['good', 'bad'], ['a', 'ab', 'abc', 'b'], list(Colour), ['x y', 'x z', 'déjà']])
def test_probabilities_of_labels_sum_to_one(real, labels):
    chat = real()
    chat('My name is Zora.')
    with Unchanged(chat): probs = chat.classify('I love it', labels, probs=True)
    assert list(probs) == labels and abs(sum(probs.values()) - 1) < 1e-6 and all(0 <= p <= 1 for p in probs.values())
    assert chat.classify('I love it', labels, probs=True) == pytest.approx(probs, abs=1e-3)


@llama
def test_the_label_is_the_likeliest_where_they_part_at_the_first_token(real):
    chat = real()
    for text in ('What is 5 + 7?', 'My name is Zora.', 'Count from 1 to 50.'):
        probs = chat.classify(text, ['good', 'bad', 'yes'], probs=True)
        assert chat.classify(text, ['good', 'bad', 'yes']) == max(probs, key=probs.get)


@pytest.mark.parametrize('labels', ['yes', [], ['a'], ['a', 'a'], None, 3, ['a', '']])
def test_labels_that_are_no_choice(talked, labels):
    chat = talked()
    with Unchanged(chat), pytest.raises(BadRequest): chat.classify('x', labels)


def test_an_answer_that_is_no_label_is_an_error():
    "Only an engine that does not constrain can give one."
    chat = Chat(engine=ScriptedEngine(['maybe']))
    with Unchanged(chat), pytest.raises(EngineError, match="'maybe' is none of yes, no"):
        chat.classify('x', ['yes', 'no'])


def test_check_and_grades_judge_the_conversation(talked):
    chat = talked('yes', '4', '2', 'no')
    with Unchanged(chat):
        assert chat.check('Did the user say a name?') in (True, False)
        marks = chat.grades(['kindness', 'brevity'])
        assert list(marks) == ['kindness', 'brevity'] and all(m in range(1, 6) for m in marks.values())
        chat.check('Any?', messages=[])
    if isinstance(chat.engine, ScriptedEngine):
        assert marks == {'kindness': 4, 'brevity': 2}
        asked = chat.engine.prompts[1]               # behind the conversation itself, which is in the cache
        assert asked.startswith(chat.engine.prompts[0] + 'Nice to meet you, Zora!<|im_end|>')
        assert 'kindness' in chat.engine.prompts[2] and 'Zora' not in chat.engine.prompts[4]


@pytest.mark.parametrize('scale', [0, 1])
def test_a_scale_needs_two_grades(talked, scale):
    chat = talked()
    with pytest.raises(BadRequest, match='two different labels'): chat.grades('kindness', scale=scale)


def test_one_criterion_needs_no_list(talked): assert list(talked('3').grades('kindness', scale=3)) == ['kindness']


# --- judges -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('shared', [True, False])
def test_another_chat_judges(shared):
    chat = Chat(engine=ScriptedEngine(['Hello.', 'yes', '1']))
    chat('Hi')
    judge = Chat(engine=chat.engine if shared else ScriptedEngine(['yes', '1']), sp='You sell boats.')
    with Unchanged(chat), Unchanged(judge):
        assert chat.check('Done?', judge=judge) is True
        assert chat.classify('x', ['1', '2'], judge=judge) == '1'
    assert 'assistant: Hello.' in judge.engine.prompts[-2] and 'boats' not in ''.join(judge.engine.prompts)


@llama
def test_a_judge_on_the_same_engine_or_another(real, tiny_chat):
    chat = real()
    chat('My name is Zora.')
    with Chat(str(tiny_chat), temp=0, n_threads=1) as other, Unchanged(chat):
        answers = {chat.check('Did the user say a name?', judge=j) for j in (None, real(), other)}
        assert len(answers) == 1, 'the same model judges the same'


def test_a_long_conversation_is_judged_by_its_newest_part():
    chat = Chat(engine=ScriptedEngine(['yes'] * 2), ctx_limit=600,
                messages=[m for i in range(30) for m in ({'role': 'user', 'content': f'question {i}'},
                                                         {'role': 'assistant', 'content': f'answer {i}'})])
    assert chat.check('Done?')
    assert 'answer 29' in chat.engine.prompts[0] and 'question 2\n' not in chat.engine.prompts[0]


# --- failing and stopping ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize('ask', [lambda c: c.oneshot('x'), lambda c: c.structured('x', City), lambda c: c.check('x'),
                                 lambda c: c.classify('x', ['a', 'b']), lambda c: c.grades(['x'])])
def test_a_failure_leaves_no_trace_either(ask):
    chat = Chat(engine=ScriptedEngine(['Hello.', RuntimeError('boom'), 'bye']))
    chat('Hi')
    with Unchanged(chat), pytest.raises(RuntimeError, match='boom'): ask(chat)
    assert resp_text(chat('Bye')) == 'bye'


def test_cancel_ends_them():
    import threading
    chat = Chat(engine=ScriptedEngine(['a' * 400, '"' + 'b' * 400], delay=.02))
    threading.Timer(.1, chat.cancel).start()
    assert chat.oneshot('x')['meta']['finish_reason'] == 'cancelled'
    threading.Timer(.1, chat.cancel).start()
    with pytest.raises(EngineError, match='cancelled'): chat.structured('x', str)


# --- forks ------------------------------------------------------------------------------------------------------------
def test_a_fork_goes_on_and_neither_sees_the_other(talked):
    chat = talked('Your name is Zora.', 'pong', 'Your name is Zora.')
    other = chat.fork()
    with Unchanged(chat):
        assert resp_text(other('What is my name?')) == 'Your name is Zora.'
        other.hist[0]['content'] = 'changed'
        other.sp = 'changed'
    with Unchanged(other): assert resp_text(chat('Reply with exactly: pong')) == 'pong'
    assert len(chat.hist) == len(other.hist) == 4 and chat.hist[:2] != other.hist[:2]


def test_a_fork_has_the_settings_tools_and_copies_of_the_callbacks():
    def add(a: int): return a
    chat = Chat(engine=ScriptedEngine(['x', 'y']), sp='Be kind.', tools={'plus': add}, temp=.3, think=True, seed=4,
                max_steps=3, tool_max_len=9, ctx_limit=700, comp_kw={'repeat_penalty': 1.1}, approve=lambda c: True)
    chat('one')
    other = chat.fork()
    for k in ('sp', 'temp', 'think', 'seed', 'max_steps', 'tool_max_len', 'ctx_limit', 'comp_kw', 'approve', 'tools'):
        assert getattr(other, k) == getattr(chat, k), k
    assert other.toolbox.names == ['plus'] and type(other) is type(chat) and not other.constrained
    assert [type(c) for c in other.cbs] == [type(c) for c in chat.cbs]
    other('two')
    assert chat.cbs[0].total.turns == 1 and other.cbs[0].total.turns == 2
    other.reconfigure(tools=[])
    other.close()
    assert chat.tools == [add] and not chat.engine.closed
