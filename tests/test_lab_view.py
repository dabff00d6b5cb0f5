"The turn in a real JupyterLab: how it runs, what stops it, what stays, and what hostile text cannot do."
from pathlib import Path

import pytest

ERROR = '[data-mime-type*=stderr]'         # how JupyterLab draws an exception
pytestmark = pytest.mark.needs('browser')

SETUP = f'''
import sys, threading, time; sys.path.insert(0, {str(Path(__file__).parent)!r})
from turns import *
from rishi_jupyter.show import present
stop = threading.Event()
'''


def cells(*code): return [SETUP, *code]


def let(nb, name): (nb.path.parent/name).touch()     # opens the `gate(name)` that the kernel waits at


def test_a_turn_as_it_runs_and_as_it_stays(notebook):
    nb = notebook(cells('''
def slow():
    yield from gate('read')
    yield from prefill()[:3]
    yield from gate('think')
    yield from map(ThinkingDelta, pieces('I count the crates, one by one, and then again.', 4))
    yield from gate('answer')
    yield from map(TextDelta, pieces('There are **161** samples in all of the crates. ' * 2, 4))
    yield from gate('end')
    yield done()
state = present(slow(), HEADER, on_stop=stop.set)
''', 'print(state.phase)'))
    nb.run(0)
    nb.start(1)
    live = nb.turn(1)
    live.locator('b', has_text='Starting').wait_for()
    assert live.get_attribute('aria-busy') == 'true'
    let(nb, 'read')
    live.locator('b', has_text='Reading the prompt').wait_for()
    assert live.locator('progress').get_attribute('value') == '50'
    let(nb, 'think')
    live.locator('summary', has_text='Thinking').click()
    live.locator('.ri-think div', has_text='I count').wait_for()
    let(nb, 'answer')
    live.locator('summary', has_text='Thought for').wait_for()
    assert live.locator('.ri-think div').is_visible()           # who reads the thinking reads on
    live.locator('.ri-md strong').first.wait_for()
    assert live.locator('button', has_text='Stop').is_enabled()
    let(nb, 'end')
    nb.idle()
    final = nb.turn(1)
    assert final.get_attribute('aria-label') == 'Turn 3 of chat main, done'
    assert final.locator('[data-live], button').count() == 0
    assert 'extends the conversation' in final.inner_text()
    assert nb.output(1).locator('article').count() == 1
    nb.run(2)
    assert nb.output(2).inner_text().strip() == 'done'


def test_stop_ends_the_turn_and_keeps_its_text(notebook):
    nb = notebook(cells('''
endless = paced((TextDelta(f'word{i} ') for i in range(10**6)), .03, stop)
state = present(endless, HEADER, on_stop=stop.set)
''', 'print(state.phase, state.parts[0].text.startswith("word0 word1 "))'))
    nb.run(0)
    nb.start(1)
    nb.turn(1).get_by_text('word20').wait_for()
    nb.turn(1).locator('button', has_text='Stop').click()
    nb.idle(timeout=20_000)
    text = nb.turn(1).inner_text()
    assert 'word20' in text and '[stopped here]' in text and 'Stopped by you after 23 tokens' in text
    assert nb.output(1).locator(ERROR).count() == 0
    nb.run(2)
    assert nb.output(2).inner_text().strip() == 'stopped True'


def test_interrupt_keeps_the_text_and_ends_run_all(notebook):
    nb = notebook(cells('''
endless = paced((TextDelta(f'word{i} ') for i in range(10**6)), .03, stop)
present(endless, HEADER, on_stop=stop.set)
''', 'print("went on")', 'print(stop.is_set())'))
    nb.start()
    nb.turn(1).get_by_text('word20').wait_for()
    nb.interrupt()
    nb.page.wait_for_function("() => /KeyboardInterrupt/.test(document.querySelector('.jp-Notebook').innerText)")
    nb.idle()
    assert 'word20' in nb.turn(1).inner_text() and '[stopped here]' in nb.turn(1).inner_text()
    assert nb.output(1).locator(ERROR).inner_text().strip().count('\n') == 0
    assert 'went on' not in nb.output(2).inner_text()
    nb.run(3)
    assert nb.output(3).inner_text().strip() == 'True'


def test_an_error_is_told_in_the_turn_and_raised(notebook):
    nb = notebook(cells('''
from rishi.errors import ContextWindowExceededError
def fails():
    yield from prefill()
    raise ContextWindowExceededError(9120, 2048)
present(fails(), HEADER, on_stop=stop.set)
'''))
    nb.run()
    err = nb.turn(1).locator('.ri-err')
    assert err.locator('b').inner_text() == 'The prompt does not fit.' and 'Chat unchanged.' in err.inner_text()
    assert nb.output(1).locator(ERROR).inner_text().startswith('ContextWindowExceededError: The prompt does not fit')


HOSTILE = r'''<script>window.hit = 1</script> <img src="http://127.0.0.1:9/a.png" onerror="window.hit = 2">
![p](http://127.0.0.1:9/b.png) [click](javascript:window.hit=3) <I am an apple> and <function_call> is a tag name.
<!-- a comment --> <style>body { display: none }</style> <iframe srcdoc="<script>parent.hit = 4</script>"></iframe>
$\style{background-image: url(http://127.0.0.1:9/c.png)}{x}$ $\href{javascript:window.hit=5}{y}$

[r]: http://127.0.0.1:9/d.png "secret"

```python" onmouseover="window.hit=6
left open
# a heading in the code
'''


