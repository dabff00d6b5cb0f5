"""Raw text to thinking, answer and calls: the same for any split, with linear work; broken calls mended or told."""
import json
import sys
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from parts import fold, parts, pieces

from rishi.dialect import Splitter, by_name
from rishi.dialect.calls import arguments, made
from rishi.dialect.code import Code
from rishi.dialect.marks import find
from rishi.dialect.repair import loads, objects
from rishi.dialect.table import FAMILIES

PLAIN = by_name('plain')
CALL = '<tool_call>{"name":"w","arguments":{"n":1}}</tool_call>'


def bits(d):
    "What texts of the dialect `d` are made of, good and bad."
    marks = {*d.think, *d.noise, *(f.open for f in d.calls), *(c for f in d.calls for c in f.close)} - {''}
    if d.channels: marks |= {' to=f', *(f'<|{m}|>' for m in 'start channel message end call constrain'.split())}
    marks |= {m[:len(m) // 2] for m in marks} | {m[len(m) // 2:] for m in marks}
    common = [' ', '\n', '\n\n', 'a', 'w ', '`', '```', '"', "'", '\\', '{', '}', '[', ']', ':', ',',
              '<', '<|', '|>', '>', 'x' * 250, ' ' * 120]
    calls = ['{"name":"w","arguments":{"t":"', '"}}', CALL, 'call:f{a:<|"|>', '<|"|>}', '<escape>', 'f[ARGS]{"a":',
             '[ARGS]', '<function=f>', '<parameter=a>', '</parameter>', '</function>', 'f\n<arg_key>', '</arg_key>',
             '<arg_value>', '</arg_value>', 'functions.f:0<|tool_call_argument_begin|>{',
             'f<｜tool▁sep｜>{', 'f(x="', '")']
    return sorted(marks) + common + calls


def texts(d): return st.lists(st.sampled_from(bits(d)), max_size=14).map(''.join)


@st.composite
def cuts(draw):
    d = draw(st.sampled_from(FAMILIES))
    text = draw(texts(d))
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    cut = [text[a:b] for a, b in zip([0, *at], [*at, len(text)])]
    return d, text, cut, draw(st.sampled_from(['unset', 'open', 'closed']))


@settings(max_examples=1500, deadline=None)
@given(cuts())
def test_any_split_gives_the_same(case):
    d, text, cut, start = case
    whole = parts(d, [text], start)
    assert parts(d, cut, start) == whole
    assert parts(d, list(text), start) == whole


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(['a', ' ', '\n', '`', '<', 'if a < b', '|', '{"x": 1}', 'é', '</b>'])).map(''.join))
def test_an_answer_without_marks_is_kept_to_the_letter(text):
    _, said, calls = fold(PLAIN, pieces(text, 3))
    assert said == (text if text.strip() else '') and not calls


# --- what is held back ------------------------------------------------------------------------------------------------
def test_only_what_may_become_a_mark_waits():
    s = Splitter(PLAIN)
    assert s.feed('a < b, <t') == [('text', 'a < b,')]
    assert s.feed('d') == [('text', ' <td')]
    assert s.feed('x<thin') == [('text', 'x')]
    assert s.feed('g') == [('text', '<thing')]
    assert s.feed('<tool_call') == [] and s.end() == [('text', '<tool_call')]


def test_parts_come_as_soon_as_they_are_sure():
    s = Splitter(PLAIN)
    assert s.feed('<think>a b') == [('think', 'a b')]
    assert s.feed('</think>\n\nHi') == [('text', 'Hi')]
    [(kind, call)] = s.feed(' ' + CALL)
    assert kind == 'call' and call.arguments == {'n': 1}
    assert s.feed(' and ') == [('text', ' and')] and s.end() == [('text', ' ')]


def test_white_space_around_thinking_and_calls():
    assert fold(PLAIN, [f'A\n\n{CALL}\n\n\n{CALL}\n\nB'])[1] == 'A\n\nB'
    assert fold(PLAIN, [f'A {CALL} B'])[1] == 'A B'
    assert fold(PLAIN, [f'A\n{CALL}\n'])[1] == 'A'
    assert fold(PLAIN, ['\n<think>\n a\n b \n</think>\n\nB\n'])[:2] == ('a\n b', 'B\n')
    assert fold(PLAIN, [' \n'])[1] == '' and fold(PLAIN, ['\n B'])[1] == '\n B'


# --- policies ---------------------------------------------------------------------------------------------------------
def test_a_stray_backtick_does_not_hide_a_call():
    _, text, calls = fold(PLAIN, [f'The ` key.\n{CALL}'])
    assert text == 'The ` key.' and len(calls) == 1
    assert fold(PLAIN, [f'Write `{CALL}` so.'])[1:] == (f'Write `{CALL}` so.', [])
    assert fold(PLAIN, [f'```\n{CALL}\n```\n{CALL}'])[1:] == (f'```\n{CALL}\n```', fold(PLAIN, [CALL])[2])


