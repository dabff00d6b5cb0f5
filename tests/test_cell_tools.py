"Tools in `%%rishi` cells: which functions, for how long, who approves; scripted in a terminal, and on real weights."
import builtins
import os
import signal
from json import dumps

import pytest
from IPython.core.interactiveshell import InteractiveShell
from test_magics import execute, plain, refusal, run
from test_session import Loader
from traitlets.config import Config

from rishi.errors import BadRequest, EngineError
from rishi.history import checked
from rishi.tools import hitl_policy
from rishi_jupyter.session import session_of

TOOLS = '''
def add(a: int, b: int):
    "Add two numbers."
    return a + b

def multiply(x: int, y: int):
    "Multiply two numbers."
    return x * y

def subtract(a: int, b: int):
    "Subtract b from a."
    raise ValueError('disk on fire')

def get_weather(city: str):
    "Get the weather of a city."
    return {'Paris': 'sunny', 'London': 'rain'}[city]

number = 7
'''


def call(name, **args): return f'<tool_call>\n{dumps({"name": name, "arguments": args})}\n</tool_call>'


ADD, TIMES = call('add', a=1, b=2), call('multiply', x=3, y=4)


@pytest.fixture
def shell():
    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(config=Config(HistoryManager={'enabled': False}))
    sh.run_line_magic('load_ext', 'rishi')
    run(sh, TOOLS)
    yield sh
    InteractiveShell.clear_instance()


@pytest.fixture
def script(shell):
    "`script(*replies)`: a model that says those, one a step."
    def make(*replies): session_of(shell)._load = Loader(*replies)
    return make


@pytest.fixture
def typing(monkeypatch):
    "`typing(*answers)`: what the person types, in order; the questions that they saw."
    asked = []

    def make(*answers):
        left = iter(answers)

        def reads(prompt):
            asked.append(prompt)
            said = next(left)
            if isinstance(said, BaseException): raise said
            return said() if callable(said) else said
        monkeypatch.setattr(builtins, 'input', reads)
        return asked
    return make


def chat(shell, name='main'): return session_of(shell).chats[name].chat
def results(shell, name='main'): return [m['content'] for m in chat(shell, name).hist if m['role'] == 'tool']
def names(shell, name='main'): return chat(shell, name).toolbox.names


# --- which functions ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('line', [
    '-T add -T multiply', '--tool add --tool=multiply', '-T add,multiply', '-T add, multiply', '-T [add, multiply]',
    '-T "[add,multiply]"', '-T add,multiply,add'])
def test_ways_to_name_tools(shell, script, line):
    script(ADD, 'done')
    run(shell, f'%%rishi {line}\ngo')
    assert results(shell) == ['3'] and names(shell) == ['add', 'multiply']
    assert 'Multiply two numbers.' in chat(shell).engine.prompts[0]


@pytest.mark.parametrize('line,says', [
    ('-T ad', 'There is no function ad here. Did you mean add? Run the cell that defines it.'),
    ('-T add,zzz', 'There is no function zzz here. Run'),
    ('-T number', 'number cannot be a tool: it is a value of type int'),
    ('-T os.getpid', 'There is no function os.getpid here.'), ('-T text.uper', 'Did you mean text.upper?'),
    ('-T', '-T needs a value'), ('-T 2x', 'the name of a function'), ('-T []', 'the name of a function'),
    ('-T add()', 'the name of a function'), ('-T add --approve perhaps', 'one of ask, always, never'),
    ('-T add --max-steps 0', 'a whole number at least 1'), ('-T add -T other.add', 'Two tools are called add'),
    ('-T add --approve ask --ta never', 'says again')])
def test_mistakes_are_told_before_anything_runs(shell, script, line, says):
    script('never')
    run(shell, 'text = "x"\nclass other:\n    add = staticmethod(max)')
    assert says in refusal(shell, f'%%rishi {line}\ngo')
    assert not session_of(shell)._load.loads and not session_of(shell).chats


