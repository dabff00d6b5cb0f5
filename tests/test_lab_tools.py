"Tools in a real JupyterLab: the question and its buttons, what is answered, what stays."
import pytest
from test_cell_tools import SETTINGS, TOOLS
from test_lab_view import let

pytestmark = [pytest.mark.needs('browser'), pytest.mark.needs('llama')]

# Files stand in for slow tools: a call waits until the test has looked.
SETUP = f'''
%load_ext rishi
{SETTINGS}
import time
from pathlib import Path
from rishi_jupyter import show
show.PATIENCE = 60
{TOOLS}
ran = []
def multiply(x: int, y: int):
    "Multiply two numbers."
    while not Path('go').exists(): time.sleep(.02)
    ran.append((x, y))
    return x * y
'''
# What ipykernel 6 does: no click is heard before the cell has ended.
DEAF = 'from rishi_jupyter import live, show\nshow.PATIENCE = .2\nlive.LiveTurn._heard = lambda self, message: None'
DENIED = 'The tool call was denied, so I cannot answer.'


@pytest.fixture
def ask(notebook, tiny_chat):
    "`ask(*cells)`: a notebook with the tools ready; `MODEL` in a cell is the tiny model."
    def make(*cells, **kw):
        nb = notebook([SETUP, *(c.replace('MODEL', str(tiny_chat)) for c in cells)], **kw)
        let(nb, 'go')
        nb.run(0)
        return nb
    return make


def question(nb, i):
    "The question that stands in cell `i`, its buttons alive."
    q = nb.turn(i).locator('.ri-ask')
    q.get_by_role('button', name='Approve', exact=True).wait_for()
    return q


def press(nb, i, name): question(nb, i).get_by_role('button', name=name, exact=name != 'Always').click()


TIMES = '%%rishi MODEL -T multiply --approve ask\nWhat is 3 times 4?'


def test_approve_runs_the_tool(ask, tmp_path):
    nb = ask(TIMES, 'print(ran)')
    (nb.path.parent/'go').unlink()
    nb.start(1)
    q = question(nb, 1)
    assert q.inner_text().split('\n')[0] == 'The model asks to run multiply(x=3, y=4)'
    assert 'Multiply two numbers. Nothing runs until you choose.' in q.inner_text()
    assert nb.turn(1).get_attribute('aria-label') == 'Turn 1 of chat main, waiting for you'
    assert q.locator('[role=alert]').is_visible() and nb.turn(1).get_by_role('button', name='Stop').count() == 0
    nb.page.wait_for_timeout(500)
    nb.turn(1).screenshot(path=tmp_path/'ask.png')
    press(nb, 1, 'Approve')
    nb.turn(1).locator('.ri-tool', has_text='running').wait_for()
    assert nb.turn(1).locator('.ri-ask').count() == 0 and nb.turn(1).get_by_role('button', name='Stop').is_visible()
    nb.turn(1).screenshot(path=tmp_path/'running.png')
    let(nb, 'go')
    nb.idle()
    card = nb.turn(1).locator('details.ri-tool')
    assert card.locator('summary').inner_text().startswith('multiply(x=3, y=4)') and '12' in card.inner_text()
    card.locator('summary').click()
    assert 'approved\nby you' in card.inner_text()
    assert card.locator('dt', has_text='approved').bounding_box()['height'] < 30     # the host's rules are off
    assert 'The answer is 12.' in nb.turn(1).inner_text() and nb.turn(1).locator('button, [data-live]').count() == 0
    nb.turn(1).screenshot(path=tmp_path/'done.png')
    nb.run(2)
    assert nb.output(2).inner_text().strip() == '[(3, 4)]'


def test_deny_does_not(ask):
    nb = ask(TIMES, 'print(ran)')
    nb.start(1)
    press(nb, 1, 'Deny')
    nb.idle()
    assert 'denied by you' in nb.turn(1).inner_text() and DENIED in nb.turn(1).inner_text()
    nb.run(2)
    assert nb.output(2).inner_text().strip() == '[]'


