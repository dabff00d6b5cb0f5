"""The header of a GGUF file, read without any library: what the model is, and whether the file is whole.

Layout (little endian): magic, version, tensor count, pair count, the key/value pairs, the tensor table, padding up to
`general.alignment`, tensor data. Token arrays are stepped over, never built.
"""
from __future__ import annotations

import hashlib
import mmap
import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ..errors import BadWeights, ModelNotFound

__all__ = ['Header', 'Damaged', 'check_gguf', 'read_header', 'parts', 'fingerprint']

# ggml's tensor types: id -> (weights in a block, bytes of a block)
_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
           10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
           16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
           23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
           34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18)}
_SCALARS = {i: struct.Struct('<' + c) for i, c in enumerate('BbHhIif?')} | {
    10: struct.Struct('<Q'), 11: struct.Struct('<q'), 12: struct.Struct('<d')}
_STRING, _ARRAY = 8, 9
_U32, _U64, _INFO = struct.Struct('<I'), struct.Struct('<Q'), struct.Struct('<IQ')
# the quantisation that `general.file_type` stands for
_FTYPES = {0: 'F32', 1: 'F16', 2: 'Q4_0', 3: 'Q4_1', 7: 'Q8_0', 8: 'Q5_0', 9: 'Q5_1', 10: 'Q2_K', 11: 'Q3_K_S',
           12: 'Q3_K_M', 13: 'Q3_K_L', 14: 'Q4_K_S', 15: 'Q4_K_M', 16: 'Q5_K_S', 17: 'Q5_K_M', 18: 'Q6_K',
           19: 'IQ2_XXS', 20: 'IQ2_XS', 21: 'Q2_K_S', 22: 'IQ3_XS', 23: 'IQ3_XXS', 24: 'IQ1_S', 25: 'IQ4_NL',
           26: 'IQ3_S', 27: 'IQ3_M', 28: 'IQ2_S', 29: 'IQ2_M', 30: 'IQ4_XS', 31: 'IQ1_M', 32: 'BF16', 36: 'TQ1_0',
           37: 'TQ2_0', 38: 'MXFP4_MOE', 39: 'NVFP4', 40: 'Q1_0', 41: 'Q2_0'}
_PART = re.compile(r'-(\d{5})-of-(\d{5})\.gguf$', re.IGNORECASE)
_HEAD, _SAMPLES = 16 << 20, 64         # bytes that hold any header; places to look at in the weights


class Damaged(BadWeights): "Not a GGUF at all, or cut short: the file is of no use to anybody."


@dataclass(frozen=True)
class Header:
    "`size` is the file's, in bytes; `meta` holds the scalar metadata under its GGUF keys (arrays are left out)."
    version: int
    n_tensors: int
    size: int
    meta: dict = field(repr=False)

    def _text(self, key): return v if isinstance(v := self.meta.get(key), str) else ''

    @property
    def arch(self) -> str: return self._text('general.architecture')
    @property
    def name(self) -> str: return self._text('general.name')
    @property
    def quant(self) -> str: return _FTYPES.get(self.meta.get('general.file_type'), '')
    @property
    def context_length(self) -> int: return self.meta.get(f'{self.arch}.context_length', 0)
    @property
    def chat_template(self) -> str: return self._text('tokenizer.chat_template')
    @property
    def is_projector(self) -> bool: return self.arch == 'clip'

    @property
    def sampling(self) -> dict:
        "What the model's makers advise: the `general.sampling.*` keys without their prefix."
        prefix = 'general.sampling.'
        return {k.removeprefix(prefix): v for k, v in self.meta.items() if k.startswith(prefix)}


def parts(name: str) -> list[str]:
    "All parts of the split file that `name` is one of, in order and in its folder; just `name` if it is not split."
    if not (m := _PART.search(name)): return [name]
    return [f'{name[:m.start()]}-{i:05}-of-{m[2]}{name[-5:]}' for i in range(1, int(m[2]) + 1)]


def check_gguf(path) -> Header:
    """Read the header of `path` and check that the file, and each further part of a split one, is whole.
    Raises ModelNotFound, or BadWeights (Damaged if the bytes are wrong) that says what is there instead."""
    path = Path(path)
    header = read_header(path)
    count = header.meta.get('split.count', 1)
    if isinstance(count, int) and count > 1: _check_parts(path, header, count)
    return header


def fingerprint(path) -> str:
    """A sum (hex) that tells a model's file from any other, in some 20 ms: over its size, its header and samples of its
    weights, those of a further training included. Raises ModelNotFound."""
    path, total = Path(path), hashlib.sha256()
    try:
        for name in parts(path.name):
            with path.with_name(name).open('rb') as f: _sum(f, total)
    except OSError as e: raise ModelNotFound(f'The file {path} cannot be read ({e.strerror}): check the path.') from e
    return total.hexdigest()


