"""The families: one small entry each. An entry says how raw text is told apart, nothing else."""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from ..errors import BadRequest
from . import calls as c
from .capture import Body, Form
from .scan import Braces, Plain, Tags, begins

__all__ = ['Dialect', 'FAMILIES', 'detect', 'by_name']


@dataclass(frozen=True)
class Dialect:
    """`signs` are the words of a chat template that tell the family; `think` the pair of marks around thinking;
    `calls` the ways of writing calls; `noise` marks that mean nothing to a reader; `channels` says that thinking,
    answer and calls are messages of their own, with headers."""
    name: str
    signs: tuple[str, ...] = ()
    think: tuple[str, str] = ('<think>', '</think>')
    calls: tuple[Form, ...] = ()
    noise: tuple[str, ...] = ()
    channels: bool = False

    def thinking(self, prompt: str) -> str:
        """Where the model starts, given the prompt's last characters: 'open' (the template wrote the opening mark),
        'closed' (it wrote both: thinking is off) or 'unset' (the model decides)."""
        tail = prompt.rstrip()
        if tail.endswith(self.think[0]): return 'open'
        return 'closed' if tail.endswith(self.think[1]) else 'unset'


FAR = 100               # a test gives up here, so that it answers the same however much it is shown


# --- ways of writing a call -------------------------------------------------------------------------------------------
def _then(s, at, fits):
    "Whether `fits(s[at])`: None while `s` ends there, False where that is too far to wait for."
    if at >= FAR: return False
    return None if at == len(s) else fits(s[at])


def _name_then(after, lead=''):
    "A test for `lead`, a name, and then one of the characters `after`."
    led = begins(lead)
    def test(s):
        if lead and not led(s): return led(s)
        at = re.compile(r'[\w.:-]*').match(s, len(lead)).end()
        return _then(s, at, lambda ch: at > len(lead) and ch in after)
    return test


def _first_key(*names):
    'A test for `{"` and one of `names`.'
    def test(s):
        m = re.match(r'\{\s*(?:["\'](\w*))?', s)
        return bool(m) and _then(s, m.end(), lambda ch: m[1] in names and ch in '"\'')
    return test


def _pythonic(s): return _then(s, re.match(r'\[?\s*', s).end(), str.isalpha)
def _braces(closes, s, **kw): return Braces(closes, '[]' if s[0] == '[' else '{}', **kw)
def _any(s): return True


JSON = Body(begins('{', '[', '```'), _braces, c.from_json)
TAGS = Body(_name_then('>', '<function='),
            lambda closes, s: Tags(closes, '<parameter=', '</parameter>', ('<parameter=', '</function>')),
            c.from_function_tags)
TAGS_LED = Body(_name_then('>'), TAGS.scan, c.from_function_tags)
PAIRS = Body(_name_then('\n<'), lambda closes, s: Tags(closes, '<arg_value>', '</arg_value>', ('<arg_key>',)),
             c.from_arg_pairs)
NAMED = Body(_name_then('[{'), lambda closes, s: Braces(closes), c.from_named)
SEPARATED = Body(_any, lambda closes, s: Braces(closes), c.from_separated)
KIMI = Body(_any, lambda closes, s: Braces(closes), c.from_header)
GEMMA = Body(begins('call:'), partial(_braces, quotes=('<|"|>',), escapes=False), c.quoted_by('<|"|>'))
ESCAPED = Body(begins('call:'), partial(_braces, quotes=('<escape>',), escapes=False), c.quoted_by('<escape>'))
PYTHON = Body(_pythonic, _braces, c.from_python)
CODE = Body(_any, lambda closes, s: Plain(closes, free=True), c.from_code)
WHOLE = Body(_first_key('name', 'type', 'function', 'parameters', 'arguments'), _braces, c.from_json)

_TOOL_CALL = '<tool_call>', ('</tool_call>',)
HERMES = Form(*_TOOL_CALL, (JSON, TAGS))

# --- the families, the tellable ones first ----------------------------------------------------------------------------
FAMILIES = (
    Dialect('harmony', ('<|channel|>',), ('<|channel|>analysis<|message|>', '<|channel|>final<|message|>'),
            channels=True),
    Dialect('gemma4', ('<|tool_call>', '<|channel>'), ('<|channel>thought', '<channel|>'),
            (Form('<|tool_call>', ('<tool_call|>',), (GEMMA, JSON)), HERMES), ('<|tool_response>', '<turn|>')),
    Dialect('functiongemma', ('<start_function_call>',), calls=(
        Form('<start_function_call>', ('<end_function_call>',), (ESCAPED,)), HERMES),
        noise=('<start_function_response>', '<end_of_turn>')),
    Dialect('kimi', ('<|tool_call_begin|>', '<|im_middle|>'), calls=(
        Form('<|tool_call_begin|>', ('<|tool_call_end|>',), (KIMI,)), HERMES),
        noise=('<|tool_calls_section_begin|>', '<|tool_calls_section_end|>')),
    Dialect('deepseek', ('<｜tool▁call▁begin｜>', '<｜Assistant｜>'), calls=(
        Form('<｜tool▁call▁begin｜>', ('<｜tool▁call▁end｜>',), (SEPARATED,)), HERMES),
        noise=('<｜tool▁calls▁begin｜>', '<｜tool▁calls▁end｜>')),
    Dialect('glm', ('<arg_key>',), calls=(Form(*_TOOL_CALL, (JSON, TAGS, PAIRS)),)),
    Dialect('qwen3-coder', ('<function=',), calls=(
        HERMES, Form('<function=', ('</function>',), (TAGS_LED,), lead='<function='))),
    Dialect('mistral', ('[TOOL_CALLS]', '[THINK]'), ('[THINK]', '[/THINK]'), (
        Form('[TOOL_CALLS]', (), (JSON, NAMED)), HERMES)),
    Dialect('lfm2', ('<|tool_call_start|>',), calls=(
        Form('<|tool_call_start|>', ('<|tool_call_end|>',), (PYTHON, JSON)), HERMES)),
    Dialect('llama3', ('<|python_tag|>', '<|start_header_id|>'), calls=(
        Form('', (), (WHOLE,)), Form('<|python_tag|>', ('<|eom_id|>', '<|eot_id|>'), (JSON, CODE)), HERMES)),
    Dialect('hermes', ('<tool_call>',), calls=(HERMES,)),
    Dialect('plain', calls=(HERMES,)),
)


def detect(template: str) -> Dialect:
    "The dialect of the model whose chat template is `template`."
    return next((d for d in FAMILIES if any(s in template for s in d.signs)), FAMILIES[-1])


def by_name(name: str) -> Dialect:
    "The dialect called `name`. Raises BadRequest listing them all."
    for d in FAMILIES:
        if d.name == name: return d
    raise BadRequest(f'There is no dialect {name!r}; choose from: {", ".join(d.name for d in FAMILIES)}.')
