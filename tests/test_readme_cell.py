"The cell that the README shows first, as it stands there: fetched from a hub, loaded, answered, and again without one."
from pathlib import Path

import pytest
from hub_standin import standin
from test_magics import execute, plain

CELL = '%%rishi --model Qwen/Qwen3-0.6B-GGUF'
REPO = 'Qwen/Qwen3-0.6B-GGUF'


@pytest.fixture
def server(monkeypatch, tmp_path):
    with standin() as s: yield s.env(monkeypatch, tmp_path/'hf')


def test_the_readme_shows_the_cell(): assert f'{CELL}\n' in (Path(__file__).parents[1]/'README.md').read_text('utf-8')


@pytest.mark.needs('llama')
def test_the_cell_fetches_the_model_and_answers(server):
    setup = '%load_ext rishi\n%config Rishi.options = {"n_threads": 1}\n%config Rishi.temperature = 0'
    out = execute(setup, f'{CELL}\nReply with exactly: pong', f'{CELL}\nReply with exactly: ping', '%rishi models')
    assert 'pong' in plain(out[1]) and 'ping' in plain(out[2])
    assert 'Qwen3 0.6B · Q8_0' in out[1][-1].data['text/html']
    assert len(server.files_asked()) == 1     # fetched once
    assert 'Qwen3-0.6B-Q8_0.gguf' in plain(out[3])
    server.down()
    assert 'pong' in plain(execute(setup, f'{CELL}\nReply with exactly: pong')[1])


@pytest.mark.needs('llama')
def test_without_the_hub_the_cell_says_so_in_one_line(server):
    server.down()
    out = execute('%load_ext rishi', f'{CELL}\nhi', '%%rishi -c b --max-tokens 1\nhi', allow_errors=True)
    (error,) = [o for o in out[1] if o.output_type == 'error']
    assert REPO in error.evalue and len(error.traceback) == 1 and '\n' not in error.evalue
    assert not [o for o in out[2] if o.output_type == 'error']     # the kernel goes on, with the embedded model
