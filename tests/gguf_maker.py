"""GGUF files of a few hundred bytes, written without any library, and the check that a call fails with one line."""
import struct

import pytest

from rishi.llama import gguf


def text(s): return struct.pack('<Q', len(s.encode())) + s.encode()


def pair(key, value):
    "One metadata pair: text, a list of texts or of numbers, bool, float, or an unsigned number."
    if isinstance(value, str): return text(key) + struct.pack('<I', 8) + text(value)
    if isinstance(value, list) and value and isinstance(value[0], int):
        return text(key) + struct.pack(f'<IIQ{len(value)}i', 9, 5, len(value), *value)
    if isinstance(value, list): return text(key) + struct.pack('<IIQ', 9, 8, len(value)) + b''.join(map(text, value))
    if isinstance(value, bool): return text(key) + struct.pack('<I?', 7, value)
    if isinstance(value, float): return text(key) + struct.pack('<If', 6, value)
    return text(key) + struct.pack('<II', 4, value)


def padded(b): return b + bytes(-len(b) % 32)


def whole(meta, tensors, version=3, order='<'):
    "A GGUF of `meta` and of tensors: (name, shape as GGUF orders it, type, bytes) each."
    head = b'GGUF' + struct.pack(order + 'IQQ', version, len(tensors), len(meta))
    head += b''.join(pair(k, v) for k, v in meta.items())
    data = b''
    for name, shape, kind, body in tensors:
        head += text(name) + struct.pack(f'<I{len(shape)}QIQ', len(shape), *shape, kind, len(data))
        data += padded(body)
    return padded(head) + data


def make(version=3, tensors=((64, 2),), order='<', **meta):
    "A GGUF of Q4_0-like tensors: (elements, type) each; `meta` with __ for dots."
    meta = {'general.architecture': 'llama', **{k.replace('__', '.'): v for k, v in meta.items()}}
    def body(n, kind):
        block, size = gguf._BLOCKS[kind]
        return bytes(n // block * size)
    return whole(meta, [(f't{i}', (n,), kind, body(n, kind)) for i, (n, kind) in enumerate(tensors)], version, order)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def split(folder, n=3):
    return [write(folder/f'm-{i:05}-of-{n:05}.gguf', make(split__count=n, split__no=i - 1)) for i in range(1, n + 1)]


def fails(kind, call, *words):
    with pytest.raises(kind) as e: call()
    message = str(e.value)
    assert '\n' not in message
    for w in words: assert w in message
    return message
