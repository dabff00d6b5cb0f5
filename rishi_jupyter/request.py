"""A cell's text -> `CellRequest`. Pure: no namespace, no clock, no I/O. Every mistake of the user is told here.

`OPTIONS` is the one list of options: parsing, `--help` and the table in the README are all made from it.
"""
from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from keyword import iskeyword

from rishi.errors import BadRequest

__all__ = ['CellRequest', 'Option', 'OPTIONS', 'FORMATS', 'APPROVALS', 'parse', 'split_line', 'suggestion', 'help_text']

FORMATS = ('markdown', 'text', 'code', 'json', 'html')
APPROVALS = ('ask', 'always', 'never')


@dataclass(frozen=True)
class CellRequest:
    """One turn as its cell asks for it. `None` leaves a choice to the defaults of the kernel.
    `options` are (name, value) pairs for loading the model; the other fields are named in `OPTIONS`."""
    text: str = ''
    model: str | None = None
    chat: str = 'main'
    new: bool = False
    system: str | None = None
    think: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    tools: tuple[str, ...] = ()
    approve: str | None = None
    max_steps: int | None = None
    options: tuple[tuple[str, object], ...] = ()
    format: str = 'markdown'
    out: str | None = None
    stream: bool = True
    history: bool = True
    reasoning: bool = True
    stats: bool = True
    help: bool = False


@dataclass(frozen=True)
class Option:
    """One option: the field it sets, how it is spelled, what it takes.
    `read` turns the text into a value (ValueError holds the rule); without it the option is a switch to `const`."""
    field: str
    flags: tuple[str, ...]
    help: str
    takes: str = ''
    read: Callable[[str], object] | None = None
    const: object = True

    @property
    def spelled(self) -> str:
        "The way it stands in help: `--chat, -c NAME`."
        return ', '.join(self.flags) + (f' {self.takes}' if self.takes else '')


# --- reading one value ----------------------------------------------------------------------------------------------
def _number(kind, low, high=None):
    "A reader of numbers from `low` to `high`; NaN and infinities are refused."
    span = f'at least {low}' if high is None else f'from {low} to {high}'
    rule = f'{"a whole number" if kind is int else "a number"} {span}'

    def read(s):
        try: v = kind(s)
        except ValueError: raise ValueError(rule) from None
        if not math.isfinite(v) or v < low or (high is not None and v > high): raise ValueError(rule)
        return v
    return read


def _choice(names):
    def read(s):
        if s not in names: raise ValueError('one of ' + ', '.join(names))
        return s
    return read


def _variable(s):
    if not s.isidentifier() or iskeyword(s): raise ValueError('the name of a Python variable')
    return s


def _named(s):
    if not s.strip() or not s.isprintable(): raise ValueError('a name')
    return s


def _functions(s):
    "Names as `add`, `db.find`, `add,multiply` or `[add, multiply]`."
    names = tuple(filter(None, (n.strip() for n in s.removeprefix('[').removesuffix(']').split(','))))
    plain = all(p.isidentifier() and not iskeyword(p) for n in names for p in n.split('.'))
    if not names or not plain: raise ValueError('the name of a function, or several with commas between them')
    return names


def _model(s):
    if s.startswith('{'):
        raise ValueError('a model: in this magic it names the model. Parameters in JSON belong to another extension; '
                         'write them as options, such as --temperature 0.2 --max-tokens 200')
    return _named(s)


def _literal(s):
    "The Python value that `s` spells, else `s` itself."
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try: return ast.literal_eval(s)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError): return s


OPTIONS = (
    Option('model', ('--model', '-m'), 'The model: a Hugging Face id or a file. Also the first word of the line. '
           'The chat stays with it.', 'MODEL', _model),
    Option('chat', ('--chat', '-c'), 'The chat that the turn belongs to (main).', 'NAME', _named),
    Option('new', ('--new',), 'Begin the chat anew: its turns, system prompt and tools are forgotten.'),
    Option('system', ('--system', '-s'), 'The system prompt, from this turn on.', 'TEXT', str),
    Option('think', ('--think',), 'Let the model think first, in this turn.'),
    Option('think', ('--no-think',), 'Let it answer at once, in this turn.', const=False),
    Option('max_tokens', ('--max-tokens',), 'Stop after N generated tokens.', 'N', _number(int, 1)),
    Option('temperature', ('--temperature', '-t'), 'How freely tokens are drawn; 0 always takes the likeliest.', 'X',
           _number(float, 0)),
    Option('top_p', ('--top-p',), 'Draw from the likeliest tokens that make up this share.', 'X', _number(float, 0, 1)),
    Option('top_k', ('--top-k',), 'Draw from the N likeliest tokens; 0 means all.', 'N', _number(int, 0)),
    Option('min_p', ('--min-p',), "Drop tokens below this share of the likeliest one's chance.", 'X',
           _number(float, 0, 1)),
    Option('seed', ('--seed',), 'Draw the same tokens again for the same seed.', 'N', _number(int, 0, 2**32 - 1)),
    Option('tools', ('--tool', '-T'), 'A function that the model may call; repeatable. Stays with the chat until '
           'a cell names others.', 'NAME', _functions),
    Option('approve', ('--approve', '--ta'), 'What becomes of its calls: ask, always (run unasked) or never. Stays '
           'with the chat.', 'HOW', _choice(APPROVALS)),
    Option('max_steps', ('--max-steps',), 'Run at most N calls in this turn (10), then ask for the answer.', 'N',
           _number(int, 1)),
    Option('options', ('--option', '-o'), 'How the model is loaded, such as -o n_ctx 4096; may be repeated.',
           'KEY VALUE', _literal),
    Option('format', ('--format', '-f'), 'How the answer is shown: ' + ', '.join(FORMATS) + '.', 'FORMAT',
           _choice(FORMATS)),
    Option('out', ('--out',), 'Bind the answer to this variable.', 'NAME', _variable),
    Option('stream', ('--no-stream',), 'Show the answer when it is whole.', const=False),
    Option('history', ('--no-history',), 'Ask once: the chat is read, but does not remember the turn.', const=False),
    Option('reasoning', ('--hide-reasoning', '-R'), "Do not show the model's thinking.", const=False),
    Option('stats', ('--no-stats',), 'Do not show the cache strip.', const=False),
    Option('help', ('--help', '-h'), 'Show these options.'),
)
_FLAGS = {f: o for o in OPTIONS for f in o.flags}
_REPEATED = ('options', 'tools')

