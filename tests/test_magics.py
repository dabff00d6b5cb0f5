"`%%rishi` and `%rishi` through a real shell, and through a real kernel with a real model."
import subprocess
import sys

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from test_session import Loader
from traitlets.config import Config

from rishi.errors import BadRequest, EngineError, ModelNotFound
from rishi_jupyter import markdown
from rishi_jupyter.magics import COMMANDS, as_written
from rishi_jupyter.request import FORMATS, OPTIONS
from rishi_jupyter.session import Rishi, Session, session_of


@pytest.fixture
def shell():
    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(config=Config(HistoryManager={'enabled': False}))
    sh.run_line_magic('load_ext', 'rishi')
    session_of(sh)._load = Loader(*(f'answer {i}' for i in range(20)))
    yield sh
    InteractiveShell.clear_instance()


def run(shell, cell):
    "Run a cell; its output as a reader of a terminal sees it. Its error is raised."
    with capture_output() as out: result = shell.run_cell(cell)
    if error := result.error_before_exec or result.error_in_exec: raise error
    return out.stdout + '\n'.join(o.data.get('text/plain', '') for o in out.outputs)


def sent(shell, chat='main'):
    "What the last turn of the chat sent."
    return [m['content'] for m in session_of(shell).chats[chat].chat.hist if m['role'] == 'user'][-1]


def refusal(shell, cell, kind=BadRequest):
    with pytest.raises(kind) as e: run(shell, cell)
    assert e.value._render_traceback_() == [f'{kind.__name__}: {e.value}'] and '\n' not in str(e.value)
    return str(e.value)


# --- cells ----------------------------------------------------------------------------------------------------------
def test_a_cell_shows_the_answer_and_binds_it(shell):
    assert 'answer 0' in run(shell, '%%rishi\nhello')
    assert shell.user_ns['_rishi']['content'] == 'answer 0' and sent(shell) == 'hello'
    run(shell, '%%rishi --out ans --chat b\nhello')
    assert shell.user_ns['ans'] is shell.user_ns['_rishi'] and shell.user_ns['ans']['content'] == 'answer 1'


def test_a_cell_has_no_value(shell):
    with capture_output(): assert shell.run_cell('%%rishi\nhello').result is None


@pytest.mark.parametrize('body', [
    '{x: x for x in {1: 2}}', 'const { name, widget } = `${x}`', '{"a": {"b": "$x"}}', '$x costs $5',
    '  leading\n\ttab ', 'blank end   \n\n', 'what?', '%time and !ls', '>>> f(1)\n... g\n2', 'In [1]: x\nOut[1]: 3',
    'a "quote" \\n \\', "it's '''", 'a\x0cb', 'é 🦄 \u2028 end', '%%rishi\ninside', '\n\nlate'])
def test_the_body_reaches_the_model_byte_for_byte(shell, body):
    shell.user_ns['x'] = 'X'
    run(shell, f'%%rishi\n{body}')
    assert sent(shell) == body.removesuffix('\n')


def test_the_line_is_literal(shell):
    shell.user_ns.update(x='X', name='N')
    run(shell, '%%rishi -s "{12} {name} $x costs $5" -c {12}\nhi')
    assert session_of(shell).chats['{12}'].chat.sp == '{12} {name} $x costs $5'
    assert "no chat '{12}$x'" in refusal(shell, '%rishi undo {12}$x')


def test_an_empty_cell(shell):
    for cell in ('%%rishi', '%%rishi\n', '%%rishi -c b\n  \n'): assert 'no message' in refusal(shell, cell)


def test_mistakes_are_one_line_and_touch_nothing(shell):
    assert 'Did you mean --temperature?' in refusal(shell, '%%rishi --temprature 0\nhi')
    assert 'JSON' in refusal(shell, '%%rishi -m {"temperature":0}\nhi')
    assert not session_of(shell).chats and not session_of(shell)._load.loads