def test_methods_lambdas_and_aliases_go_by_the_name_that_was_given(shell, script):
    script(call('upper'), call('twice', n=4), call('plus', a=1, b=1), 'done')
    run(shell, 'text, plus = "loud", add\ntwice = lambda n: 2 * n')
    run(shell, '%%rishi -T text.upper,twice,plus\ngo')
    assert results(shell) == ['LOUD', '8', '2']


def test_an_edited_function_is_the_one_that_runs(shell, script):
    script(ADD, 'one', ADD, 'two')
    run(shell, '%%rishi -T add\ngo')
    run(shell, 'def add(a: int, b: int):\n    "Add, the new way."\n    return f"{a}+{b}"')
    run(shell, '%%rishi\nagain')
    assert results(shell) == ['3', '1+2'] and 'Add, the new way.' in chat(shell).engine.prompts[-1]


def test_a_tool_that_is_gone_is_told_before_anything_runs(shell, script):
    script('one', 'two', 'three')
    run(shell, '%%rishi -T add\nhi')
    run(shell, 'del add')
    assert 'no function add here' in (told := refusal(shell, '%%rishi\nhi')) and '`%rishi tools none`' in told
    assert session_of(shell).turns('main') == 1
    run(shell, '%rishi tools none'), run(shell, '%%rishi\nhi')
    assert session_of(shell).turns('main') == 2 and names(shell) == []


# --- for how long ---------------------------------------------------------------------------------------------------
def test_tools_stay_until_a_cell_names_others(shell, script):
    script('a', ADD, 'b', TIMES, 'c', 'd')
    run(shell, '%%rishi -T add\nhi'), run(shell, '%%rishi\ngo')
    assert results(shell) == ['3'] and chat(shell).cache_report().steps[0].why == 'extends the conversation'
    run(shell, '%%rishi -T multiply\ngo')
    assert results(shell) == ['3', '12'] and names(shell) == ['multiply']
    run(shell, '%%rishi -c other\nhi')
    assert names(shell, 'other') == [] and names(shell) == ['multiply']


def test_the_tools_of_a_chat_are_listed_and_taken_away(shell, script):
    script('a', 'b')
    assert 'none' in run(shell, '%rishi tools')
    run(shell, '%%rishi -T add,multiply\nhi'), run(shell, '%%rishi -c b -T add --approve ask\nhi')
    out = run(shell, '%rishi tools').split('\n')
    assert [' '.join(o.split()) for o in out if 'two numbers' in o] == ['add Add two numbers. run unasked',
                                                                      'multiply Multiply two numbers. run unasked']
    assert 'you are asked' in run(shell, '%rishi tools b') and 'no chat' in refusal(shell, '%rishi tools c')
    assert run(shell, '%rishi tools none').strip() == 'Chat main has no tools now.'
    assert names(shell) == [] and names(shell, 'b') == ['add'] and 'add' not in run(shell, '%rishi tools')
    run(shell, '%rishi tools none b')
    assert names(shell, 'b') == [] and session_of(shell).chats['b'].approve is None
    assert 'It is `%rishi tools' in refusal(shell, '%rishi tools none b c')


@pytest.mark.parametrize('how', ['%%rishi --new\nhi', '%rishi reset'])
def test_a_chat_that_begins_anew_has_no_tools(shell, script, how):
    script('a', 'b')
    run(shell, '%%rishi -T add --approve ask\nhi'), run(shell, how)
    bound = session_of(shell).chats['main']
    assert names(shell) == [] and (bound.tools, bound.approve, bound.granted) == ((), None, set())


