"""Messages to text through the model's own chat template, in a sandbox.

What Hugging Face's `apply_chat_template` gives to templates is given here too: `raise_exception`, `strftime_now`,
`tojson` with its keywords, loop controls and the `generation` tag.
"""
from __future__ import annotations

import json
from functools import cached_property

from ..errors import BadRequest

__all__ = ['Template', 'CHATML', 'for_template', 'flat']

CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


class Template:
    "One model's chat template; `bos` and `eos` are the texts of its special tokens."

    def __init__(self, source: str | None, bos='', eos=''):
        self.source, self.bos, self.eos = source or CHATML, bos, eos

    def mentions(self, word: str) -> bool: return word in self.source

    @cached_property
    def _compiled(self):
        from jinja2 import TemplateError
        try: return _environment().from_string(self.source)
        except TemplateError as e: raise BadRequest(f'The chat template of this model cannot be read: {_line(e)}') from e

    def render(self, messages: list[dict], *, now, generate=True, **kw) -> str:
        """The prompt for `messages`; with `generate` it ends where the assistant begins. `now` is a datetime.
        Raises BadRequest when the template refuses the messages."""
        from jinja2 import TemplateError
        def refuse(why): raise TemplateError(str(why))
        try:
            return self._compiled.render(messages=[for_template(m) for m in messages], add_generation_prompt=generate,
                                         bos_token=self.bos, eos_token=self.eos, raise_exception=refuse,
                                         strftime_now=lambda fmt: now.strftime(fmt), **kw)
        except TemplateError as e:
            raise BadRequest(f'The chat template of this model refuses these messages: {_line(e)}') from e
        except (TypeError, ValueError, KeyError, AttributeError) as e:
            raise BadRequest(f'The chat template of this model fails on these messages: {_line(e)}') from e


def for_template(m: dict) -> dict:
    "A message as templates expect it: text content as one string, thinking as `reasoning_content`."
    out = {k: v for k, v in m.items() if k not in ('meta', 'thinking')}
    out['content'] = flat(m.get('content'))
    if m.get('thinking'): out['reasoning_content'] = m['thinking']
    return out


def flat(content):
    "None as '', a list of text parts as one string, anything with media as it is."
    if content is None: return ''
    if isinstance(content, str): return content
    texts = [p if isinstance(p, str) else p.get('text') for p in content]
    return content if any(t is None for t in texts) else '\n'.join(texts)


def _line(e): return ' '.join(str(e).split()) or type(e).__name__


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
    return env


def _tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    "Plain JSON: Jinja's own filter escapes `<` and `'`, which models never saw."
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
