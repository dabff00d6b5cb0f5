"The line and the body of a cell: what reaches the model, and what the user is told about a mistake."
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rishi.errors import BadRequest
from rishi_jupyter.request import OPTIONS, CellRequest, help_text, parse, split_line, suggestion


def refusal(line, cell='hello'):
    with pytest.raises(BadRequest) as e: parse(line, cell)
    assert '\n' not in str(e.value)
    return str(e.value)


def test_the_plainest_cell(): assert parse('', 'hello\n') == CellRequest(text='hello')


def test_every_option():
    r = parse('org/m-GGUF -c talk --new -s "Be brief." --no-think --max-tokens 9 -t 0.5 --top-p .9 --top-k 3 --min-p 0 '
              '--seed 7 -o n_ctx 4096 -o quant Q8_0 --option n_threads=1 1 -f json --out ans --no-stream --no-history '
              '-R --no-stats'.replace('n_threads=1', 'n_threads'), 'x')
    assert r == CellRequest(text='x', model='org/m-GGUF', chat='talk', new=True, system='Be brief.', think=False,
                            max_tokens=9, temperature=.5, top_p=.9, top_k=3, min_p=0, seed=7,
                            options=(('n_ctx', 4096), ('quant', 'Q8_0'), ('n_threads', 1)), format='json', out='ans',
                            stream=False, history=False, reasoning=False, stats=False)


def test_every_option_of_the_table_is_a_field_and_is_explained():
    assert {o.field for o in OPTIONS} == {f for f in CellRequest.__dataclass_fields__ if f != 'text'}
    text = help_text()
    assert all(f in text for o in OPTIONS for f in o.flags) and len(text.splitlines()) == len(OPTIONS)
    assert help_text({'seed'}).startswith('--seed N  ')


@pytest.mark.parametrize('line', ['-m a/b', '--model a/b', '--model=a/b', 'a/b', '"a/b"', "-m 'a/b'"])
def test_ways_to_name_a_model(line): assert parse(line, 'x').model == 'a/b'


@pytest.mark.parametrize('body', [
    '{x: x for x in {1: 2}}', 'import { name, widget } from "x"; `${name}`', '{"a": [1, {"b": "$c"}]}', '$x costs $5',
    '  indented\n\tand a tab  ', 'ends in blanks   ', 'two lines\n\n', '\n\nlate', "it's \"quoted\" \\n \\",
    '{{ twice }}', '%magic and !shell and help?', 'a\x0cb\u2028c', '--system not an option', '$`expr` and &`f`'])
def test_the_body_is_taken_byte_for_byte(body): assert parse('', body + '\n').text == body


def test_only_one_final_newline_is_dropped(): assert parse('', 'a\n\n').text == 'a\n' and parse('', 'a').text == 'a'


@given(st.text())
def test_any_body_is_kept_or_refused(body):
    try: assert parse('', body + '\n').text == body
    except BadRequest: assert not body.strip()


@pytest.mark.parametrize('cell', ['', None, '\n', '  \n\t\n'])
def test_an_empty_body(cell): assert 'no message' in refusal('', cell)


def test_help_needs_no_body(): assert parse('-h', '').help and parse('--help', None).help


def test_the_line_is_literal():
    assert parse('-s "{12} $x costs $5" -c {12}', 'x') == CellRequest(text='x', system='{12} $x costs $5', chat='{12}')


@pytest.mark.parametrize('line,words', [
    ('', []), ('  a  b ', ['a', 'b']), ('--system "x y"', ['--system', 'x y']), ("--opt 'a b'", ['--opt', 'a b']),
    ('a"b c"d', ['ab cd']), ('""', ['']), (r'C:\models\x.gguf', [r'C:\models\x.gguf']),
    (r'my\ model.gguf', ['my model.gguf']),
    (r'"say \"hi\" \\ \alpha"', [r'say "hi" \ \alpha']), (r"'\alpha'", [r'\alpha']), (r"don\'t", ["don't"]),
    (r'\\server\share', [r'\\server\share'])])
def test_quotes_and_backslashes(line, words):
    assert split_line(line) == words


@given(st.text(st.characters(exclude_characters='\\', exclude_categories=['Cs', 'Z', 'Cc'])
               | st.sampled_from(' \t"\'')))
def test_without_backslashes_words_are_those_of_a_shell(line):
    try: want = shlex.split(line)
    except ValueError: want = None
    try: assert split_line(line) == want
    except BadRequest: assert want is None