def test_an_error_of_the_engine_is_one_line_and_the_next_cell_works(shell):
    loader = session_of(shell)._load
    loader.replies = ('one', EngineError('It broke. Run it again.'), 'two')
    run(shell, '%%rishi\nhi')
    assert 'It broke' in refusal(shell, '%%rishi\nhi', EngineError)
    loader.fail['org/none-GGUF'] = ModelNotFound('There is no org/none-GGUF.')
    refusal(shell, '%%rishi org/none-GGUF\nhi', ModelNotFound)
    assert 'two' in run(shell, '%%rishi\nhi') and session_of(shell).turns('main') == 2


def test_options_reach_the_turn(shell):
    out = run(shell, '%%rishi org/m-GGUF -o n_ctx 512 --max-tokens 1 --no-stream --no-stats -R -f text\nhi')
    assert session_of(shell)._load.loads == [('org/m-GGUF', {'n_ctx': 512})]
    assert shell.user_ns['_rishi']['meta']['finish_reason'] == 'length' and 'cached' not in out


def test_help_of_a_cell(shell):
    for cell in ('%%rishi --help', '%%rishi -h\nhi', '%rishi help options'):
        out = run(shell, cell)
        assert all(f in out for o in OPTIONS for f in o.flags)
    assert not session_of(shell)._load.loads


def test_the_formats_of_the_request_are_those_of_the_view(): assert FORMATS == markdown.FORMATS


# --- the line magic -------------------------------------------------------------------------------------------------
def test_status(shell):
    out = run(shell, '%rishi')
    assert 'SmolLM2' in out and 'by the first %%rishi cell' in out and out == run(shell, '%rishi status')
    run(shell, '%%rishi\nhi'), run(shell, '%%rishi\nagain')
    out = run(shell, '%rishi')
    assert 'Full None' in out and '4096' in out and 'extends the conversation' in out and 'cached' in out
    row = next(line for line in out.splitlines() if line.split()[:1] == ['main'])
    assert ' 2 ' in row and 'of 4,096' in row
    run(shell, '%rishi unload')
    assert 'not loaded' in run(shell, '%rishi')


def test_use(shell):
    run(shell, '%%rishi\nhi')
    assert 'org/x-GGUF' in run(shell, '%rishi use org/x-GGUF')
    run(shell, '%%rishi\nhi')
    assert [m for m, _ in session_of(shell)._load.loads] == [None, 'org/x-GGUF']
    assert 'It is `%rishi use MODEL`' in refusal(shell, '%rishi use')
    refusal(shell, '%rishi use what-is-this'), refusal(shell, '%rishi use a b')


def test_chats_reset_undo(shell):
    assert 'none yet' in run(shell, '%rishi chats') and 'no turns' in run(shell, '%rishi reset')
    for chat in ('main', 'main', 'b'): run(shell, f'%%rishi -c {chat}\nhi')
    out = run(shell, '%rishi chats')
    assert 'main' in out and 'b ' in out
    assert run(shell, '%rishi undo').strip() == 'Turn 2 of chat main is dropped: 1 turn left.'
    assert run(shell, '%rishi reset').strip() == 'Chat main is empty: 1 turn forgotten.'
    assert session_of(shell).turns('main') == 0 and session_of(shell).turns('b') == 1
    assert 'no turn to undo' in refusal(shell, '%rishi undo') and 'no chat' in refusal(shell, '%rishi undo c')
    run(shell, '%rishi undo b')
    assert session_of(shell).turns('b') == 0


def test_stop_and_unload(shell):
    assert run(shell, '%rishi stop').strip() == 'Nothing runs.'
    assert run(shell, '%rishi unload').strip() == 'No model is loaded.'
    run(shell, '%%rishi\nhi')
    assert run(shell, '%rishi unload').startswith('1 model unloaded')
    assert session_of(shell)._load.engines[0].closed
    run(shell, '%%rishi\nhi')
    assert session_of(shell).turns('main') == 2


def test_models(shell, tmp_path, monkeypatch):
    monkeypatch.setenv('HF_HUB_CACHE', str(tmp_path))
    file = tmp_path/'models--org--have-GGUF'/'snapshots'/('0' * 40)/'have-q8_0.gguf'
    file.parent.mkdir(parents=True)
    file.write_bytes(b'GGUF' + bytes(2_000_000))
    out = run(shell, '%rishi models')
    assert all(o in out for o in ('Qwen/Qwen3-0.6B-GGUF', 'org/have-GGUF', 'have-q8_0.gguf: 2 MB'))
    assert 'Loaded' not in out
    run(shell, '%%rishi\nhi')
    assert 'Loaded' in run(shell, '%rishi models')