def test_a_call_in_open_thinking_is_run_only_if_nothing_follows():
    assert len(fold(PLAIN, [f'<think>go {CALL}\n'])[2]) == 1
    assert len(fold(PLAIN, [f'<think>go {CALL} {CALL}</think>\n'])[2]) == 2
    assert fold(PLAIN, [f'<think>go {CALL}</think>4']) == (f'go {CALL}', '4', [])
    thinking, _, calls = fold(PLAIN, [f'<think>go {CALL}</think>{CALL}'])
    assert thinking == f'go {CALL}' and len(calls) == 1
    assert fold(PLAIN, ['<think>go and go']) == ('go and go', '', [])


def test_a_call_whose_quotes_are_wrong_does_not_swallow_the_rest():
    bad = '<tool_call>{"name":"w","arguments":{"t":"he said "no}}</tool_call>'
    _, text, calls = fold(PLAIN, [f'{bad}\nand {CALL} then'])
    assert text == 'and then' and [bool(c.error) for c in calls] == [True, False]
    assert calls[0].name == 'w' and calls[0].raw == bad and 'cannot be read' in calls[0].error


def test_whole_answer_calls_need_a_tool_of_that_name():
    llama, tools = by_name('llama3'), [{'type': 'function', 'function': {'name': 'w'}}]
    call = '{"name": "w", "parameters": {"n": 1}}'
    assert [c.name for c in fold(llama, [call], tools=tools)[2]] == ['w']
    assert fold(llama, [call], tools=[])[1:] == (call, [])
    assert fold(llama, [call.replace('"w"', '"v"')], tools=tools)[1] == call.replace('"w"', '"v"')
    assert fold(llama, ['Sure: ' + call], tools=tools)[1] == 'Sure: ' + call
    assert fold(llama, [call[:-4]], tools=tools)[1] == call[:-4]


def test_harmony_hides_no_text():
    h = by_name('harmony')
    final = '<|channel|>final<|message|>A<|end|>'
    assert fold(h, [final + ' and B'])[1] == 'A\n\nand B'
    long = 'word ' * 100
    assert fold(h, [final + '<|start|>assistant ' + long])[1].endswith(long)
    assert fold(h, [final + '<|start|>assistant<|chan'])[1] == 'A'
    assert fold(h, ['<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final'])[:2] == ('t', '')


# --- cost -------------------------------------------------------------------------------------------------------------
def work(dialect, cut):
    "Python and C calls made while the pieces go through, and the most that was held back."
    n, held, s = 0, 0, Splitter(dialect)
    def count(frame, event, arg):
        nonlocal n
        n += event in ('call', 'c_call')
    for piece in cut:
        sys.setprofile(count)
        try: s.feed(piece)
        finally: sys.setprofile(None)
        held = max(held, len(s._buf))
    sys.setprofile(count)
    try: s.end()
    finally: sys.setprofile(None)
    return n, held


LONG = {
    'prose': 'if a < b and c > d then <b>x</b>\n', 'marks in code': '`<think>` and `<tool_call>` ',
    'marks in a fence': '```\n<tool_call>{"name":\n```\n', 'marks that are none': '<tool_call> or </think> ',
    'calls': CALL + '\n', 'white space': '\n \n', 'backticks': '```` ` ',
    'broken calls': '<tool_call>{"a":"}</tool_call>\n',
    'braces': '<tool_call>{{{{', 'empty heads': '<tool_call>\n\n\n\n', 'names': '<tool_call>f\n<arg_key>a<arg_value>b',
}


@pytest.mark.parametrize('size', [1, 7, 10**9])
@pytest.mark.parametrize('what', LONG)
@pytest.mark.parametrize('family', ['hermes', 'glm', 'harmony'])
def test_work_grows_with_the_length(family, what, size):
    d, text = by_name(family), LONG[what]
    (small, _), (large, held) = (work(d, pieces(text * n, size)) for n in (60, 600))
    assert large < 12 * small + 2000
    assert size > 7 or held <= 300


def test_one_feed_with_ten_thousand_marks():
    text = '`<think>` ' * 10_000
    n, _ = work(PLAIN, [text])
    assert n < 100 * 10_000 and fold(PLAIN, [text])[1] == text


def test_fifty_times_the_pieces_of_one_long_call():
    text = '<tool_call>{"name":"w","arguments":{"t":"' + 'x' * 50_000 + '"}}</tool_call>'
    whole, fine = work(PLAIN, [text])[0], work(PLAIN, pieces(text, 50))[0]
    assert fine < 60 * 1000 + whole and fold(PLAIN, pieces(text, 50))[2] == fold(PLAIN, [text])[2]


