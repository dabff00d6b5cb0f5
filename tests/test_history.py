"The history as data: what is a conversation, its wire form, its file."
import json
import os
from json import dumps

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rishi import BadRequest, Chat, resp_text
from rishi.core import get_runtime
from rishi.history import INTERRUPTED, as_markdown, checked, follow_up, from_wire, said, to_wire, turns
from rishi.testing import ScriptedEngine


def user(text): return {'role': 'user', 'content': text}
def bot(text, **kw): return {'role': 'assistant', 'content': text, **kw}
def ask(*ids, args=None):
    return [{'id': i, 'type': 'function', 'function': {'name': 'f', 'arguments': args or {}}} for i in ids]


def result(i): return {'role': 'tool', 'tool_call_id': i, 'name': 'f', 'content': '5'}
def script(*replies, **kw): return Chat(engine=ScriptedEngine(replies), **kw)


TALK = [user('What is 2+3?'), bot('', tool_calls=ask('call_1', args={'a': 2, 'b': 3})), result('call_1'),
        bot('It is 5.')]
PICTURE = {'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,iVBORw0KGgo='}}
SOUND = {'type': 'input_audio', 'input_audio': {'data': 'UklGRg==', 'format': 'wav'}}


# --- the wire ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('where', ['Chat', pytest.param('LlamaChat', marks=pytest.mark.needs('llama'))])
def test_the_wire_form(where):
    "The checks of the llama.cpp document."
    cls = Chat if where == 'Chat' else get_runtime('llama')
    assert cls.__name__ == where
    wire = cls.hist2fmt(TALK)
    assert wire[2] == {'role': 'tool', 'tool_call_id': 'call_1', 'name': 'f', 'content': '5'}
    assert wire[1]['tool_calls'][0]['function']['arguments'] == '{"a": 2, "b": 3}'
    assert cls.fmt2hist(TALK) == TALK and cls.fmt2hist(wire) == TALK
    assert script().hist2fmt(TALK) == wire


def test_what_is_ours_does_not_go_out_and_theirs_comes_in():
    hist = [user('x'), bot('y', thinking='hm', meta={'finish_reason': 'stop'}), follow_up('z', 'code')]
    assert to_wire(hist) == [user('x'), bot('y'), user('z')]
    theirs = [{'role': 'assistant', 'content': None, 'reasoning_content': 'hm', 'tool_calls': ask('a')}, result('a'),
              bot('x', reasoning_content='')]
    assert from_wire(theirs) == [bot('', thinking='hm', tool_calls=ask('a')), result('a'), bot('x')]
    assert theirs[0]['content'] is None, 'what is given stays as it is'


@pytest.mark.parametrize('raw,want', [('', {}), ('  ', {}), ('null', {}), (None, {}), ({}, {}), ('{"p": 1}', {'p': 1}),
                                      ('{"é": "\\u00e9"}', {'é': 'é'})])
def test_arguments_come_as_text_or_not_at_all(raw, want):
    "CASES 8."
    m = bot('', tool_calls=[{'id': 'a', 'type': 'function', 'function': {'name': 'f', 'arguments': raw}}])
    assert from_wire([m])[0]['tool_calls'][0]['function']['arguments'] == want
    assert json.loads(to_wire(from_wire([m]))[0]['tool_calls'][0]['function']['arguments']) == want


@pytest.mark.parametrize('raw', ['{"p": ', '[1]', '3', [1], 3, '"x"'])
def test_arguments_that_are_no_object(raw):
    m = bot('', tool_calls=[{'id': 'a', 'function': {'name': 'f', 'arguments': raw}}])
    with pytest.raises(BadRequest, match='arguments that are no JSON'): from_wire([m])


def test_media_are_left_alone(tmp_path):
    hist = [user([PICTURE, {'type': 'text', 'text': 'What is it?'}, SOUND]), bot('A dog.')]
    assert checked(hist) == from_wire(to_wire(hist)) == hist
    chat = script(messages=hist)
    chat.save(tmp_path/'c.json')
    other = script()
    other.load(tmp_path/'c.json')
    assert other.hist == hist and said(hist[0]) == '[image]\nWhat is it?\n[audio]'


# --- a conversation ---------------------------------------------------------------------------------------------------
def test_a_valid_conversation_is_a_copy_of_itself():
    got = checked(tuple(TALK))
    assert got == TALK and got[1] is not TALK[1]
    got[1]['tool_calls'][0]['function']['arguments']['a'] = 9
    assert TALK[1]['tool_calls'][0]['function']['arguments']['a'] == 2
    assert checked(iter(TALK)) == TALK and checked([]) == []