def test_what_a_one_shot_or_a_failed_turn_named_is_put_back(shell, script):
    script('a', TIMES, 'b', EngineError('It broke.'), ADD, 'c')
    run(shell, '%%rishi -T add\nhi')
    assert '→ 12' in run(shell, '%%rishi --no-history -T multiply --approve always\ngo')
    refusal(shell, '%%rishi --new -T multiply --approve never\ngo', EngineError)
    bound = session_of(shell).chats['main']
    assert names(shell) == ['add'] and (bound.tools, bound.approve, bound.chat.approve) == (('add',), None, None)
    assert '→ 3' in run(shell, '%%rishi\ngo') and session_of(shell).turns('main') == 2


def test_tools_go_along_to_another_model(shell, script):
    script('a', ADD, 'b')
    run(shell, '%%rishi -T add --approve always\nhi')
    chat(shell).tool_max_len = 50
    session_of(shell)._load.replies = (ADD, 'b')
    run(shell, '%%rishi -m org/other-GGUF\ngo')
    assert results(shell) == ['3'] and names(shell) == ['add'] and chat(shell).tool_max_len == 50


def test_tools_from_python_stay(shell, script):
    script('a', ADD, 'b')
    run(shell, '%%rishi\nhi'), run(shell, 'import rishi_jupyter\nrishi_jupyter.chat().tools = [add]')
    assert 'Add two numbers.' in run(shell, '%rishi tools') and '→ 3' in run(shell, '%%rishi\ngo')


def test_a_budget_holds_for_its_cell(shell, script):
    script(ADD, 'spent', ADD, ADD, 'done')
    run(shell, '%%rishi -T add --max-steps 1\ngo')
    assert chat(shell).hist[3]['content'] == chat(shell).final_prompt and chat(shell).max_steps == 10
    run(shell, '%%rishi\ngo')
    assert results(shell) == ['3'] * 3


# --- who approves ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('said,result,shown', [
    ('y', '3', '→ 3'), (' YES ', '3', '→ 3'), ('a', '3', '→ 3'),
    ('n', 'The user denied this tool call.', '→ denied by you'),
    ('', 'The user denied this tool call.', '→ denied by you'),
    ('not on a Monday', 'The user denied this call: not on a Monday', '→ denied by you: not on a Monday'),
    (EOFError(), 'The user denied this call: nobody is here to approve it', '→ not run: nobody is here to approve it')])
def test_an_answer_that_is_typed(shell, script, typing, said, result, shown):
    script(ADD, 'done')
    asked = typing(said)
    out = run(shell, '%%rishi -T add --approve ask\ngo')
    assert results(shell) == [result] and shown in out and out.index('⏳ add(a=1, b=2)') < out.index(shown)
    assert asked == ['Run add(a=1, b=2)? y, n, a for always, or why not: ']
    assert chat(shell).approve is None and 'done' in out


def test_a_stream_that_cannot_be_read_denies(shell, script):
    script(ADD, 'done')
    run(shell, '%%rishi -T add --approve ask\ngo')        # pytest's own stdin raises OSError
    assert 'nobody is here' in results(shell)[0]


def test_always_holds_for_that_function_in_that_chat(shell, script, typing):
    script(ADD + ADD, ADD, 'a', ADD, TIMES, 'b', ADD, 'c', ADD, 'd')
    asked = typing('a', 'n', 'n')
    run(shell, '%%rishi -T add,multiply --approve ask\ngo')
    assert len(asked) == 1 and results(shell) == ['3'] * 3 and 'you said “Always”' in run(shell, '%rishi tools')
    run(shell, '%%rishi\ngo')
    assert len(asked) == 2 and 'multiply' in asked[1] and results(shell)[3] == '3' and 'denied' in results(shell)[4]
    run(shell, '%%rishi -c b -T add --approve ask\ngo')
    assert len(asked) == 3 and 'denied' in results(shell, 'b')[0]


def test_always_is_forgotten_with_the_tools(shell, script, typing):
    script(ADD, 'a', ADD, 'b')
    asked = typing('a', 'n')
    run(shell, '%%rishi -T add --approve ask\ngo'), run(shell, '%rishi tools none')
    run(shell, '%%rishi -T add --approve ask\ngo')
    assert len(asked) == 2