# --- broken JSON ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('text, value', [
    (r'{"a": "\d+"}', {'a': r'\d+'}), (r'{"a": "C:\\x\n"}', {'a': 'C:\\x\n'}), (r'{"a": "\u12"}', {'a': r'\u12'}),
    ("{'a': 'it\\'s', 'b': '\"q\"'}", {'a': "it's", 'b': '"q"'}), ('{"a": \'x\', "b": true}', {'a': 'x', 'b': True}),
    ('{"a": True, "b": False, "c": None}', {'a': True, 'b': False, 'c': None}), ('{"a": [1, 2,], }', {'a': [1, 2]}),
    ('{a: 1, b_c: "True"}', {'a': 1, 'b_c': 'True'}), ('{"a": "x\ny\tz"}', {'a': 'x\ny\tz'}),
    ('{"a": {"b": 1', {'a': {'b': 1}}), ('{"a": "\\ud83d\\ude00 \\ud83d"}', {'a': '😀 \ufffd'}),
    ("{'a': 'C:\\\\'}", {'a': 'C:\\'}),
    ('{"true": 1}', {'true': 1}),
])
def test_what_can_only_mean_one_thing_is_mended(text, value): assert loads(text) == value


@pytest.mark.parametrize('text', ['{"a": "x', '{"a" 1}', 'hm', '{"a": }', '', '{"a": x}', '[' * 9**5, "{'a': 'it's'}"])
def test_the_rest_is_refused_with_the_reason(text):
    with pytest.raises(ValueError) as e: loads(text)
    assert str(e.value) and '\n' not in str(e.value)


def test_a_text_that_was_cut_off_is_not_completed():
    with pytest.raises(ValueError): loads('{"a": {"b": 1', closed=False)


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet='{}[]"\'\\:,abTrueNon01 \n.-u', max_size=40))
@example('{"a": "\\')
def test_nothing_but_value_errors(text):
    for f in (loads, objects, partial(loads, closed=False)):
        try: f(text)
        except ValueError: pass


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda o: st.lists(o) | st.dictionaries(st.text(), o), max_leaves=8))
def test_good_json_is_read_as_it_is(value):
    clean = json.loads(json.dumps(value))
    assert loads(json.dumps(value)) == clean and loads(json.dumps(value, ensure_ascii=False)) == clean


def test_arguments():
    for none in (None, '', ' null ', 'null', 'None', '{}', [], {}): assert arguments(none) == {}
    assert arguments('{"p": 1}') == arguments('"{\\"p\\": 1}"') == {'p': 1}
    for bad, word in [([1], 'a list'), (3, 'a number'), ('"x"', 'JSON'), ('[1]', 'a list'), (True, 'true or false')]:
        with pytest.raises(ValueError, match=word): arguments(bad)
    assert made('', {}).error and made(None, {}).error
    assert made('w', 'x').error.startswith('the arguments are not valid')
    assert made(' w ', {'a': 1}).name == 'w'


def test_calls_with_more_or_less_than_they_should_have():
    def call(obj): return fold(PLAIN, [f'<tool_call>{obj}</tool_call>'])[2]
    [c] = call('{"type":"function","function":{"name":"w","arguments":"{\\"n\\":1}"},"id":"x1"}')
    assert (c.name, c.arguments, c.id, c.error) == ('w', {'n': 1}, 'x1', '')
    assert 'under that key' in call('{"name":"w","n":1}')[0].error
    assert call('{"arguments":{}}')[0].error == 'the call names no tool' and call('{"name":3}')[0].error
    assert call('{"name":"w"}')[0].arguments == {} and not call('{"name":"w"}')[0].error
    a, b = call('{"name":"a"}{"name":"b", oh}')
    assert not a.error and a.raw == '{"name":"a"}' and b.name == 'b' and 'not valid JSON' in b.error
    assert call('```json\n{"name":"w"}\n```')[0].name == 'w' and 'object' in call('[1]')[0].error


# --- small parts ------------------------------------------------------------------------------------------------------
@given(st.text(alphabet='`\na', max_size=30), st.integers(0, 30))
def test_code_is_the_same_in_pieces(text, at):
    one, two = Code(), Code()
    one.feed(text)
    for piece in (text[:at], text[at:]): two.feed(piece)
    assert one.inside == two.inside


def test_marks_inside_marks_wait_for_the_longer():
    marks = ('[', '[/THINK]', 'IN')
    assert find(marks, 'a[/TH', 0, False) == (None, 1) and find(marks, 'a[/TH', 0, True) == ('[', 1)
    assert find(marks, 'a[/THINK]', 0, False) == ('[/THINK]', 1) and find(marks, 'a[/x', 0, False) == ('[', 1)
    assert find((), 'abc', 0, False) == (None, 3)
