"""Text to token ids without losing what is known: generated ids stay as they were generated. Pure.

Tokenising a conversation anew need not give the ids that the model produced, and then its cache is of no use. So each
chat remembers which text stood for which ids. A new text keeps the ids of the part that it shares, up to a control
token (`<|im_start|>` and the like), since no token ever reaches across one.
"""
from __future__ import annotations

from dataclasses import dataclass

from .kv import common_prefix_len

__all__ = ['Encoded', 'encode', 'extend']


@dataclass(frozen=True)
class Encoded:
    "`ids` stand for `data` (UTF-8); `marks` are (byte, index, size) of control tokens: where new text may be cut."
    data: bytes = b''
    ids: tuple[int, ...] = ()
    marks: tuple[tuple[int, int, int], ...] = ()


def encode(text: str, known: Encoded, vocab) -> Encoded:
    """`text` as ids, those of `known` reused as far as the texts agree.
    `vocab` has `tokenize(data, first) -> ids`, `piece(id) -> bytes` and `is_control(id)`."""
    data = text.encode()
    shared = common_prefix_len(known.data, data)
    if shared == len(known.data):
        ids = vocab.tokenize(data[shared:], first=shared == 0) if data[shared:] else []
        if not shared or not ids or vocab.is_control(ids[0]): return extend(known, data[shared:], ids, vocab)
    mark = next((m for m in reversed(known.marks) if m[0] + m[2] <= shared), None)
    if mark is None: return extend(Encoded(), data, vocab.tokenize(data, first=True), vocab)
    at, n, _ = mark
    base = Encoded(data[:at], known.ids[:n], tuple(m for m in known.marks if m[0] < at))
    return extend(base, data[at:], vocab.tokenize(data[at:], first=at == 0), vocab)


def extend(base: Encoded, data: bytes, ids, vocab) -> Encoded:
    "`base` and then `data`, which `ids` stand for."
    pieces = [vocab.piece(i) for i in ids]
    marks, at = [], len(base.data)
    for k, (i, p) in enumerate(zip(ids, pieces)):
        if vocab.is_control(i) and p: marks.append((at, len(base.ids) + k, len(p)))
        at += len(p)
    exact = b''.join(pieces) == data     # not so where a tokenizer adds or drops a space: then only the start is sure
    if not exact: marks = marks[:1] if marks and marks[0][1] == len(base.ids) and data.startswith(pieces[0]) else []
    return Encoded(base.data + data, base.ids + tuple(ids), base.marks + tuple(marks))
