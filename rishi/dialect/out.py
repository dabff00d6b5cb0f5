"""What a splitter has found so far, with the white space put right.

White space around thinking and around calls belongs to the format, not to the answer: it is dropped. Where a call or
thinking stood between two texts, a line break there becomes an empty line, a blank stays a blank. An answer that
nothing interrupts is kept to the letter.
"""
from __future__ import annotations

__all__ = ['Out']


class Out:
    "Gathers parts; `exact` keeps the answer's leading white space, as when no thinking stands before it."

    def __init__(self, exact: bool):
        self._parts = []
        self._gap, self._said, self._cut = {'think': [], 'text': []}, set(), {'think'} if exact else {'think', 'text'}

    def say(self, kind: str, text: str):
        "More of `kind`, 'think' or 'text'; white space waits until something follows it."
        body, gap = text.strip(), self._gap[kind]
        if not body:
            if text: gap.append(text)
            return
        lead = len(text) - len(text.lstrip())
        gap.append(text[:lead])
        self._put(kind, self._joint(kind, ''.join(gap)), body)
        self._gap[kind] = [text[lead + len(body):]]
        self._said.add(kind)
        self._cut.discard(kind)

    def cut(self, kind: str):
        "Something else comes between this and more of `kind`."
        self._cut.add(kind)

    def call(self, call):
        "A tool call."
        self.cut('text')
        self._parts.append(('call', call))

    def take(self) -> list[tuple]:
        "The parts since the last time; neighbours of one kind are one."
        parts, self._parts = self._parts, []
        return [(kind, ''.join(p) if kind != 'call' else p) for kind, p in parts]

    def end(self):
        "Nothing follows: white space at the end of an answer is its own."
        if 'text' in self._said and 'text' not in self._cut: self._put('text', ''.join(self._gap['text']))

    def _joint(self, kind, gap):
        if kind not in self._cut: return gap
        if kind not in self._said: return ''
        return '\n\n' if kind == 'think' or '\n' in gap else ' ' if gap else ''

    def _put(self, kind, *texts):
        if not self._parts or self._parts[-1][0] != kind: self._parts.append((kind, []))
        self._parts[-1][1].extend(texts)
