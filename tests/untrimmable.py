"""Small models with random weights whose caches cannot be cut just anywhere: a sliding window, a recurrent model, and a
hybrid of both kinds of layer. ChatML over bytes; they write lower-case letters.
"""
import numpy as np
from gguf_maker import whole

WIDTH, INNER, STATE, RANK, CONV, HEADS, KV_HEADS, FFN = 48, 96, 8, 4, 4, 4, 2, 96
WINDOW = 32
CONTROL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
END = CONTROL.index('<|im_end|>')


def byte_names():
    "The 256 bytes as byte-level BPE writes them: printable characters as they are, the others from U+0100 on."
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


TOKENS = CONTROL + byte_names()


def tokenizer():
    return {'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'gpt-2', 'tokenizer.ggml.tokens': TOKENS,
            'tokenizer.ggml.token_type': [3] * len(CONTROL) + [1] * 256, 'tokenizer.ggml.merges': ['a a'],
            'tokenizer.ggml.eos_token_id': END, 'tokenizer.ggml.add_bos_token': False}


class Weights:
    "Tensors of one model, gathered by name; the same ones each time."
    def __init__(self): self.rng, self.all = np.random.default_rng(4), []

    def put(self, name, values):
        values = np.asarray(values, np.float32)
        self.all.append((name, values.shape[::-1], 0, values.tobytes()))

    def matrix(self, name, rows, columns, scale=1.0):
        self.put(name, self.rng.normal(size=(rows, columns)) * scale / columns ** .5)

    def norm(self, name, n): self.put(name, np.ones(n))

    def embeddings(self, scale=1.0):
        self.matrix('token_embd.weight', len(TOKENS), WIDTH, scale * WIDTH ** .5)
        self.norm('output_norm.weight', WIDTH)
        letters = np.array([len(t) == 1 and t.isascii() and t.islower() for t in TOKENS])
        self.put('output.weight', self.rng.normal(size=(len(TOKENS), WIDTH)) * np.where(letters, .5, .01)[:, None])

    def attention(self, at):
        head = WIDTH // HEADS
        for name, rows in (('q', WIDTH), ('k', head * KV_HEADS), ('v', head * KV_HEADS), ('output', WIDTH)):
            self.matrix(f'{at}attn_{name}.weight', rows, WIDTH, 2)

    def ffn(self, at):
        for name, rows, columns in (('gate', FFN, WIDTH), ('up', FFN, WIDTH), ('down', WIDTH, FFN)):
            self.matrix(f'{at}ffn_{name}.weight', rows, columns)

    def ssm(self, at, norms):
        self.matrix(at + 'ssm_in.weight', 2 * INNER, WIDTH)
        self.matrix(at + 'ssm_conv1d.weight', INNER, CONV, 2)
        self.put(at + 'ssm_conv1d.bias', np.zeros(INNER))
        self.matrix(at + 'ssm_x.weight', RANK + 2 * STATE, INNER)
        self.matrix(at + 'ssm_dt.weight', INNER, RANK)
        self.put(at + 'ssm_dt.bias', np.full(INNER, -3.))
        self.put(at + 'ssm_a', -np.tile(np.linspace(.05, .5, STATE), (INNER, 1)))
        self.put(at + 'ssm_d', np.ones(INNER))
        self.matrix(at + 'ssm_out.weight', WIDTH, INNER, 2)
        if not norms: return
        for name, n in (('dt', RANK), ('b', STATE), ('c', STATE)): self.norm(f'{at}ssm_{name}_norm.weight', n)


def _model(arch, weights, **meta):
    meta = {f'{arch}.{k.replace("__", ".")}': v for k, v in meta.items()}
    common = {'general.architecture': arch, 'general.name': f'Tiny {arch}', f'{arch}.context_length': 2048,
              f'{arch}.embedding_length': WIDTH, f'{arch}.attention.layer_norm_rms_epsilon': 1e-5,
              f'{arch}.feed_forward_length': FFN, f'{arch}.attention.head_count': HEADS}
    return whole(common | meta | tokenizer(), weights.all)


SSM = dict(ssm__conv_kernel=CONV, ssm__inner_size=INNER, ssm__state_size=STATE, ssm__time_step_rank=RANK)


def sliding(layers=4):
    "Gemma 3: layers with a window of 32 tokens take turns with layers that see everything."
    w = Weights()
    w.embeddings(WIDTH ** -.5)
    for i in range(layers):
        at = f'blk.{i}.'
        w.attention(at)
        w.ffn(at)
        for name in ('attn', 'post_attention', 'ffn', 'post_ffw'): w.norm(f'{at}{name}_norm.weight', WIDTH)
        for name in 'qk': w.norm(f'{at}attn_{name}_norm.weight', WIDTH // HEADS)
    head = WIDTH // HEADS
    return _model('gemma3', w, block_count=layers, attention__head_count_kv=KV_HEADS, attention__sliding_window=WINDOW,
                  attention__sliding_window_pattern=2, attention__key_length=head, attention__value_length=head)


def recurrent(layers=2):
    "Mamba: a state of fixed size for all that was read."
    w = Weights()
    w.embeddings()
    for i in range(layers):
        w.norm(f'blk.{i}.attn_norm.weight', WIDTH)
        w.ssm(f'blk.{i}.', norms=False)
    return _model('mamba', w, block_count=layers, **SSM)


def hybrid():
    "Jamba: a recurrent layer, one of attention, a recurrent one."
    w, kv_heads = Weights(), [0, KV_HEADS, 0]
    w.embeddings()
    for i, n in enumerate(kv_heads):
        at = f'blk.{i}.'
        w.attention(at) if n else w.ssm(at, norms=True)
        w.ffn(at)
        for name in ('attn_norm', 'ffn_norm'): w.norm(f'{at}{name}.weight', WIDTH)
    return _model('jamba', w, block_count=3, attention__head_count_kv=kv_heads, **SSM)


MODELS = {'sliding': sliding, 'recurrent': recurrent, 'hybrid': hybrid}