def test_hostile_text_runs_nothing_asks_nothing_and_hides_nothing(notebook):
    nb = notebook(cells(f'''
hostile = {HOSTILE!r}
def events():
    yield ThinkingDelta(hostile)
    yield from map(TextDelta, pieces(hostile, 40))
    yield from gate('seen')
    yield done()
present(events(), HEADER, on_stop=stop.set)
'''))
    nb.run(0)
    nb.start(1)
    nb.turn(1).locator('pre', has_text='a heading in the code').wait_for()
    live = nb.turn(1).inner_text()
    let(nb, 'seen')
    nb.idle()
    final = nb.turn(1)
    for text in (live, final.inner_text()):
        for s in ('<script>window.hit = 1</script>', '<I am an apple>', '<function_call>', '<!-- a comment -->',
                  '<style>body', 'javascript:window.hit=3', '"secret"', 'left open', '# a heading in the code'):
            assert s in text, s
    for link in final.locator('a').all(): link.hover()
    assert nb.page.evaluate('window.hit') is None
    assert not [u for u in nb.requests if ':9/' in u]
    assert final.locator('img, script, iframe, [onerror], [onmouseover]').count() == 0


def test_prices_stay_prices_and_formulas_are_set(notebook):
    nb = notebook(cells("state = present(iter(turn()), HEADER, on_stop=stop.set)"))
    nb.run()
    turn = nb.turn(1)
    turn.locator('mjx-container').nth(1).wait_for()
    assert turn.locator('mjx-container').count() == 2
    assert 'from $148 to $19' in turn.inner_text()
    assert turn.locator('mjx-container').nth(1).get_attribute('display') == 'true'


def test_a_reopened_notebook_shows_the_turn_without_a_kernel(notebook, lab):
    nb = notebook(cells("present(iter(turn()), HEADER, on_stop=stop.set);"))
    nb.run()
    saved = nb.save()
    data = saved.cells[1].outputs[0].data
    assert set(data) == {'text/html', 'text/plain'} and ' data-live>' not in data['text/html']
    again = lab.still(nb.path)
    again.turn(1).get_by_text('161 samples').wait_for()
    assert 'model not found' not in again.page.inner_text('.jp-Notebook')
    assert again.turn(1).locator('.ri-strip').get_by_text('cached 120').is_visible()
    again.close(shutdown=False)


def test_many_chunks_after_a_silence(notebook):
    nb = notebook(cells('''
from rishi_jupyter import live
sizes, old = [], live.LiveTurn.show
def counted(self, state):
    old(self, state)
    sizes.append(self.bytes)
live.LiveTurn.show = counted
text = ('Lorem ipsum dolor sit. ' * 10 + '\\n\\n') * 69
chunks = pieces(text, 4)[:4000]
def silent():
    time.sleep(1)
    yield from map(TextDelta, chunks)
    yield done()
began = time.monotonic()
state = present(silent(), HEADER, on_stop=stop.set)
took = time.monotonic() - began
''', 'print(len(sizes), len(sizes) <= 20 * took + 2, sizes[-1] < 4 * 16000, state.parts[0].text == "".join(chunks))'))
    nb.run(0)
    nb.start(1)
    nb.turn(1).get_by_text('Starting').wait_for()
    nb.idle()
    nb.run(2)
    updates, few, linear, whole = nb.output(2).inner_text().split()
    assert (few, linear, whole) == ('True', 'True', 'True')
    assert nb.turn(1).inner_text().count('Lorem ipsum dolor') == 690


def test_the_answer_can_be_held_back(notebook):
    nb = notebook(cells('''
def events():
    yield from map(TextDelta, pieces('held back until the end ' * 4))
    yield from gate('held')
    yield done()
present(events(), HEADER, on_stop=stop.set, stream=False);
'''))
    nb.run(0)
    nb.start(1)
    nb.turn(1).locator('b', has_text='Answering').wait_for()
    assert nb.turn(1).locator('button', has_text='Stop').is_visible()
    assert 'held back' not in nb.turn(1).inner_text()
    let(nb, 'held')
    nb.idle()
    assert 'held back until the end' in nb.turn(1).inner_text()


def looks(nb, i, tmp_path, name):
    "Pictures of a turn for a person to look at."
    nb.page.mouse.move(0, 0)
    nb.turn(i).screenshot(path=tmp_path/f'{name}.png')


@pytest.mark.parametrize('width', [1400, 800])
def test_both_themes(notebook, tmp_path, width):
    nb = notebook(cells("present(iter(turn()), HEADER, on_stop=stop.set);"), size=(width, 1100))
    nb.run()
    colours = []
    for dark in (False, True):
        nb.theme(dark)
        looks(nb, 1, tmp_path, f'{width}-{"dark" if dark else "light"}')
        colours.append(nb.turn(1).evaluate('e => getComputedStyle(e).color'))
        wide = nb.turn(1).evaluate('e => e.scrollWidth <= e.clientWidth')
        assert wide, 'the turn fits its column'
    nb.theme(False)
    assert colours[0] != colours[1]
