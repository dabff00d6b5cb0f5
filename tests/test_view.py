"The fold of a turn, its HTML and its text; what a running view is sent."
import re
from dataclasses import replace

import pytest
from test_markdown import Reader
from turns import ANSWER, HEADER, done, pieces, prefill, turn

from rishi.errors import BadRequest, ContextWindowExceededError
from rishi.types import ApprovalNeeded, Progress, Resp, TextDelta, ThinkingDelta, ToolCall, ToolResult
from rishi_jupyter import fold, view
from rishi_jupyter.fold import Answer, Card, Said, State, Thought

ADD, MAIL = ToolCall('add', dict(x=1, y='<b>'), 'c1'), ToolCall('send', dict(to='ana'), 'c2')


def after(*timed, **kw):
    "The state after events: `(seconds, event)` pairs."
    state = State(header=HEADER, **kw)
    for t, e in timed: state = fold.apply(state, e, t)
    return state


def at(events, start=0.0, step=.1): return [(start + i * step, e) for i, e in enumerate(events)]
def words(html): return ' '.join(Reader(re.sub(r'<style>.*?</style>', '', html)).text.split())


# --- the fold -------------------------------------------------------------------------------------------------------
def test_a_turn_is_folded():
    s = after(*at([*prefill(1), ThinkingDelta('a'), ThinkingDelta('b'), TextDelta('c', 2), TextDelta('d'), done()]))
    assert s.parts == (Thought('ab', pytest.approx(.2), pytest.approx(.4)), Said('cd'))
    assert (s.phase, s.over, s.tokens, s.t) == ('done', True, 5, pytest.approx(.6))


def test_the_fold_is_pure():
    s = State(header=HEADER)
    assert fold.apply(s, TextDelta('x'), 1.0) == fold.apply(s, TextDelta('x'), 1.0) and s == State(header=HEADER)


@pytest.mark.parametrize('n', [1, 3, 10**6])
def test_the_chunking_does_not_show(n):
    s = after(*at(turn(n=n), step=0))
    assert view.html(s, sheet=False) == view.html(after(*at(turn(), step=0)), sheet=False)


def test_tools_go_from_asked_to_done():
    s = after((0, ADD), (1, ToolResult(ADD, '2', None, .004)), (2, MAIL), (3, ApprovalNeeded(MAIL)))
    assert [type(p) for p in s.parts] == [Card, Card] and s.phase == 'approval'
    assert s.parts[0].result.content == '2' and s.parts[1].asked
    s = fold.apply(s, ToolResult(MAIL, 'denied', 'denied by you'), 4)
    assert s.parts[1].result.error and not s.parts[1].asked and s.phase == 'tool'


def test_a_result_without_deltas_is_shown(): assert after((1, done('all at once'))).parts == (Said('all at once'),)


def test_no_event():
    with pytest.raises(TypeError): fold.apply(State(), 'text', 0)


# --- words ----------------------------------------------------------------------------------------------------------
PROMPT = (.1, Progress('prefill', 873, 873, 832))
STATES = [
    ([], 'Starting'),
    ([(1, Progress('download', 1_980_000_000, 3_110_000_000))],
     'Downloading the model tiny · Q8_0 1.98 of 3.11 GB · 64 %'),
    ([(1, Progress('load', 640, 1000))], 'Loading the model tiny · Q8_0 64 %'),
    ([(0, Progress('wait', 0, 0))], 'Waiting for another turn'),
    ([(0, Progress('prefill', 0, 1240)), (.9, Progress('prefill', 471, 1240))],
     'Reading the prompt 38 % of 1,240 tokens about 1.5 s to go 0.9 s'),
    ([(0, Progress('prefill', 150, 200, 100))], 'Reading the prompt 50 % of 100 tokens'),
    ([PROMPT, (.2, ThinkingDelta('I', 68)), (2.3, ThinkingDelta(' see', 68))], 'Thinking 2.1 s 136 tokens'),
    ([PROMPT, (.2, TextDelta('Yes', 23)), (.5, done(reason='cancelled', generated=23))],
     'Yes [stopped here] Stopped by you after 23 tokens. The partial answer is kept'),
    ([(.2, TextDelta('Yes', 3)), (.5, done(reason='length', generated=3))],
     'Stopped at the limit of 3 tokens, which --max-tokens sets.'),
    ([(.2, ThinkingDelta('hm', 3)), (.5, replace(done(), resp=Resp(meta={'notice': 'It stopped inside.'})))],
     'No answer. It stopped inside.'),
    ([(0, MAIL), (0, ApprovalNeeded(MAIL))], "The model asks to run send(to='ana') Nothing runs until you choose."),
    ([(0, ADD)], "add(x=1, y='<b>') running"),
    ([(0, ADD), (1, ToolResult(ADD, '2', None, .004))], "add(x=1, y='<b>') → 2 4 ms"),
    ([(0, ADD), (1, ToolResult(ADD, '', 'no number'))], 'failed: no number'),
    ([(0, ThinkingDelta('I see')), (3.2, TextDelta('Yes')), (4, done())],
     'main tiny · Q8_0 turn 3 · 4.0 s Thought for 3.2 s')]