# --- the line -------------------------------------------------------------------------------------------------------
# A backslash escapes only blanks and quotes, so that C:\models\x.gguf needs no quotes.
_PIECE = re.compile(r'''"((?:\\["\\]|[^"])*+)"|'([^']*)'|\\([\s"'])|([^\s"'])''')


def split_line(line: str) -> list[str]:
    "The words of `line`, quotes removed. BadRequest names the quote that is not closed."
    words, word, i = [], None, 0
    while i < len(line):
        m = _PIECE.match(line, i)
        if m: word = (word or '') + _plain(m)
        elif not line[i].isspace():
            raise BadRequest(f'The quote {line[i]} in `{line[i:]}` is not closed. Close it, or write \\{line[i]} for '
                             'the character itself.')
        elif word is not None: words, word = words + [word], None
        i = m.end() if m else i + 1
    return words if word is None else words + [word]


def _plain(m):
    double, single, escaped, char = m.groups()
    if double is not None: return re.sub(r'\\(["\\])', r'\1', double)
    return next(o for o in (single, escaped, char) if o is not None)


def parse(line: str, cell: str | None = '') -> CellRequest:
    """The request that a `%%rishi` line and its body make.
    The body is taken as it is, but for one final newline, which IPython adds to every cell. Raises BadRequest."""
    got, words = {}, split_line(line)
    while words:
        word = words.pop(0)
        if word.startswith('-'): _option(got, word, words)
        else: _positional(got, word)
    text = (cell or '').removesuffix('\n')
    if not text.strip() and 'help' not in got:
        raise BadRequest('The cell has no message. Write it below the %%rishi line.')
    if 'options' in got: got['options'] = tuple(got['options'].items())
    return CellRequest(text=text, **got)


def _positional(got, word):
    if 'model' in got:
        raise BadRequest(f'{word!r} is one word too many: the %%rishi line takes one MODEL and options; the message '
                         'goes below it.')
    _put(got, _FLAGS['--model'], 'MODEL', [word])


def _option(got, word, words):
    "Read the option `word`, and the values that it takes off `words`, into `got`."
    flag, eq, value = word.partition('=')
    o = _FLAGS.get(flag)
    if o is None: raise BadRequest(f'{flag} is no option of %%rishi.{suggestion(flag, _FLAGS)} `%rishi help options` '
                                   'lists all.')
    if eq and len(o.takes.split()) != 1: raise BadRequest(f'Write {flag} without =: {flag} {o.takes}'.rstrip() + '.')
    if eq: words.insert(0, value)
    if o.field in got and o.field not in _REPEATED: raise BadRequest(f'{flag} says again what the line said before. '
                                                                 'Keep one of them.')
    values = [_value(o, flag, words, bool(eq)) for _ in o.takes.split()]
    if o.field == 'tools': values = [_whole_list(values[0], words)]
    _put(got, o, flag, values)


def _whole_list(s, words):
    "A list of names with blanks in it came as several words."
    while words and (s.endswith(',') or s.startswith('[') and not s.endswith(']')): s += words.pop(0)
    return s


def _value(o, flag, words, sure):
    if not words or (not sure and words[0].partition('=')[0] in _FLAGS):
        raise BadRequest(f'{flag} needs a value: {flag} {o.takes}.')
    return words.pop(0)


def _put(got, o, flag, values):
    if o.field == 'options': got.setdefault('options', {})[_load_name(flag, values[0])] = o.read(values[1])
    elif o.read is None: got[o.field] = o.const
    else:
        try: value = o.read(*values)
        except ValueError as e: raise BadRequest(f'{flag} {values[0]!r} cannot be used: it takes {e}.') from None
        got[o.field] = got.get(o.field, ()) + value if o.field == 'tools' else value


def _load_name(flag, key):
    "The name of a load option; what has an option of its own is sent there."
    own = _FLAGS.get('--' + key.replace('_', '-'))
    if own and own.read: raise BadRequest(f'{flag} {key} is an option of its own: {own.spelled}.')
    if key in ('stop', 'model_path'): raise BadRequest(f'{flag} {key} cannot be set in a cell: use --model for a file.')
    if not key.isidentifier(): raise BadRequest(f'{flag} {key!r} cannot be used: it takes a name and a value with a '
                                                f'blank between them, such as {flag} n_ctx 4096.')
    return key


# --- words for the reader -------------------------------------------------------------------------------------------
def suggestion(word: str, known) -> str:
    "` Did you mean --system?` for a mistyped word, or ''."
    from difflib import get_close_matches
    near = [o for o in known if o.startswith(word)] or get_close_matches(word, list(known), 1)
    return f' Did you mean {near[0]}?' if near else ''


def help_text(fields=None) -> str:
    "The options as two columns of text; `fields` narrows them down."
    shown = [o for o in OPTIONS if fields is None or o.field in fields]
    width = max(len(o.spelled) for o in shown)
    return '\n'.join(f'{o.spelled:{width}}  {o.help}' for o in shown)
