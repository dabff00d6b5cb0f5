"`%%rishi` cells answered by real weights in JupyterLab: the whole way, as its users go it."
import pytest

pytestmark = [pytest.mark.needs('browser'), pytest.mark.needs('llama')]


@pytest.fixture
def model(tiny_chat): return f'{tiny_chat} -o n_threads 1 --temperature 0'


def test_cells_are_turns_of_one_conversation(notebook, model, tmp_path):
    nb = notebook(['%load_ext rishi', f'%%rishi --model {model}\nMy name is Zora.', '%%rishi -t 0\nWhat is my name?',
                   '%rishi status', 'print(_rishi["content"])'])
    nb.run()
    assert 'Nice to meet you, Zora!' in nb.turn(1).inner_text()
    assert 'Your name is Zora.' in nb.turn(2).inner_text() and 'turn 2' in nb.turn(2).inner_text()
    assert 'evaluated' in nb.turn(2).locator('.ri-strip').inner_text()
    assert 'Tiny Chat · Q8_0' in nb.output(3).inner_text()
    assert nb.output(4).inner_text().strip() == 'Your name is Zora.'
    assert 'llama_' not in nb.page.locator('.jp-Notebook').inner_text()       # CASES 21: no native log in a cell
    nb.page.screenshot(path=tmp_path/'cells.png')


def test_stop_ends_a_real_answer_and_keeps_it(notebook, model):
    slow = '''
import time, rishi_jupyter
engine = rishi_jupyter.chat().engine
plain = engine.eval
engine.eval = lambda tokens: (time.sleep(.05), plain(tokens))'''
    nb = notebook(['%load_ext rishi', f'%%rishi --model {model}\nReply with exactly: pong', slow,
                   '%%rishi -t 0\nCount from 1 to 50.', 'print(rishi_jupyter.chat().hist[-1]["meta"]["finish_reason"])',
                   'del engine.eval', '%%rishi -t 0\nReply with exactly: pong'])
    for i in range(3): nb.run(i)
    nb.start(3)
    live = nb.turn(3)
    live.locator('.ri-md', has_text='1, 2').wait_for()
    live.locator('button', has_text='Stop').click()
    nb.idle()
    text = nb.turn(3).inner_text()
    assert 'Stopped by you' in text and '1, 2' in text and '50' not in text
    nb.run(4)
    assert nb.output(4).inner_text().strip() == 'cancelled'
    nb.run(5)
    nb.run(6)
    assert nb.turn(6).locator('.ri-md').inner_text().strip() == 'pong'


def test_a_saved_conversation_reads_without_a_kernel(notebook, lab, model):
    nb = notebook(['%load_ext rishi', f'%%rishi --model {model}\nWhat is 5 + 7?'])
    nb.run()
    saved = nb.save()
    (out,) = saved.cells[1].outputs
    assert set(out.data) == {'text/html', 'text/plain'} and 'The answer is 12.' in out.data['text/plain']
    still = lab.still(nb.path)
    still.turn(1).wait_for()
    assert 'The answer is 12.' in still.turn(1).inner_text()
    assert 'model not found' not in still.page.locator('.jp-Notebook').inner_text()
    still.close(shutdown=False)


def test_a_mistake_is_one_line(notebook):
    nb = notebook(['%load_ext rishi', '%%rishi --temprature 1\nhi', '%%rishi --model nowhere.gguf\nhi'])
    nb.run(0)
    nb.run(1)
    assert '--temperature' in nb.output(1).inner_text() and len(nb.output(1).inner_text().strip().splitlines()) == 1
    nb.run(2)
    assert 'nowhere.gguf' in nb.output(2).inner_text() and 'Traceback' not in nb.output(2).inner_text()