@pytest.mark.parametrize('line', ['--system "half', r'-s "C:\dir\"', "-s What's up?", '"', "'"])
def test_an_open_quote(line): assert 'is not closed' in refusal(line)


def test_an_open_quote_after_many_backslashes_is_told_at_once(): assert 'not closed' in refusal('-s "' + '\\' * 5000)


@pytest.mark.parametrize('line,near', [('--sytem x', '--system'), ('--temp 0', '--temperature'),
                                       ('--nostream', '--no-stream'), ('--max_tokens 4', '--max-tokens'),
                                       ('--formt', '--format')])
def test_a_mistyped_option(line, near):
    m = refusal(line)
    assert f'{line.split()[0]} is no option' in m and f'Did you mean {near}?' in m


@pytest.mark.parametrize('line', ['--attach x.png', '--schema S', '--interpolate', '--eval', '--append', '-x', '-t0.2',
                                  '--', '-'])
def test_options_that_do_not_exist(line): assert 'is no option of %%rishi' in refusal(line)


@pytest.mark.parametrize('line', ['-m {"temperature":0}', '-m \'{"temperature": 0}\'', '--model {"a": 1}', '{"a":1}'])
def test_json_after_m_is_explained(line):
    m = refusal(line)
    assert 'JSON' in m and 'names the model' in m and '--temperature' in m


@pytest.mark.parametrize('line,rule', [
    ('-t -1', 'a number at least 0'), ('--temperature nan', 'a number at least 0'), ('-t inf', 'a number at least 0'),
    ('-t hot', 'a number at least 0'), ('--top-p 1.1', 'from 0 to 1'), ('--top-p=-0.1', 'from 0 to 1'),
    ('--min-p nan', 'from 0 to 1'), ('--top-k -1', 'a whole number at least 0'), ('--top-k 1.5', 'a whole number'),
    ('--max-tokens 0', 'at least 1'), ('--max-tokens 1e3', 'a whole number'), ('--seed -1', 'a whole number from 0'),
    ('-f yaml', 'one of markdown, text'), ('--out 2x', 'Python variable'), ('--out class', 'Python variable'),
    ('--out a.b', 'Python variable'), ('-c ""', 'a name'), ('-m " "', 'a name'),
    ('--seed 99999999999', 'to 4294967295')])
def test_a_value_that_cannot_be_used(line, rule):
    m = refusal(line)
    assert m.startswith(line.replace('=', ' ').split()[0]) and rule in m


@pytest.mark.parametrize('line', ['-c', '--system', '--temperature --think', '-o', '-o n_ctx', '-o n_ctx --think',
                                  '--seed -R', '-o n_ctx=4096'])
def test_a_value_that_is_missing(line): assert 'needs a value' in refusal(line)


def test_a_value_may_look_like_an_option():
    assert parse('--system=--think', 'x').system == '--think' and parse('-s "--be terse"', 'x').system == '--be terse'


@pytest.mark.parametrize('line', ['-t 0 -t 1', '--think --no-think', 'a/b -m c/d', '--new --new', '-s= -s x'])
def test_an_option_given_twice(line): assert 'says again' in refusal(line)


def test_words_after_the_model():
    m = refusal('why is the sky blue')
    assert "'is' is one word too many" in m and 'goes below' in m


@pytest.mark.parametrize('text,value', [('4096', 4096), ('-1', -1), ('0.5', .5), ('True', True), ('None', None),
                                        ('true', 'true'), ('Q4_K_M', 'Q4_K_M'), ("\"{'a': [1, 2]}\"", {'a': [1, 2]}),
                                        ('1x', '1x'), ('""', ''), ('"\'4\'"', '4'), (r"'\d'", r'\d')])
def test_load_options_are_python_values_where_they_parse(text, value):
    ((name, got),) = parse(f'-o key {text}', 'x').options
    assert name == 'key' and got == value and type(got) is type(value)


@pytest.mark.parametrize('key', ['temperature', 'max_tokens', 'top-k', 'model', 'system'])
def test_a_load_option_that_is_an_option_of_its_own(key): assert 'is an option of its own: --' in refusal(f'-o {key} 1')


def test_a_load_option_without_a_proper_name(): assert "'n-ctx' cannot be used" in refusal('-o n-ctx 1')


def test_switches_take_no_value(): assert 'Write --think without =' in refusal('--think=yes')


def test_suggestion_for_nothing_near(): assert suggestion('zzzz', ['status']) == ''