@pytest.mark.parametrize('bad,says', [
    ('hello', 'not a str'), ({'role': 'user'}, 'not a dict'), (3, 'not a int'), (None, 'not a NoneType'),
    (['hello'], 'Message 1'), ([user('x'), {'content': 'y'}], 'Message 2'), ([{'role': 'elf', 'content': 'x'}], 'role'),
    ([{'role': 'user'}], 'no content'), ([user(None)], 'no content'), ([user(3)], 'no content'),
    ([user([3])], 'no content'), (b'x', 'not a bytes'),
    ([result('a')], 'answers no tool call'), ([*TALK, result('call_1')], 'answers no tool call'),
    ([user('x'), bot('', tool_calls=ask('a')), result('b')], 'answers no tool call'),
    ([user('x'), bot('', tool_calls=ask('a')), user('y'), result('a')], 'Message 4 .* answers no'),
    ([user('x'), bot('', tool_calls=ask('a', 'a'))], 'an id of its own'),
    ([user('x'), bot('', tool_calls=ask(''))], 'an id of its own'), ([bot('', tool_calls=[{'id': 'a'}])], 'a function'),
    ([bot('', tool_calls=[3])], 'a function'), ([bot('', tool_calls={'id': 'a'})], 'a function')])
def test_what_is_no_conversation(bad, says):
    with pytest.raises(BadRequest, match=says): checked(bad)
    if bad is not None:
        with pytest.raises(BadRequest, match=says): script(messages=bad)


@pytest.mark.parametrize('after', [[], [user('and?')], [result('b')], [result('b'), bot('So.')]])
def test_calls_without_an_answer_are_answered(after):
    got = checked([user('x'), bot('', tool_calls=ask('a', 'b')), *after])
    answers = [m for m in got if m['role'] == 'tool']
    assert sorted(m['tool_call_id'] for m in answers) == ['a', 'b'] and got[2]['role'] == got[3]['role'] == 'tool'
    assert {m['content'] for m in answers if m['tool_call_id'] == 'a'} == {INTERRUPTED} and checked(got) == got


def test_an_empty_answer_is_left_out():
    assert checked([user('x'), bot(''), user('y'), bot(None), bot('', thinking='hm')]) == [user('x'), user('y'),
                                                                                       bot('', thinking='hm')]


@given(st.lists(st.one_of(
    st.builds(user, st.text()), st.builds(bot, st.text()),
    st.builds(lambda i: bot('', tool_calls=ask(*i)), st.lists(st.sampled_from('abc'), min_size=1, unique=True)),
    st.builds(result, st.sampled_from('abc')))))
def test_whatever_passes_is_valid_and_stays_so(messages):
    try: hist = checked(messages)
    except BadRequest: return
    assert checked(hist) == hist and from_wire(to_wire(hist)) == hist
    open_ = []
    for m in hist:
        if m['role'] == 'tool': open_.remove(m['tool_call_id'])
        else:
            assert not open_
            open_ = [c['id'] for c in m.get('tool_calls', ())]
    assert not open_ and all(m['role'] != 'assistant' or m['content'] or m.get('tool_calls') for m in hist)


def test_turns_begin_with_the_words_of_the_user():
    assert turns([bot('hi'), user('a'), bot('b'), follow_up('out', 'code'), bot('c'), user('d')]) == [1, 5]


# --- messages= --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('content', ['Be kind.', [{'type': 'text', 'text': 'Be kind.'}]])
def test_a_system_message_becomes_the_system_prompt(content):
    given = [{'role': 'system', 'content': content}, *TALK]
    chat = script(messages=given)
    assert chat.sp == 'Be kind.' and chat.hist == TALK and len(given) == 5
    assert script(messages=given, sp='Be brief.').sp == 'Be brief.'
    assert script(messages=given, sp='Be brief.').hist == TALK, 'there is one system prompt'


def test_the_wire_form_will_do():
    chat = script('So.', messages=to_wire(TALK))
    assert chat.hist == TALK and resp_text(chat('x')) == 'So.'


@pytest.mark.needs('llama')
def test_a_conversation_is_carried_between_engines(tiny):
    first = script('<think>\nThe user is called Zora.\n</think>\n\nNice to meet you, Zora!')
    first('My name is Zora.')
    second = Chat(engine=tiny, temp=0, messages=first.hist)
    assert resp_text(second('What is my name?')) == 'Your name is Zora.' and len(first.hist) == 2
    third = script('Bye.', messages=second.hist)
    third('Bye')
    assert third.hist[:4] == second.hist and 'Your name is Zora.' in third.engine.prompts[0]