def test_doctor(shell):
    out = run(shell, '%rishi doctor')
    assert 'Python' in out and 'llama.cpp' in out and 'model can be run' in out


def test_help(shell):
    out = run(shell, '%rishi help')
    assert all(f'%rishi {n}' in out for n in COMMANDS) and out == run(shell, '%rishi --help')
    assert run(shell, '%rishi help undo').startswith('%rishi undo [NAME]  ')
    for topic in ('--top-p', 'top_p', 'top-p'): assert run(shell, f'%rishi help {topic}').startswith('--top-p X  ')
    assert 'Did you mean temperature?' in refusal(shell, '%rishi help temprature')
    assert '--system' in shell.find_line_magic('rishi').__doc__


@pytest.mark.parametrize('line,near', [('statsu', 'status'), ('modles', 'models'), ('rest main', 'reset'), ('dr', '')])
def test_a_mistyped_command(shell, line, near):
    m = refusal(shell, f'%rishi {line}')
    assert 'is no command' in m and (f'Did you mean {near}?' in m if near else 'Did you mean' not in m)


@pytest.mark.parametrize('line', ['what is 2+2', "what's up", '{1: 2} $x', '--temperature 0'])
def test_free_text_is_sent_to_a_cell(shell, line):
    assert 'a cell that begins with %%rishi' in refusal(shell, f'%rishi {line}')


def test_a_line_that_ends_in_a_question_mark_is_ipython_help(shell):
    run(shell, '%rishi what?')   # never reaches the magic; the README says so
    assert not session_of(shell)._load.loads


def test_tables_escape_what_they_show(shell):
    run(shell, "%%rishi -c <img/src=x>\nhi")
    from rishi_jupyter import status
    for t in status.status(session_of(shell)):
        assert '<img' not in t._repr_html_() and 'style' in t._repr_html_()
    assert '&lt;img/src=x&gt;' in status.chats(session_of(shell))[0]._repr_html_()


# --- the extension --------------------------------------------------------------------------------------------------
def test_config(shell):
    run(shell, '%config Rishi.temperature = 0.25')
    run(shell, "%config Rishi.options = {'n_ctx': 256}")
    assert session_of(shell).settings.temperature == .25
    run(shell, '%%rishi\nhi')
    assert session_of(shell)._load.loads == [(None, {'n_ctx': 256})]


def test_a_profile_sets_the_defaults():
    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(config=Config(HistoryManager={'enabled': False}, Rishi={'model': 'p/q-GGUF'}))
    try: assert session_of(sh).settings.model == 'p/q-GGUF'
    finally: InteractiveShell.clear_instance()


def test_loading_the_extension_again_keeps_the_chats(shell):
    run(shell, '%%rishi\nhi')
    session = session_of(shell)
    run(shell, '%reload_ext rishi'), run(shell, '%load_ext rishi_jupyter')
    run(shell, '%%rishi\nhi')
    assert session_of(shell) is session and session.turns('main') == 2
    assert [c for c in shell.configurables if isinstance(c, Rishi)] == [session.settings]
    transforms = shell.input_transformer_manager.cleanup_transforms
    assert transforms[0] is as_written and transforms.count(as_written) == 1


def test_only_rishi_cells_are_taken_as_written(shell):
    for cell in ('1 + 1\n', '%%rishis\nx\n', '%%time\n%%rishi\n', '\n', '', '  %%rishi\n  x\n', '%%rishi?\n', '%rishi'):
        lines = cell.splitlines(keepends=True)
        assert as_written(lines) == lines
    assert run(shell, '>>> print(3)').strip() == '3'
    manager = shell.input_transformer_manager
    assert all(manager.check_complete(c)[0] == 'incomplete' for c in ('%%rishi', '%%rishi\nhi\n'))


def test_without_a_shell_there_is_one_session():
    InteractiveShell.clear_instance()
    assert isinstance(session_of(), Session) and session_of() is session_of()


