"""A conversation and its KV cache as one file: what was said, the token ids that it stands for, and their state.

Layout (little endian): magic, format, size of the header, its SHA-256; the header (JSON); the states, one behind the
other: that of all cells, and of a model that cannot trim its cache the snapshots too. The header tells what made the
file, and the sizes and SHA-256 of the states: no byte of them goes to native code before that sum is right.
"""
from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from . import history
from .encode import Encoded
from .errors import BadRequest, EngineBusy

__all__ = ['DiskMixin', 'write', 'read']

MAGIC, FORMAT = b'rishi-kv', 1
_FIRST = struct.Struct('<8sIQ32s')
HASHES = {'model': 'another model', 'template': 'another chat template'}


class DiskMixin:
    "The part of a Chat that keeps its cache in a file."

    def save_cache(self, path):
        """Write the conversation and its KV state to a file, for `load_cache` in another process: whole or not at all.
        Raises BadRequest where it cannot be written, EngineError for an engine without a state."""
        with self._quiet():
            made = self.engine.identity()
            cells, states = self.engine.export(self._known.ids, self._key)
            write(path, dict(name=self.engine.name, made=made, chat=_packed(self), cells=cells), states)

    def load_cache(self, path):
        """Go on from what `save_cache` wrote. Its history, system prompt and `think` replace those of the chat; tools
        and sampling stay the chat's own. Raises BadRequest for a file that is damaged, or made with another model,
        template, library or setting of the cache; the chat is as it was then, and goes on without the file."""
        with self._quiet():
            head, states = read(path, self.engine.identity())
            chat, cells = _unpacked(path, head['chat']), head['cells']
            if len(cells) > self.engine.n_ctx:
                raise BadRequest(f'{path} holds {len(cells):,} tokens, and the window {self.engine.n_ctx:,}: load the '
                                 'model with a larger n_ctx.')
            if states: self.engine.adopt(cells, states, self._key)
            self.hist[:] = chat.pop('hist')
            vars(self).update(chat)

    @contextmanager
    def _quiet(self):
        "No turn begins meanwhile."
        if not self._lock.acquire(blocking=False):
            raise EngineBusy('This chat is in the middle of a turn: wait for its end, or stop it.')
        try: yield
        finally: self._lock.release()


# --- a chat as plain data -------------------------------------------------------------------------------------------
def _packed(chat):
    k = chat._known
    known = dict(data=k.data.decode('utf-8', 'surrogateescape'), ids=k.ids, marks=k.marks)
    return dict(hist=chat.hist, sp=chat.sp, think=chat.think, now=chat._now.isoformat(), known=known, had=chat._had,
                seen=chat._seen, settings=chat._set)


def _unpacked(path, d):
    "The attributes of a chat that `_packed` gave."
    try:
        k, told = d['known'], d['settings']
        known = Encoded(k['data'].encode('utf-8', 'surrogateescape'), tuple(k['ids']), tuple(map(tuple, k['marks'])))
        return dict(hist=history.checked(d['hist']), sp=d['sp'], think=d['think'], _known=known, _had=d['had'],
                    _now=datetime.fromisoformat(d['now']), _seen=d['seen'], _set=told and tuple(told))
    except (KeyError, TypeError, ValueError) as e: raise _bad(path, f'its conversation cannot be read ({e!r})') from e


# --- the file -------------------------------------------------------------------------------------------------------
def write(path, head: dict, states: dict[int, bytes]):
    """Write `head` (plain data; `name` and `made` tell what made it) and the states at numbers of cells, whole or not
    at all. Raises BadRequest."""
    path = Path(path).expanduser()
    part = path.with_name(f'{path.name}.{os.getpid()}-{threading.get_ident()}.part')
    try:
        sizes = [(n, len(s)) for n, s in states.items()]
        text = json.dumps(head | dict(states=sizes, sum=_sum(states.values()))).encode()
        with part.open('wb') as f:
            f.write(_FIRST.pack(MAGIC, FORMAT, len(text), hashlib.sha256(text).digest()))
            f.write(text)
            for s in states.values(): f.write(s)
            f.flush()
            os.fsync(f.fileno())
        part.replace(path)
    except (OSError, TypeError, ValueError) as e:
        raise BadRequest(f'The cache cannot be saved to {path}: {getattr(e, "strerror", None) or e}.') from e
    finally: part.unlink(missing_ok=True)


def read(path, made: dict) -> tuple[dict, dict[int, bytes]]:
    "The head and the states that `write` wrote. Raises BadRequest for a damaged file, or one not `made` as given."
    path = Path(path).expanduser()
    try:
        with path.open('rb') as f:
            head, left = _head(path, f), path.stat().st_size - f.tell()
            if why := _foreign(head, made): raise _bad(path, why)
            total = sum(size for _, size in head['states'])
            if left != total: raise _bad(path, f'it is damaged, with {left:,} of {total:,} bytes of state')
            states = {n: f.read(size) for n, size in head['states']}
    except OSError as e: raise BadRequest(f'The cache cannot be read from {path}: {e.strerror}.') from e
    if _sum(states.values()) != head['sum']: raise _bad(path, 'its state is damaged')
    return head, states


def _sum(parts):
    total = hashlib.sha256()
    for p in parts: total.update(p)
    return total.hexdigest()


def _head(path, f) -> dict:
    first = f.read(_FIRST.size)
    if first[:len(MAGIC)] != MAGIC: raise _bad(path, 'it is no cache that `save_cache` wrote')
    if len(first) < _FIRST.size: raise _bad(path, 'it is cut short')
    _, version, n, total = _FIRST.unpack(first)
    if version != FORMAT: raise _bad(path, f'it has format {version}, and this version of rishi reads {FORMAT}')
    text = f.read(min(n, path.stat().st_size))
    if hashlib.sha256(text).digest() != total: raise _bad(path, 'it is cut short or damaged')
    return json.loads(text)


def _foreign(head, made) -> str:
    "What the file was made with that is not so here, in words, or ''."
    theirs = head['made']
    name = next((k for k in {**made, **theirs} if made.get(k) != theirs.get(k)), None)
    if name is None: return ''
    if name in HASHES: return f'it was made by {head["name"]} with {HASHES[name]}'
    return f'it was made with {name} {theirs.get(name)}, and here that is {made.get(name)}'


def _bad(path, why): return BadRequest(f'{path} cannot be used: {why}. The chat goes on without it.')
