"""Messages to text through the model's own chat template.

Templates are strict in different ways. Content None becomes '', text parts become one text, arguments read as a mapping
and as JSON alike. When a template refuses a conversation (two user turns in a row, a system turn), or drops its system
prompt in silence, the same is said in a way that it takes; only when there is none is that an error, in the template's
own words. A template without tools gets them described in the system turn, calls and results as text.
"""
from __future__ import annotations

import re
from functools import cached_property

from ..errors import BadRequest
from .sandbox import Refused, compiled, one_line
from .shape import for_template, in_text, ways

__all__ = ['Template', 'CHATML']

CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
_ASKS_NONE = re.compile(r'''\bcontent['"]?\]?\s+is\s+(?:not\s+)?none\b''')
_NINE = re.compile(r'length\s*!=\s*9')
_SWITCHES = ('enable_thinking', 'thinking')


class Template:
    "One model's chat template; `bos` and `eos` are the texts of its special tokens."

    def __init__(self, source: str | None, bos='', eos=''):
        self.source, self.bos, self.eos = source or CHATML, bos, eos

    def mentions(self, word: str) -> bool: return word in self.source

    @cached_property
    def _keeps_none(self) -> bool:
        "Whether the template itself asks for content that is None."
        return self.supports_tools and bool(_ASKS_NONE.search(self.source))

    @cached_property
    def _compiled(self): return compiled(self.source)

    @property
    def supports_tools(self) -> bool:
        "Whether the template itself tells the model about tools and writes calls; else that is done in plain text."
        return 'tools' in self._compiled[1] and self.mentions('tool_calls')

    def render(self, messages: list[dict], *, now, generate=True, tools=None, **kw) -> str:
        """The prompt for `messages`; with `generate` it ends where the assistant begins. `now` is a datetime, `tools`
        are schemas, other keywords go to the template. Raises BadRequest when the template refuses the messages."""
        kw |= {'add_generation_prompt': generate, 'bos_token': self.bos, 'eos_token': self.eos,
               'strftime_now': lambda fmt: now.strftime(fmt)}
        if 'enable_thinking' in kw: kw |= {s: kw['enable_thinking'] for s in _SWITCHES if s in self._compiled[1]}
        if self.supports_tools and tools: kw['tools'] = tools
        return self._first(self._shaped(messages, tools), kw)

    def _shaped(self, messages, tools):
        shaped = [for_template(m, none=self._keeps_none) for m in messages]
        if not self.supports_tools: return in_text(shaped, tools)
        return _nine_long(shaped) if _NINE.search(self.source) else shaped

    def _first(self, messages, kw):
        "The first way that the template takes with nothing lost, else the first that it takes."
        why, first, system = None, None, _system(messages)
        for way in ways(messages):
            try: prompt = self._render(way, kw)
            except Refused as e:
                why = why or e
                continue
            if system in prompt: return prompt
            first = prompt if first is None else first
        if first is not None: return first
        raise BadRequest(f'The chat template of this model refuses these messages: {one_line(why)}') from why

    def _render(self, messages, kw):
        from jinja2 import TemplateError
        media = [m['content'] for m in messages if isinstance(m.get('content'), list)]
        try: prompt = self._compiled[0].render(messages=messages, **kw)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as e:
            why = f'it takes text only ({one_line(e)})' if media else one_line(e)
            raise BadRequest(f'The chat template of this model fails on these messages: {why}') from e
        if not any(str(c) in prompt for c in media): return prompt
        raise BadRequest('The chat template of this model takes text only, and the messages hold more than text.')


def _system(messages):
    "The system prompt, as far as a template must have kept it."
    content = next((m['content'] for m in messages if m['role'] == 'system'), '')
    return content.strip() if isinstance(content, str) else ''


def _nine_long(messages):
    "Ids of nine letters and digits, as some templates demand; those that are so already stay."
    ids = [c['id'] for m in messages for c in m.get('tool_calls') or ()]
    new = {i: i if re.fullmatch(r'[A-Za-z0-9]{9}', i) else f'call{n % 100000:05d}' for n, i in enumerate(ids)}
    def changed(m):
        if m.get('tool_calls'): return m | {'tool_calls': [c | {'id': new[c['id']]} for c in m['tool_calls']]}
        return m | {'tool_call_id': new.get(m['tool_call_id'], m['tool_call_id'])} if 'tool_call_id' in m else m
    return [changed(m) for m in messages]
