"""The handles of one loaded model in llama.cpp, and the plain calls on them. Owner's thread only, but for `tokenize`
and `piece`, which llama.cpp allows from anywhere. Nothing here knows of chats or slots.
"""
from __future__ import annotations

import ctypes
from collections import deque

import llama_cpp as L

from ..errors import EngineError

__all__ = ['Native', 'set_fields']

_said = deque(maxlen=20)


@L.llama_log_callback
def _log(level, text, user_data):
    "Keep what the library complains about for our messages; print nothing into a cell."
    if level in (3, 4): _said.append(text.decode(errors='replace').strip())


L.llama_log_set(_log, ctypes.c_void_p(0))


def _strlen():
    "`strlen` as an abort callback: true once the stop flag's first byte is set, and no Python runs inside a decode."
    import sys
    libc = ctypes.cdll.msvcrt if sys.platform == 'win32' else ctypes.CDLL(None)
    return L.ggml_abort_callback(ctypes.cast(libc.strlen, ctypes.c_void_p).value)


def set_fields(params, values: dict):
    "Set fields of a parameter struct by name; returns those that it does not have."
    known = dict(params._fields_)
    for k, v in values.items():
        if k in known: setattr(params, k, v)
    return {k: v for k, v in values.items() if k not in known}


class Native:
    "One model, one context, one batch of `n_batch` tokens. `free` ends all of it."
    def __init__(self):
        self.model = self.ctx = self.batch = self.chain = None
        self._abort, self._stop = _strlen(), None

    def load(self, path, params, progress):
        "Load the weights; `progress(fraction) -> bool` goes on while true. False when it was stopped."
        going = [True]
        def report(fraction, _):
            going[0] = going[0] and progress(fraction)
            return going[0]
        params.progress_callback = keep = L.llama_progress_callback(report)
        _said.clear()
        self.model = L.llama_model_load_from_file(str(path).encode(), params)
        del keep
        if not self.model and going[0]: raise EngineError(f'llama.cpp cannot load {path}: {self.complaint()}')
        if self.model: self.vocab = L.llama_model_get_vocab(self.model)
        return bool(self.model)

    def open(self, params):
        "Make the context; its window and batch are read back, since the library rounds them."
        _said.clear()
        self.ctx = L.llama_init_from_model(self.model, params)
        if not self.ctx: raise EngineError(f'llama.cpp cannot make a context of {params.n_ctx:,} tokens: '
                                           f'{self.complaint()} Load with a smaller n_ctx.')
        self.memory, self.n_ctx = L.llama_get_memory(self.ctx), L.llama_n_ctx_seq(self.ctx)
        self.n_batch = L.llama_n_batch(self.ctx)
        self.batch = L.llama_batch_init(self.n_batch, 0, 1)

    def free(self):
        for name, free in (('chain', L.llama_sampler_free), ('batch', L.llama_batch_free), ('ctx', L.llama_free),
                           ('model', L.llama_model_free)):
            handle = getattr(self, name)
            setattr(self, name, None)
            if handle is not None: free(handle)

    @staticmethod
    def complaint(): return ' '.join(s for s in list(_said)[-3:] if s) or 'no reason was given.'

    # --- vocabulary ---------------------------------------------------------------------------------------------------
    def tokenize(self, data: bytes, special: bool):
        n = len(data) + 8
        for _ in range(2):
            buf = (L.llama_token * n)()
            got = L.llama_tokenize(self.vocab, data, len(data), buf, n, special, True)
            if got >= 0: return buf[:got]
            n = -got
        raise EngineError('llama.cpp cannot tokenise this text.')

    def piece(self, id: int) -> bytes:
        buf = ctypes.create_string_buffer(128)
        n = L.llama_token_to_piece(self.vocab, id, buf, 128, 0, True)
        if n < 0:
            buf = ctypes.create_string_buffer(-n)
            n = L.llama_token_to_piece(self.vocab, id, buf, -n, 0, True)
        return buf.raw[:n]

    def is_control(self, id: int) -> bool: return L.llama_vocab_is_control(self.vocab, id)
    def is_eog(self, id: int) -> bool: return L.llama_vocab_is_eog(self.vocab, id)

    def meta(self, key: str) -> str | None:
        "A metadata value of the file as text."
        n = L.llama_model_meta_val_str(self.model, key.encode(), ctypes.create_string_buffer(1), 1)
        if n < 0: return None
        buf = ctypes.create_string_buffer(n + 1)
        L.llama_model_meta_val_str(self.model, key.encode(), buf, n + 1)
        return buf.value.decode(errors='replace')

    # --- evaluation ---------------------------------------------------------------------------------------------------
    def decode(self, tokens, seq: int, at: int, stop) -> int:
        """Evaluate `tokens` from position `at` of sequence `seq`, logits for the last one. 0: done; 1: the pool has no
        room, nothing happened; 2: `stop` broke it off."""
        if stop is not self._stop:
            self._stop = stop            # kept: the library holds a pointer into it
            L.llama_set_abort_callback(self.ctx, self._abort, ctypes.cast(stop.flag, ctypes.c_void_p))
        b = self.batch
        b.n_tokens = n = len(tokens)
        for i, t in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = t, at + i, 1, i == n - 1
            b.seq_id[i][0] = seq
        code = L.llama_decode(self.ctx, b)
        if code not in (0, 1, 2): raise EngineError(f'llama.cpp failed to decode ({code}): {self.complaint()}')
        return code

    def trim(self, seq: int, n: int) -> bool:
        "Drop what sequence `seq` holds from position `n` on; False where the cache cannot do that."
        return bool(L.llama_memory_seq_rm(self.memory, seq, n if n else -1, -1))

    def copy(self, seq: int, to: int, n: int):
        "Let sequence `to` share the first `n` cells of `seq`; only metadata is written."
        L.llama_memory_seq_cp(self.memory, seq, to, 0, n)

    def save(self, seq: int) -> bytes | None:
        "The state of a sequence in host memory, or None where it cannot be had."
        size = L.llama_state_seq_get_size(self.ctx, seq)
        buf = (ctypes.c_uint8 * size)()
        return bytes(buf) if size and L.llama_state_seq_get_data(self.ctx, buf, size, seq) == size else None

    def restore(self, seq: int, state: bytes) -> bool:
        "Put a saved state into sequence `seq`; False when there is no room for it."
        buf = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        return L.llama_state_seq_set_data(self.ctx, buf, len(state), seq) == len(state)

    def sampler(self, parts) -> callable:
        "A fresh chain of `parts`; returns `() -> id`, which samples from the last logits."
        if self.chain is not None: L.llama_sampler_free(self.chain)
        self.chain = chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        for p in parts: L.llama_sampler_chain_add(chain, p)
        sample, ctx = L.llama_sampler_sample, self.ctx
        return lambda: sample(chain, ctx, -1)

    def logits(self, n_vocab: int):
        "The last logits as a numpy view that the sampler reads too."
        import numpy as np
        return np.ctypeslib.as_array(L.llama_get_logits_ith(self.ctx, -1), shape=(n_vocab,))

    def kv_bytes(self, seq: int) -> int: return L.llama_state_seq_get_size(self.ctx, seq)