@pytest.mark.parametrize('timed, said', STATES, ids=[s[1][:24] for s in STATES])
def test_words(timed, said): assert said in words(view.html(after(*timed)))


@pytest.mark.parametrize('timed, said', STATES, ids=[s[1][:24] for s in STATES])
def test_static_html_is_whole(timed, said):
    html = view.html(after(*timed))
    r = Reader(re.sub(r'<style>.*?</style>', '', html))
    assert r.open == [] and r.wrong == [] and html.count('<style>') == 1
    assert not [a for a in r.attrs if a[1] in ('id', 'data-live', 'data-slot', 'data-since')] and 'button' not in r.tags
    assert not re.search(r'(?:src|href|url)\s*[=(]', html.replace('<style>', ''))


def test_a_question_has_buttons_only_where_they_are_heard():
    asked = (0, MAIL), (0, ADD), (0, ApprovalNeeded(MAIL))
    deaf = view.question(after(*asked, about=dict(send='Send a mail')), live=True)
    assert 'button' not in deaf and 'Send a mail. Nothing runs until you choose.' in words(deaf)
    assert view.question(after(*asked, buttons=True), live=True).count('<button') == 3
    assert 'button' not in view.question(after(*asked, buttons=True)) and 'waiting' in words(view.html(after(*asked)))


def test_a_question_shows_the_whole_call():
    long = ToolCall('sh', dict(cmd='x' * 5000 + '\u202e<b>; rm'), 'c')
    html = view.question(after((0, long), (0, ApprovalNeeded(long))))
    assert 'x' * 5000 + '\\u202e&lt;b&gt;; rm' in html and len(view.clipped(long)) == 160


@pytest.mark.parametrize('answer,result,said', [
    (Answer(True), ToolResult(MAIL, 'sent', None, .004), "sent 4 ms to 'ana' approved by you result sent"),
    (Answer(True, always=True), ToolResult(MAIL, 'ok'), "ok < 1 ms to 'ana' approved by you, from now on"),
    (Answer(False), ToolResult(MAIL, 'No.', 'No.'), 'denied by you to'),
    (Answer(False, why='late'), ToolResult(MAIL, 'No: late', 'No: late'), 'denied by you: late to'),
    (None, ToolResult(MAIL, 'No: off', 'No: off'), 'not run: off to'),
    (Answer(True), ToolResult(MAIL, 'Error: E: x', 'E: x', .002), 'failed: E: x 2 ms to')])
def test_what_came_of_a_question(answer, result, said):
    s = fold.decide(after((0, MAIL), (1, ApprovalNeeded(MAIL))), MAIL, answer, 5)
    assert s.phase == 'tool' and s.parts[0].began == 5 and not view.question(s)
    s = fold.apply(s, result, 6)
    assert f"send(to='ana') → {said}" in words(view.html(s))
    assert view.text(s).startswith(f"send(to='ana') → {view.outcome(s.parts[0])}")


def test_running_html_has_what_acts():
    html = view.html(after((0, MAIL), (0, ApprovalNeeded(MAIL)), buttons=True), live=True)
    assert html.count('<button') == 3 and 'Stop' not in html and 'data-answer="always"' in html


@pytest.mark.parametrize('error, what, rest', [
    (ContextWindowExceededError(9120, 8192, 'Use `--new`.'), 'The prompt does not fit.',
     'It has 9,120 tokens; the window holds 8,192. Use --new. Chat unchanged.'),
    (BadRequest('temp=7 cannot be used: it must be a number from 0 to 1.'), 'temp=7 cannot be used.',
     'It must be a number from 0 to 1. Chat unchanged.'),
    (BadRequest('No model.'), 'No model.', 'Chat unchanged.'),
    (KeyError('<x>'), 'The turn failed.', "KeyError: '<x>' Chat"),
    (BadRequest(''), 'The turn failed.', 'Chat unchanged.')])