# --- the file ---------------------------------------------------------------------------------------------------------
def test_save_and_load(tmp_path):
    call = "<tool_call>" + dumps({"name": "f", "arguments": {"x": "é\n"}}) + "</tool_call>"
    chat = script('<think>hm</think>' + call, 'Grüße 🧠', sp='Sei nett.', tools={'f': lambda x: x})
    chat('Hallo')
    chat.save(tmp_path/'talk.json')
    other = script('next')
    other.load(str(tmp_path/'talk.json'))
    assert other.hist == chat.hist and other.sp == 'Sei nett.'
    assert 'Grüße 🧠' in (tmp_path/'talk.json').read_text('utf-8')
    assert resp_text(other('go on')) == 'next' and len(chat.hist) == 4


def test_half_a_surrogate_pair_is_kept(tmp_path):
    chat = script(messages=[user('x'), bot('', tool_calls=ask('a', args={'s': '\ud83d'}))])
    chat.save(tmp_path/'c.json')
    before = chat.hist
    chat.load(tmp_path/'c.json')
    assert chat.hist == before


@pytest.mark.parametrize('text', [
    '', '{', 'null', '[]', '3', '"x"', '{"rishi": 99, "sp": "", "hist": []}', '[' * 100_000, '{"rishi": 1, "sp": ""}',
    '{"rishi": 1, "hist": []}', '{"rishi": 1, "sp": 3, "hist": []}', b'\xff\xfe\x00',
    '{"rishi": 1, "sp": "", "hist": [{"role": "tool", "content": "x"}]}'], ids=range(13))
def test_a_damaged_file_is_refused_and_the_chat_stays(tmp_path, text):
    (tmp_path/'c.json').write_bytes(text if isinstance(text, bytes) else text.encode())
    chat = script(messages=TALK, sp='Be kind.')
    with pytest.raises(BadRequest): chat.load(tmp_path/'c.json')
    assert chat.hist == TALK and chat.sp == 'Be kind.'


def test_every_cut_of_a_file_is_refused(tmp_path):
    script(messages=TALK).save(tmp_path/'c.json')
    whole, chat = (tmp_path/'c.json').read_bytes(), script()
    for n in range(0, len(whole), 7):
        (tmp_path/'c.json').write_bytes(whole[:n])
        with pytest.raises(BadRequest): chat.load(tmp_path/'c.json')
    assert chat.hist == []


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    chat, path = script(messages=TALK), tmp_path/'c.json'
    chat.save(path)
    before = path.read_bytes()
    chat.hist.append(user({1, 2}))
    with pytest.raises(BadRequest, match='not plain JSON'): chat.save(path)
    chat.hist.pop()
    def full(*args, **kw): raise OSError(28, 'No space left on device')
    with monkeypatch.context() as m:
        m.setattr('pathlib.Path.replace', full)
        with pytest.raises(BadRequest, match='No space left'): chat.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ['c.json']


@pytest.mark.parametrize('name', ['none/c.json', '.'])
def test_places_that_cannot_be(tmp_path, name):
    with pytest.raises(BadRequest, match='cannot be saved'): script().save(tmp_path/name)
    with pytest.raises(BadRequest, match='cannot be read'): script().load(tmp_path/name)
    assert os.listdir(tmp_path) == []


# --- for people -------------------------------------------------------------------------------------------------------
def test_a_conversation_reads_as_markdown(capsys):
    chat = script(sp='Be kind.', messages=[*TALK[:3], bot('It is 5.', thinking='Two\nlines')])
    chat.print_hist()
    want = ('**System** · Be kind.\n\n**User** · What is 2+3?\n\n⏳ `f({"a": 2, "b": 3})`\n\n**Tool** · 5\n\n'
            '> 🧠 Two\n> lines\n\n**Assistant** · It is 5.')
    assert capsys.readouterr().out == want + '\n' and chat._repr_markdown_() == want
    assert as_markdown([]) == ''


@pytest.mark.parametrize('text,end', [('```py\nx', '\n```'), ('~~~~\n```\nx', '\n~~~~'), ('`x`', ''),
                                      ('```\nx\n```', ''), ('```\nx\n`````\n````', '\n````')])
def test_an_open_fence_does_not_swallow_the_next_turn(text, end):
    assert as_markdown([bot(text), user('next')]) == f'**Assistant** · {text}{end}\n\n**User** · next'