def test_always_asks_no_more_for_that_function(ask):
    nb = ask(TIMES, '%%rishi\nWhat is 5 times 6?', '%%rishi -T add,multiply\nWhat is 5 plus 7?', '%rishi tools')
    nb.start(1)
    press(nb, 1, 'Always')
    nb.idle()
    nb.run(2)
    assert 'The answer is 30.' in nb.turn(2).inner_text()
    nb.start(3)
    assert 'add(a=5, b=7)' in question(nb, 3).inner_text()
    press(nb, 3, 'Approve')
    nb.idle()
    assert 'The answer is 12.' in nb.turn(3).inner_text()
    nb.run(4)
    assert 'you said “Always”' in nb.output(4).inner_text() and 'you are asked' in nb.output(4).inner_text()


def test_two_questions_are_put_one_after_the_other(ask, tmp_path):
    nb = ask('%%rishi MODEL -T get_weather --approve ask\nWhat is the weather in Paris and London?')
    nb.start(1)
    assert "get_weather(city='Paris')" in question(nb, 1).inner_text()
    waiting = nb.turn(1).locator('.ri-tool', has_text='waiting')
    assert "get_weather(city='London')" in waiting.inner_text()
    nb.page.wait_for_timeout(500)
    nb.turn(1).screenshot(path=tmp_path/'two.png')
    # a double click answers one question
    question(nb, 1).get_by_role('button', name='Approve', exact=True).dblclick(delay=10)
    nb.turn(1).locator('.ri-ask', has_text='London').wait_for()
    press(nb, 1, 'Deny')
    nb.idle()
    cards = nb.turn(1).locator('details.ri-tool')
    assert 'sunny' in cards.nth(0).inner_text() and 'denied by you' in cards.nth(1).inner_text()
    nb.turn(1).screenshot(path=tmp_path/'two-done.png')


def test_an_interrupt_while_asking_ends_the_turn(ask):
    nb = ask(TIMES, 'import rishi_jupyter, rishi.history as h\nhist = rishi_jupyter.chat().hist\n'
             'print(ran, hist[-1]["content"], h.checked(hist) == hist)', '%%rishi\nReply with exactly: pong')
    nb.start(1)
    question(nb, 1)
    nb.interrupt()
    nb.page.wait_for_function("() => /KeyboardInterrupt/.test(document.querySelector('.jp-Notebook').innerText)")
    nb.idle()
    assert 'Stopped by you' in nb.turn(1).inner_text() and nb.turn(1).locator('.ri-ask').count() == 0
    nb.run(2)
    assert nb.output(2).inner_text().strip() == '[] Error: interrupted before it ran True'
    nb.run(3)
    assert 'pong' in nb.turn(3).locator('.ri-md').inner_text()


def test_a_failed_call_is_told_in_its_card(ask, tmp_path):
    nb = ask('%%rishi MODEL -T subtract\nWhat is 12 minus 5?')
    nb.run(1)
    card = nb.turn(1).locator('details.ri-tool.ri-bad')
    assert 'failed: ValueError: disk on fire' in card.inner_text()
    assert 'The tool failed: disk on fire' in nb.turn(1).inner_text()
    nb.turn(1).screenshot(path=tmp_path/'failed.png')


def test_where_clicks_do_not_arrive_the_answer_is_typed(ask, tmp_path):
    nb = ask(DEAF, TIMES)
    nb.run(1)
    nb.start(2)
    box = nb.output(2).locator('.jp-Stdin-input')
    box.wait_for()
    assert 'The model asks to run multiply(x=3, y=4)' in nb.turn(2).inner_text()
    assert nb.turn(2).get_by_role('button').count() == 0
    nb.cell(2).screenshot(path=tmp_path/'typed.png')
    box.fill('y')
    box.press('Enter')
    nb.idle()
    assert 'The answer is 12.' in nb.turn(2).inner_text()


def test_an_interrupt_while_typing_ends_the_turn(ask):
    nb = ask(DEAF, TIMES, 'print(ran)')
    nb.run(1)
    nb.start(2)
    nb.output(2).locator('.jp-Stdin-input').wait_for()
    nb.interrupt()
    nb.page.wait_for_function("() => /KeyboardInterrupt/.test(document.querySelector('.jp-Notebook').innerText)")
    nb.idle()
    assert 'Stopped by you' in nb.turn(2).inner_text()
    nb.run(3)
    assert nb.output(3).inner_text().strip() == '[]'