def test_errors_are_told(error, what, rest):
    s = fold.fail(after(PROMPT), error, 1)
    html = view.html(s)
    assert f'title="{type(error).__name__}"' in html and Reader(re.search('<b>.*?</b>', html)[0]).text == what
    assert words(html).endswith(rest) or rest in words(html)
    assert view.text(s).startswith(type(error).__name__) and view.status(s) == f'Turn not made: {what[:-1]}'


def test_stopped_before_anything():
    assert 'before the model was ready. Chat unchanged.' in words(view.html(fold.stop(after(), 1)))
    assert 'before the first token.' in words(view.html(fold.stop(after(PROMPT), 1)))


def test_what_may_be_left_out():
    events = at(turn())
    quiet = view.html(after(*events, reasoning=False, stats=False), sheet=False)
    assert 'Thought' not in quiet and 'ri-strip' not in quiet and '161' in quiet
    text = view.text(after(*events, reasoning=False, stats=False))
    assert 'count first' not in text and 'cached' not in text


def test_text_form():
    text = view.text(after((0, ThinkingDelta('I see\nit')), (3.2, TextDelta('Yes \x1b[0m')), (4, done())))
    assert text == ('Thought for 3.2 s:\n  | I see\n  | it\n\nYes ␛[0m\n\n[cached 120 · evaluated 16 · generated 87 · '
                    'first token 0.11 s · 65 tok/s · extends the conversation]')


def test_a_note_stands_above():
    s = after((0, TextDelta('T3')), (1, done()))
    s = fold.replace(s, header=fold.replace(HEADER, note='turn 2 replaced; 3 later turns kept as branch `main@2`'))
    assert 'turn 2 replaced; 3 later turns kept as branch main@2 T3' in words(view.html(s))


def test_only_formulas_are_left_to_mathjax():
    assert '<article class="rishi mathjax_ignore tex2jax_ignore"' in view.html(after(*at(turn())))


# --- what a running view is sent ------------------------------------------------------------------------------------
class Page:
    "What `live.js` keeps: slots in the order they came."

    def __init__(self): self.slots, self.size = {}, 0

    def put(self, ops):
        for key, keep, html in ops:
            old = self.slots.get(key, '').encode('utf-16-le')[:2 * keep].decode('utf-16-le')
            self.slots[key] = old + html
            self.size += len(html)

    def parts(self): return '\n'.join(v for k, v in self.slots.items() if k[0] == 'p')


def stream(events, every=1, **kw):
    from rishi_jupyter.live import Sender
    sender, page, state = Sender(), Page(), State(header=HEADER, **kw)
    for i, e in enumerate(events):
        state = fold.apply(state, e, i * .01)
        if i % every == 0 and not state.over: page.put(sender.changes(state))
    page.put(sender.changes(state))
    return page


@pytest.mark.parametrize('every', [1, 7, 10**6])
@pytest.mark.parametrize('fmt', ['markdown', 'text'])
def test_a_running_view_ends_with_the_whole_answer(every, fmt):
    page = stream(turn('🙂 ' + ANSWER), every, fmt=fmt)
    whole = Reader(view.draw(State(header=HEADER, fmt=fmt), [Said('🙂 ' + ANSWER)])).text.split()
    assert [w for w in Reader(page.parts()).text.split() if w != 'Copy'][-len(whole):] == whole


def test_tools_between_the_answers():
    page = stream([TextDelta('one '), TextDelta('two'), ADD, ToolResult(ADD, '2'), TextDelta('three'), done()], 2)
    text = ' '.join(Reader(page.parts()).text.split())
    assert text.startswith('one two add(') and '→ 2' in text and text.endswith('three')


@pytest.mark.parametrize('answer', [
    'Lorem ipsum dolor.\n\n' * 900, 'one long paragraph ' * 900, '```\n' + 'x = 1\n' * 2600, '- item\n' * 600])
def test_bytes_grow_with_the_answer_not_with_its_square(answer):
    half, whole = (stream(map(TextDelta, pieces(a)), 8).size for a in (answer[:len(answer) // 2], answer))
    assert whole < 3 * half and whole < 12 * len(answer)