QUICK = '''
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell.instance(config=Config(HistoryManager={'enabled': False}))
before = set(sys.modules)
shell.run_line_magic('load_ext', 'rishi')
assert shell.find_cell_magic('rishi') and shell.find_line_magic('rishi')
print(*sorted(set(sys.modules) - before))
'''


def test_loading_the_extension_imports_nothing_heavy():
    got = subprocess.run([sys.executable, '-c', QUICK], capture_output=True, text=True, check=True).stdout.split()
    assert {m.split('.')[0] for m in got} <= {'rishi', 'rishi_jupyter', 'IPython'}
    assert {m for m in got if m.startswith('rishi_jupyter')} == {
        'rishi_jupyter', *(f'rishi_jupyter.{m}' for m in ('magics', 'request', 'session', 'status'))}
    assert {m for m in got if m.startswith('rishi.')} == {'rishi.errors', 'rishi.types'}


# --- a kernel and a model -------------------------------------------------------------------------------------------
def execute(*cells, allow_errors=False):
    "The outputs of `cells` in a kernel of their own, one list a cell."
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(nb, timeout=300, kernel_name='python3', allow_errors=allow_errors).execute()
    return [c.outputs for c in nb.cells]


def plain(outputs):
    return '\n'.join(o.get('text') or o.get('data', {}).get('text/plain') or o.get('evalue', '') for o in outputs)


@pytest.mark.needs('llama')
def test_a_conversation_in_a_kernel(tiny_chat):
    out = execute(
        '%load_ext rishi',
        '%config Rishi.options = {"n_threads": 1}\n%config Rishi.temperature = 0\n%config Rishi.think = False',
        f'%%rishi {tiny_chat}\nMy name is Zora.', '%%rishi --out name\nWhat is my name?',
        'import rishi_jupyter as j\nr = j.chat().cache_report()\nprint(name["content"], r.cached, r.why, sep="|")',
        '%rishi', '%%rishi --tempature 0\nhi', '%%rishi\nWhat is my name?', '%rishi unload',
        '%%rishi\nWhat is my name?',
        allow_errors=True)
    assert 'Your name is Zora.' in plain(out[3])
    answer, cached, why = plain(out[4]).strip().split('|')
    assert answer == 'Your name is Zora.' and int(cached) > 10 and f'cached {cached}' in plain(out[3])
    assert why and why in plain(out[3]) and why in plain(out[5])
    html = [o.data['text/html'] for o in out[5]]
    assert any('<table' in h and 'main' in h for h in html)
    (error,) = [o for o in out[6] if o.output_type == 'error']
    assert error.ename == 'BadRequest' and error.traceback == [f'BadRequest: {error.evalue}']
    assert 'Zora' in plain(out[7]) and '1 model unloaded' in plain(out[8]) and 'Zora' in plain(out[9])


@pytest.mark.needs('llama')
def test_two_chats_and_two_models_in_a_kernel(tiny_chat, smol):
    count = 'from rishi_jupyter.session import session_of\ns = session_of(get_ipython())\nprint(len(s.engines))'
    out = execute('%load_ext rishi', '%config Rishi.options = {"n_threads": 1}',
                  f'%%rishi {tiny_chat} -t 0 --no-think\nReply with exactly: pong',
                  f'%%rishi {tiny_chat} -c b -t 0 --no-think\nReply with exactly: ping', count,
                  f'%%rishi -m {smol} --max-tokens 4 -t 0\nAnd now?', count,
                  f'%%rishi -c b -m {smol} --max-tokens 4\nAnd now?', count,
                  'import rishi_jupyter\nprint(rishi_jupyter.chat().hist[1]["content"])')
    assert 'pong' in plain(out[2]) and 'ping' in plain(out[3])
    assert [plain(out[i]).strip() for i in (4, 6, 8)] == ['1', '2', '1'] and plain(out[9]).strip() == 'pong'
    assert all(o in out[5][-1].data['text/html'] for o in ('model changed', 'goes on from Tiny Chat · Q8_0'))


@pytest.mark.needs('llama')
def test_run_all_stops_at_a_cell_that_fails():
    with pytest.raises(CellExecutionError, match='ModelNotFound: '):
        execute('%load_ext rishi', '%%rishi ./not-here.gguf\nhi', 'print("not reached")')
