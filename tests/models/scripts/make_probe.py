"""python make_probe.py [OUT]: the model of the self-check, `rishi/llama/probe.gguf`.

A llama of one layer with random weights and no vocabulary. Each matrix has another quantisation, so that one decode
goes through the kernels which users' models use. Widths are multiples of 256: K-quants need whole super-blocks, and
AMX takes matrices only with 32 rows or a multiple. The same bytes come out each time.
"""
import random
import struct
import sys
from pathlib import Path

__all__ = ['model_bytes']

WIDTH, VOCAB, HEADS = 256, 256, 4
ALIGN = 32
OUT = Path(__file__).resolve().parents[3]/'rishi'/'llama'/'probe.gguf'

# ggml type -> (id, weights in a block, block of random bytes with scales that keep the activations near 1)
def f16(*xs): return struct.pack(f'<{len(xs)}e', *xs)

BLOCKS = {
    'q4_0': (2, 32, lambda r: f16(.0136) + r.randbytes(16)),
    'q4_1': (3, 32, lambda r: f16(.0136, -.102) + r.randbytes(16)),
    'q8_0': (8, 32, lambda r: f16(.00085) + r.randbytes(32)),
    'q4_k': (12, 256, lambda r: f16(.00044, .0033) + r.randbytes(12 + 128)),
    'q6_k': (14, 256, lambda r: r.randbytes(128 + 64 + 16) + f16(4.6e-5)),
}
MATRICES = {
    'token_embd': ('q8_0', VOCAB), 'blk.0.attn_q': ('q8_0', WIDTH), 'blk.0.attn_k': ('q4_0', WIDTH//HEADS),
    'blk.0.attn_v': ('q6_k', WIDTH//HEADS), 'blk.0.attn_output': ('q4_k', WIDTH), 'blk.0.ffn_gate': ('q4_0', WIDTH),
    'blk.0.ffn_up': ('q4_1', WIDTH), 'blk.0.ffn_down': ('q6_k', WIDTH),
}
NORMS = ('blk.0.attn_norm', 'blk.0.ffn_norm', 'output_norm')
META = {
    'general.architecture': 'llama', 'general.name': 'rishi self-check', 'general.license': 'apache-2.0',
    'llama.block_count': 1, 'llama.context_length': 256, 'llama.embedding_length': WIDTH, 'llama.vocab_size': VOCAB,
    'llama.feed_forward_length': WIDTH, 'llama.attention.head_count': HEADS, 'llama.attention.head_count_kv': 1,
    'llama.attention.layer_norm_rms_epsilon': 1e-5, 'tokenizer.ggml.model': 'none',
}


def gguf_str(s): return struct.pack('<Q', len(s)) + s.encode()


def gguf_kv(key, v):
    "One metadata entry: text (type 8), whole number (uint32, type 4) or float32 (type 6)."
    if isinstance(v, str): return gguf_str(key) + struct.pack('<I', 8) + gguf_str(v)
    return gguf_str(key) + struct.pack('<If' if isinstance(v, float) else '<II', 6 if isinstance(v, float) else 4, v)


def tensors(r):
    "Yields (name, shape as GGUF orders it, type id, bytes)."
    for name in NORMS: yield name, (WIDTH,), 0, struct.pack(f'<{WIDTH}f', *[1.]*WIDTH)
    for name, (kind, rows) in MATRICES.items():
        tid, n, block = BLOCKS[kind]
        yield name, (WIDTH, rows), tid, b''.join(block(r) for _ in range(WIDTH*rows//n))


def padded(b): return b + bytes(-len(b) % ALIGN)


def model_bytes() -> bytes:
    "The whole file."
    infos, data = b'', b''
    ts = list(tensors(random.Random(0)))
    for name, shape, tid, body in ts:
        infos += gguf_str(name + '.weight') + struct.pack(f'<I{len(shape)}QIQ', len(shape), *shape, tid, len(data))
        data += padded(body)
    head = b'GGUF' + struct.pack('<IQQ', 3, len(ts), len(META)) + b''.join(gguf_kv(k, v) for k, v in META.items())
    return padded(head + infos) + data


if __name__ == '__main__':
    out = Path(sys.argv[1]) if sys.argv[1:] else OUT
    out.write_bytes(model_bytes())
    print(f'{out}: {out.stat().st_size:,} bytes')