def test_how_calls_are_approved_stays_with_the_chat(shell, script, typing):
    script(ADD, 'a', ADD, 'b', ADD, 'c', ADD, 'd')
    asked = typing('y', 'y')
    run(shell, '%%rishi -T add --approve ask\ngo'), run(shell, '%%rishi\ngo')
    assert len(asked) == 2
    run(shell, '%%rishi --ta never\ngo')
    assert results(shell)[-1] == 'The user denied this call: add is not allowed here'
    assert 'not run' in run(shell, '%rishi tools')
    run(shell, '%%rishi --ta always\ngo')
    assert results(shell)[-1] == '3' and len(asked) == 2


def test_a_call_that_cannot_run_is_not_asked_about(shell, script, typing):
    raw = '<tool_call>\n{"name": "add", "arguments": [1, 2]}\n</tool_call>'
    script(call('ad', a=1), call('add', a=1), raw, '<tool_call>\n{"name": "add", "argu\n</tool_call>', 'done')
    asked = typing()
    out = run(shell, '%%rishi -T add --approve ask\ngo')
    assert asked == [] and len(results(shell)) == 4 and all(r.startswith('Error: ') for r in results(shell))
    assert out.count('→ failed: ') == 4


def test_a_question_hides_nothing(shell, script, typing):
    script(call('get_weather', city='Paris' + 'x' * 300 + '\u202e\x1b[2K; the end'), 'done')
    asked = typing('n')
    run(shell, '%%rishi -T get_weather --approve ask\ngo')
    assert asked[0].startswith(f"Run get_weather(city='Paris{'x' * 300}\\u202e\\x1b[2K; the end')? y, n")


def test_an_interrupt_at_the_question_ends_the_turn(shell, script, typing):
    script(ADD + TIMES, 'pong')
    asked = typing(lambda: os.kill(os.getpid(), signal.SIGINT) or 'y')
    with pytest.raises(KeyboardInterrupt, match='stopped by you'):
        run(shell, '%%rishi -T add,multiply --approve ask\ngo')
    assert len(asked) == 1 and all('interrupted before it ran' in r for r in results(shell))
    assert len(results(shell)) == 2 and checked(chat(shell).hist) == chat(shell).hist
    assert chat(shell).approve is None and chat(shell).hist[-1]['role'] == 'tool'
    assert 'pong' in run(shell, '%%rishi --approve always\ngo on')


def test_a_policy_from_python_asks_through_the_cell(shell, script, typing):
    script('a', ADD + TIMES + call('subtract', a=1, b=1), 'b', TIMES, 'c')
    run(shell, '%%rishi -T add,multiply,subtract\nhi')
    policy = chat(shell).approve = hitl_policy(dict(add='approved', subtract='dont_run'))
    asked = typing('a')
    run(shell, '%%rishi\ngo')
    assert len(asked) == 1 and 'a for always' in asked[0] and results(shell)[:2] == ['3', '12']
    assert 'not allowed' in results(shell)[2] and '`approve` decides' in run(shell, '%rishi tools')
    run(shell, '%%rishi\ngo')
    assert len(asked) == 1 and chat(shell).approve is policy
    assert policy.policy == dict(add='approved', subtract='dont_run')


@pytest.mark.parametrize('own', [lambda c: 'because', hitl_policy({}, ask=lambda c: 'because')])
def test_what_decides_in_python_shows_no_question(shell, script, typing, own):
    script('a', ADD, 'b')
    run(shell, '%%rishi -T add\nhi')
    chat(shell).approve, asked = own, typing()
    out = run(shell, '%%rishi\ngo')
    assert asked == [] and '→ not run: because' in out and results(shell) == ['The user denied this call: because']


