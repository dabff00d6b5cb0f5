"""Jinja as chat templates know it, in a sandbox: what Hugging Face's `apply_chat_template` gives is given here too."""
from __future__ import annotations

import json

from ..errors import BadRequest

__all__ = ['compiled', 'Refused', 'one_line']


class Refused(Exception): "A template called `raise_exception`; the text is its own."


def compiled(source: str):
    """`source` as a template, and the names that it wants to be given. Raises BadRequest when it is no Jinja."""
    from jinja2 import TemplateError, meta
    env = _environment()
    try: return env.from_string(source), frozenset(meta.find_undeclared_variables(env.parse(source)))
    except (TemplateError, RecursionError) as e:
        raise BadRequest(f'The chat template of this model cannot be read: {one_line(e)}') from e


def one_line(e) -> str:
    "What an exception says, in one line."
    return ' '.join(str(e).split()) or type(e).__name__


def _refuse(why='no reason given'): raise Refused(str(why))


def _environment():
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        "`{% generation %}` marks the assistant's tokens for training; here it is transparent."
        tags = {'generation'}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(['name:endgeneration'], drop_needle=True)
            return nodes.Scope(body, lineno=line)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=['jinja2.ext.loopcontrols', Generation])
    env.filters['tojson'] = _tojson
    env.globals['raise_exception'] = _refuse
    return env


def _tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    "Plain JSON: Jinja's own filter escapes `<` and `'`, which models never saw."
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
