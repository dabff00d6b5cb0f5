"""The handles of one loaded model in llama.cpp, and the plain calls on them. Owner's thread only, but for `tokenize`
and `piece`, which llama.cpp allows from anywhere. Nothing here knows of chats or slots.
"""
from __future__ import annotations

import ctypes
import sys
import weakref
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
        self.model = self.ctx = self.batch = None
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
        if self.model:
            self.vocab, self.n_swa = L.llama_model_get_vocab(self.model), L.llama_model_n_swa(self.model)
            self.whole = L.llama_model_is_recurrent(self.model) or L.llama_model_is_hybrid(self.model)
        return bool(self.model)

    def open(self, params):
        "Make the context; its window and batch are read back, since the library rounds them."
        _said.clear()
        self.ctx = L.llama_init_from_model(self.model, params)
        if not self.ctx: raise EngineError(f'llama.cpp cannot make a context of {params.n_ctx:,} tokens: '
                                           f'{self.complaint()} Load with a smaller n_ctx.')
        self.memory, self.n_ctx = L.llama_get_memory(self.ctx), L.llama_n_ctx_seq(self.ctx)
        self.n_batch, self.parts = L.llama_n_batch(self.ctx), self.whole or (self.n_swa > 0 and not params.swa_full)
        self.batch = L.llama_batch_init(self.n_batch, 0, 1)

    def free(self):
        for name, free in (('batch', L.llama_batch_free), ('ctx', L.llama_free), ('model', L.llama_model_free)):
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
    def decode(self, rows, stop) -> int:
        """Evaluate `rows` of (tokens, sequence, position of the first), with logits for the last token of each. 0:
        done; 1: the pool has no room, nothing happened; 2: `stop` broke it off."""
        if stop is not self._stop:
            self._stop = stop            # kept: the library holds a pointer into it
            L.llama_set_abort_callback(self.ctx, self._abort, ctypes.cast(stop.flag, ctypes.c_void_p))
        b, n = self.batch, 0
        for tokens, seq, at in rows:
            for i, t in enumerate(tokens, n):
                b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = t, at + i - n, 1, False
                b.seq_id[i][0] = seq
            n += len(tokens)
            b.logits[n - 1] = True
        b.n_tokens = n
        code = L.llama_decode(self.ctx, b)
        if code not in (0, 1, 2): raise EngineError(f'llama.cpp failed to decode ({code}): {self.complaint()}')
        return code

    def trim(self, seq: int, n: int) -> bool:
        "Drop what sequence `seq` holds from position `n` on; False where the cache cannot do that."
        return bool(L.llama_memory_seq_rm(self.memory, seq, n if n else -1, -1))

    def copy(self, seq: int, to: int, n: int):
        """Let sequence `to` share the first `n` cells of `seq`; only metadata is written. A sliding window is copied:
        its pool is small, and shared cells are not freed when the window moves on."""
        L.llama_memory_seq_cp(self.memory, seq, to, 0, n)
        if not (self.n_swa and self.parts) or (window := self.save(to, part=True)) is None: return
        if not self.restore(to, window, part=True): L.llama_memory_seq_cp(self.memory, seq, to, 0, n)

    def floor(self, seq: int) -> int:
        """The fewest cells that sequence `seq` can be cut to, but for none. A recurrent state stands for all that was
        read; a sliding window must reach back from the last cell that is left."""
        low = L.llama_memory_seq_pos_min(self.memory, seq)
        if low < 0: return sys.maxsize
        return low + 1 if self.whole else low + self.n_swa - 1 if low else 0

    def save(self, seq: int, part=False) -> bytes | None:
        """The state of a sequence in host memory, or None where it cannot be had. A `part` is what cannot be cut: the
        recurrent state, the sliding window."""
        flags = L.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if part else 0
        size = L.llama_state_seq_get_size_ext(self.ctx, seq, flags)
        buf = (ctypes.c_uint8 * size)()
        return bytes(buf) if size and L.llama_state_seq_get_data_ext(self.ctx, buf, size, seq, flags) == size else None

    def restore(self, seq: int, state: bytes, part=False) -> bool:
        "Put a saved state into sequence `seq`; False when there is no room for it."
        flags = L.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if part else 0
        buf = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        return L.llama_state_seq_set_data_ext(self.ctx, buf, len(state), seq, flags) == len(state)

    def sampler(self, parts) -> callable:
        """A fresh chain of `parts`; returns `(i=-1) -> id`, which samples from the logits of token `i` of the last
        batch. The chain lives as long as what is returned."""
        chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        for p in parts: L.llama_sampler_chain_add(chain, p)
        sample, ctx = L.llama_sampler_sample, self.ctx
        def draw(i=-1): return sample(chain, ctx, i)
        weakref.finalize(draw, L.llama_sampler_free, chain).atexit = False
        return draw

    def logits(self, n_vocab: int, i=-1):
        "The logits of token `i` of the last batch, as a numpy view that the sampler reads too."
        import numpy as np
        return np.ctypeslib.as_array(L.llama_get_logits_ith(self.ctx, i), shape=(n_vocab,))

    def kv_bytes(self, seq: int) -> int: return L.llama_state_seq_get_size(self.ctx, seq)