def _sum(file, total):
    size = file.seek(0, 2)
    total.update(_U64.pack(size))
    for at, n in [(0, _HEAD), *((_HEAD + i * (size - _HEAD) // _SAMPLES, 4096) for i in range(_SAMPLES))]:
        if at >= size: break
        file.seek(at)
        total.update(file.read(n))


def _check_parts(path, header, count):
    names = parts(path.name)
    if len(names) != count: raise BadWeights(f'{path} is one of {count} parts but was renamed: give it back its name '
                                             f'like model-00001-of-{count:05}.gguf, beside the others.')
    if gone := [n for n in names if not path.with_name(n).is_file()]:
        raise BadWeights(f'{path} is one of {count} parts, and {", ".join(gone)} is not beside it: fetch all parts.')
    for n in names:
        if n != path.name: read_header(path.with_name(n))


def read_header(path) -> Header:
    "The header of this one file, which must be as long as its tensor table says. Raises as `check_gguf`."
    path = Path(path)
    try:
        stat = path.stat()
        return _parse(path, stat.st_size, stat.st_mtime_ns)
    except OSError as e: raise ModelNotFound(f'The file {path} cannot be read ({e.strerror}): check the path.') from e


@lru_cache(maxsize=16)
def _parse(path, size, changed) -> Header:
    "Stepping over a vocabulary takes some 50 ms, and a model is looked at more than once on its way in."
    if not size: raise Damaged(f'{path} is empty (0 bytes): fetch it again.')
    with path.open('rb') as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        version = _version(path, m)
        try: tensors, meta, needed = _Reader(m).header()
        except (struct.error, IndexError, OverflowError) as e:
            raise Damaged(f'{path} is cut short or broken: its {size:,} bytes end inside the header. '
                          'Fetch it again.') from e
    if size < needed: raise Damaged(f'{path} is cut short: it has {size:,} of the {needed:,} bytes that its tensor '
                                    'table says. Fetch it again.')
    return Header(version, tensors, size, meta)


def _version(path, m) -> int:
    "The format version, or an error that says what the file is instead."
    if m[:4] != b'GGUF': raise Damaged(f'{path} is not a GGUF file: {_looks(m[:64])} Name another file.')
    if len(m) < 24: raise Damaged(f'{path} is cut short: {len(m)} bytes hold no GGUF header. Fetch it again.')
    version = _U32.unpack_from(m, 4)[0]
    if version and not version & 0xffff:
        raise BadWeights(f'{path} is a big-endian GGUF, made for another kind of machine: get the little-endian one.')
    if version not in (2, 3):
        raise BadWeights(f'{path} has GGUF version {version}; 2 and 3 are known. Get a newer conversion of the model.')
    return version


def _looks(head) -> str:
    "What the first bytes of a file that is no GGUF tell about it."
    known = ((b'<', 'it is a web page'), (b'version https://git-lfs', 'it is a Git LFS pointer (`git lfs pull`)'),
             (b'PK\x03\x04', 'it is a zip archive'), (b'tjgg', 'it is in the old GGML format'),
             (b'lmgg', 'it is in the old GGML format'), (b'\x1f\x8b', 'it is gzip-compressed'))
    what = next((w for start, w in known if head.lstrip().startswith(start)), 'its content is something else')
    if head[8:9] == b'{': what = 'it is in the safetensors format'
    return f'{what}, starting with {head[:16]!r}.'


class _Reader:
    "Walks over the mapped bytes `m` from `pos` on; running out of them raises struct.error or IndexError."

    def __init__(self, m): self.m, self.pos, self.end = m, 8, len(m)

    def header(self):
        "Tensor count, metadata, and the bytes that the file must have at least."
        tensors, pairs = self.take(_U64)[0], self.take(_U64)[0]
        meta = {}
        for _ in range(pairs):
            key, kind = self.text(), self.take(_U32)[0]
            value = self.value(kind)
            if value is not None: meta[key] = value
        ends = [self.tensor() for _ in range(tensors)]
        align = meta.get('general.alignment', 32)
        if not isinstance(align, int) or align < 1: raise IndexError(align)
        return tensors, meta, -(-self.pos // align) * align + max(ends) if ends else self.pos

    def take(self, s):
        out = s.unpack_from(self.m, self.pos)
        self.pos += s.size
        return out

    def skip(self, n):
        self.pos += n
        if self.pos > self.end: raise IndexError(self.pos)

    def text(self) -> str:
        n, start = self.take(_U64)[0], self.pos
        self.skip(n)
        return self.m[start:self.pos].decode('utf-8', 'replace')

    def value(self, kind):
        "A scalar or a string; arrays are stepped over and give None."
        if kind == _STRING: return self.text()
        if kind == _ARRAY: return self.array(self.take(_U32)[0], self.take(_U64)[0])
        if kind not in _SCALARS: raise IndexError(kind)
        return self.take(_SCALARS[kind])[0]

    def array(self, kind, n):
        if kind == _STRING: self.strings(n)
        elif kind == _ARRAY:
            for _ in range(n): self.array(self.take(_U32)[0], self.take(_U64)[0])
        elif kind in _SCALARS: self.skip(n * _SCALARS[kind].size)
        else: raise IndexError(kind)

    def strings(self, n):
        "Step over `n` strings; a vocabulary has 150,000, so the loop holds only the jump."
        m, pos, unpack = self.m, self.pos, _U64.unpack_from
        for _ in range(n): pos += 8 + unpack(m, pos)[0]
        self.pos = pos
        self.skip(0)

    def tensor(self) -> int:
        "Where one tensor ends, in bytes from the start of the data."
        self.text()
        count = 1
        for _ in range(self.take(_U32)[0]): count *= self.take(_U64)[0]
        kind, offset = self.take(_INFO)
        block, size = _BLOCKS.get(kind, (1, 0))     # of a type newer than this table only the start is known
        return offset + count // block * size
