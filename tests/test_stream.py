"A turn as Markdown pieces, and their display in a terminal and in a kernel."
import sys
import types
from json import dumps

import pytest

from rishi import Chat, PyFenceCallback, display_stream
from rishi.stream import Markdown, markdown
from rishi.testing import ScriptedEngine
from rishi.types import ApprovalNeeded, Progress, TextDelta, ThinkingDelta, ToolCall, ToolResult

CALL, STEP = ToolCall('add', {'a': 2, 'b': 'é'}, 'c1'), Progress('prefill', 1, 2)
THINK = '> **🧠 Thinking**\n>\n> '


def call(name, **args): return f'<tool_call>\n{dumps({"name": name, "arguments": args})}\n</tool_call>'


# --- events to Markdown -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize('events,want', [
    ([], ''),
    ([STEP], ''),
    ([TextDelta('a'), TextDelta('b\n\nc')], 'ab\n\nc'),
    ([ThinkingDelta('a'), ThinkingDelta('b\nc\n\nd')], THINK + 'ab\n> c\n> \n> d'),
    ([STEP, ThinkingDelta('hm'), TextDelta('4')], THINK + 'hm\n\n4'),
    ([CALL, ToolResult(CALL, '5')], '⏳ `add(a=2, b="é")`\n\n→ `5`'),
    ([CALL, ApprovalNeeded(CALL), ToolResult(CALL, 'no', 'denied')], '⏳ `add(a=2, b="é")`\n\n→ `denied`'),
    ([CALL, CALL], '⏳ `add(a=2, b="é")`\n\n⏳ `add(a=2, b="é")`'),
    ([ThinkingDelta('a'), TextDelta('b'), CALL, ToolResult(CALL, '5'), STEP, ThinkingDelta('c'), TextDelta('d')],
     THINK + 'a\n\nb\n\n⏳ `add(a=2, b="é")`\n\n→ `5`\n\n' + THINK + 'c\n\nd'),
    ([TextDelta('```\nx\n```'), STEP, TextDelta('so')], '```\nx\n```\n\nso'),
    ([ThinkingDelta('a'), STEP, ThinkingDelta('b')], THINK + 'a\n\n' + THINK + 'b'),
    ([ThinkingDelta(''), TextDelta(''), TextDelta('a'), TextDelta('')], 'a'),
    ([ToolResult(CALL, 'a\n`b`' + 'x' * 300)], "→ `a 'b'" + 'x' * 195 + '…`'),
    ([ToolCall('f', {'s': '`\n' * 200})], '⏳ `f(s="' + ("'\\n" * 200)[:195] + '…`')])
def test_exact_markdown(events, want):
    pieces = list(markdown(events))
    assert ''.join(pieces) == want and '' not in pieces


def test_leaving_the_pieces_closes_the_events():
    closed = []
    def events():
        try: yield from [TextDelta('a'), TextDelta('b')]
        finally: closed.append(True)
    pieces = markdown(events())
    assert next(pieces) == 'a'
    pieces.close()
    assert closed


def test_steps_of_a_turn_stand_apart():
    code = '```python\nprint(1)\n```'
    chat = Chat(engine=ScriptedEngine([code, 'It is 1.']), cbs=PyFenceCallback(approve=lambda c: True))
    assert ''.join(chat('go', stream=True)) == code + '\n\n⏳ `python(code="print(1)")`\n\n→ `1`\n\nIt is 1.'


def test_pieces_are_those_of_the_model_whatever_their_size():
    def add(a: int, b: int): return a + b
    def said(size):
        replies = ['<think>\nI add.\n</think>\n\nLet me see.\n' + call('add', a=2, b=3), 'It is 5.']
        return ''.join(Chat(engine=ScriptedEngine(replies, size=size), tools=[add])('go', stream=True))
    want = THINK + 'I add.\n\nLet me see.\n\n⏳ `add(a=2, b=3)`\n\n→ `5`\n\nIt is 5.'
    assert {said(n) for n in (1, 2, 3, 7, 1000)} == {want}


@pytest.mark.needs('llama')
def test_a_model_that_thinks_and_calls(tiny):
    def add(a: int, b: int):
        "Add two numbers."
        return a + b
    text = ''.join(Chat(engine=tiny, temp=0, tools=[add])('What is 5 plus 7?', stream=True))
    thought, _, rest = text.partition('\n\n⏳ ')
    assert thought.startswith(THINK) and rest.startswith('`add(a=5, b=7)`\n\n→ `12`\n\n')
    assert rest.endswith('The answer is 12.')


# --- shown ------------------------------------------------------------------------------------------------------------
def test_in_a_terminal(capsys):
    text = display_stream(Chat(engine=ScriptedEngine(['Hello *you*']))('hi', stream=True))
    assert capsys.readouterr().out == 'Hello *you*\n' and text == 'Hello *you*' == text._repr_markdown_()
    assert isinstance(text, Markdown)


@pytest.fixture
def shown(monkeypatch):
    "What a display in a kernel was told, in order. (tests/test_aio.py has a real kernel.)"
    seen = []
    handle = types.SimpleNamespace(update=lambda o: seen.append(o._repr_markdown_()))
    display = types.SimpleNamespace(display=lambda o, display_id: seen.append(o._repr_markdown_()) or handle)
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, 'IPython', types.SimpleNamespace(get_ipython=lambda: shell, display=display))
    return seen


def test_a_kernel_gets_few_updates_and_all_of_the_text(shown):
    "CASES 46."
    text = display_stream('word ' for _ in range(4000))
    assert text == 'word ' * 4000 == shown[-1] and shown[0] == '' and len(shown) < 40


def test_a_display_shows_what_there_was_before_an_error(shown, capsys):
    def pieces():
        yield from ['a', 'b', 'c']
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): display_stream(pieces())
    assert shown[-1] == 'abc' and capsys.readouterr().out == ''
