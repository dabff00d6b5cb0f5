"""What a tool returned -> the text that the model reads, cut to a length."""
from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import pathlib
import uuid
from collections.abc import Iterator, Mapping, Set

__all__ = ['to_text', 'clip', 'one_line', 'says']

MOST_ITEMS = 1000        # read of an iterator, which may have no end
_AS_TEXT = (pathlib.PurePath, decimal.Decimal, uuid.UUID)
_TIMES = (datetime.date, datetime.time)


def to_text(o) -> str:
    """Text as it is; numbers, True, None as Python prints them; lists, dicts, dataclasses, pydantic models as JSON;
    bytes as text if they are; an iterator as the list of its first 1,000 items; anything else as its repr."""
    if isinstance(o, Iterator): o = list(itertools.islice(o, MOST_ITEMS))
    o = _plain(o)
    if isinstance(o, (dict, list, tuple)):
        try: return _clean(json.dumps(o, ensure_ascii=False, default=_inner))
        except (TypeError, ValueError, RecursionError): return _clean(repr(o))
    return _clean(o if isinstance(o, str) else repr(o))


def _plain(o):
    "One level nearer to JSON; what has no such form comes back as it is."
    if isinstance(o, enum.Enum): return _plain(o.value)
    if isinstance(o, (str, dict, list)): return o
    if isinstance(o, tuple): return o._asdict() if hasattr(o, '_asdict') else o
    if dataclasses.is_dataclass(o) and not isinstance(o, type):
        return {f.name: getattr(o, f.name) for f in dataclasses.fields(o)}
    if hasattr(o, 'model_dump') and not isinstance(o, type): return o.model_dump(mode='json')
    if isinstance(o, _AS_TEXT): return str(o)
    if isinstance(o, _TIMES): return o.isoformat()
    if isinstance(o, Set): return sorted(o, key=_order)
    if isinstance(o, Mapping): return dict(o)
    if isinstance(o, (bytes, bytearray)): return _decoded(o)
    if getattr(o, 'shape', None) == () and hasattr(o, 'item'): return o.item()      # a number of numpy or torch
    return o


def _order(o): return type(o).__name__, o if isinstance(o, (int, float, str)) else repr(o)


def _inner(o):
    "The same inside a list or dict, where arrays become lists."
    got = _plain(o)
    if got is not o: return got
    return o.tolist() if hasattr(o, 'tolist') else repr(o)


def _decoded(data):
    try: return bytes(data).decode()
    except UnicodeDecodeError: return f'<{len(data):,} bytes>'


def _clean(text):
    "Half a surrogate pair, as file names may hold, would break the tokenizer."
    return text.encode('utf-8', 'backslashreplace').decode()


def clip(text: str, max_len: int | None) -> str:
    "The first `max_len` characters, and a note of how many were cut."
    if max_len is None or len(text) <= max_len: return text
    return f'{text[:max_len]}… {len(text) - max_len:,} of {len(text):,} characters cut'


def one_line(text) -> str:
    "The text with runs of white space as single blanks."
    return ' '.join(str(text).split())


def says(e: BaseException) -> str:
    "An exception in one line: `ValueError: bad`, or its type alone when it says nothing."
    try: text = _clean(one_line(e))
    except Exception: text = ''
    return f'{type(e).__name__}: {text}' if text else type(e).__name__
