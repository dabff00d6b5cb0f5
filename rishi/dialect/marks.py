"""Finding fixed strings in text that comes in pieces, so that the pieces make no difference.

A position is decided only when no longer mark can begin there any more; until then the text from it on is held back.
"""
from __future__ import annotations

import re
from functools import lru_cache

__all__ = ['find', 'skip_space']

_SPACE = re.compile(r'\s*')


@lru_cache(maxsize=512)
def _compiled(marks):
    by_length = sorted(set(marks), key=len, reverse=True)
    heads = frozenset(m[:k] for m in by_length for k in range(1, len(m)))
    return re.compile('|'.join(map(re.escape, by_length))), heads, len(by_length[0]) - 1


def find(marks: tuple[str, ...], buf: str, pos: int, final: bool) -> tuple[str | None, int]:
    """The first of `marks` in `buf` from `pos`, and where it stands; or None, and how far `buf` is surely none of them.
    `final` says that nothing will follow."""
    if not marks: return None, len(buf)
    regex, heads, longest = _compiled(marks)
    end = len(buf)
    if not final:
        spans = range(min(longest, len(buf) - pos), 0, -1)
        end -= next((k for k in spans if buf[len(buf) - k:] in heads), 0)
    m = regex.search(buf, pos)
    return (m.group(), m.start()) if m and m.start() < end else (None, end)


def skip_space(buf: str, pos: int) -> int:
    "The first position from `pos` on that is not white space."
    return _SPACE.match(buf, pos).end()