def test_a_turn_that_nobody_draws_runs_nothing_unasked(shell, script):
    from rishi_jupyter.request import CellRequest
    script(ADD, 'done')
    turn = session_of(shell).turn(CellRequest(text='go', tools=('add',), approve='ask'))
    assert turn.about == {'add': 'Add two numbers.'} and list(turn.events)
    assert results(shell) == ['The user denied this call: nobody is here to approve it']


def test_without_a_shell_there_are_no_names():
    from rishi_jupyter.request import CellRequest
    from rishi_jupyter.session import Session
    with pytest.raises(BadRequest, match='no function add'):
        Session().turn(CellRequest(text='go', tools=('add',)))


# --- on real weights ------------------------------------------------------------------------------------------------
NO = 'The tool call was denied, so I cannot answer.'
CHAIN = 'First add 12 and 30, then multiply the result by 2.'
JUDGED = [
    ('-T add -T multiply', CHAIN, ['add(a=12, b=30)', '→ 42', 'multiply(x=42, y=2)', '→ 84', 'The answer is 84.']),
    ('-T get_weather', 'What is the weather in Paris and London?', [
        "get_weather(city='Paris')", '→ sunny', "get_weather(city='London')", '→ rain',
        'The results are sunny and rain.']),
    ('-T subtract', 'What is 12 minus 5?',
     ['subtract(a=12, b=5)', '→ failed: ValueError: disk on fire', 'The tool failed: disk on fire']),
    ('-T multiply --approve ask', 'What is 3 times 4?',
     ['multiply(x=3, y=4)', '→ not run: nobody is here', NO]),
    ('-T multiply --approve never', 'What is 3 times 4?',
     ['multiply(x=3, y=4)', '→ not run: multiply is not allowed here', NO]),
    ('-T add -T multiply --max-steps 1', CHAIN,
     ['add(a=12, b=30)', '→ 42', 'I have used my tools, here is the answer: 42.']),
]
SETTINGS = '%config Rishi.options = {"n_threads": 1}\n%config Rishi.temperature = 0\n%config Rishi.think = False'


def in_order(text, parts):
    at = -1
    for part in parts:
        assert part in text[at + 1:], (part, text)
        at = text.index(part, at + 1)


@pytest.mark.needs('llama')
def test_a_real_model_in_a_terminal(shell, tiny_chat, monkeypatch):
    monkeypatch.setattr(builtins, 'input', lambda _: (_ for _ in ()).throw(EOFError))
    run(shell, SETTINGS)
    for i, (line, text, parts) in enumerate(JUDGED):
        in_order(run(shell, f'%%rishi {tiny_chat} -c c{i} {line}\n{text}'), parts)
        assert checked(chat(shell, f'c{i}').hist) == chat(shell, f'c{i}').hist


@pytest.mark.needs('llama')
def test_a_real_model_in_a_kernel_that_nobody_watches(tiny_chat):
    cells = [f'%%rishi {tiny_chat} -c c{i} {line}\n{text}' for i, (line, text, _) in enumerate(JUDGED)]
    out = execute(f'%load_ext rishi\n{SETTINGS}', TOOLS, *cells)
    for shown, (_, _, parts) in zip(out[2:], JUDGED):
        in_order(plain(shown), parts)
        html = shown[-1].data['text/html']
        assert html.count('<details class="ri-tool') == sum('(' in p for p in parts[:-1]) and '<button' not in html


@pytest.mark.needs('llama')
def test_a_real_model_thinks_calls_and_goes_on(shell, tiny_chat):
    run(shell, f'{SETTINGS}\n%config Rishi.think = True')
    out = run(shell, f'%%rishi {tiny_chat} -T add,multiply\n{CHAIN}')
    in_order(out, ['Thinking', 'add(', '→ 84', 'The answer is 84.'])
    in_order(run(shell, '%%rishi\nWhat is 5 plus 7?'), ['add(a=5, b=7)', '→ 12', 'The answer is 12.'])
