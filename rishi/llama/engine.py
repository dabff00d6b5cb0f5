"""`LlamaEngine`: the primitives of `rishi.engine.Engine` on llama.cpp's low-level API."""
from __future__ import annotations

import difflib
import hashlib
import secrets
import threading
import weakref

from ..dialect import Template
from ..engine import Engine, PoolFull
from ..errors import BadRequest, EngineError
from ..machine import physical_cores
from ..owner import Stop
from ..types import Progress, Sampling
from . import probe
from .gguf import fingerprint
from .weights import resolve

__all__ = ['LlamaEngine', 'load']

EMBEDDED_SYSTEM = 'You are a helpful assistant.'   # without one, SmolLM2-135M answers English questions in French
SHAPE = ('type_k', 'type_v', 'flash_attn_type', 'kv_unified', 'swa_full', 'attention_type', 'rope_scaling_type',
         'rope_freq_base', 'rope_freq_scale', 'yarn_ext_factor', 'yarn_attn_factor', 'yarn_beta_fast', 'yarn_beta_slow',
         'yarn_orig_ctx')                # the options that decide what the bytes of the cache mean
DEFAULTS = dict(temp=.8, top_k=40, top_p=.95, min_p=.05)


def load(model=None, *, model_path=None, quant='Q4_K_M', n_ctx=8192, n_gpu_layers=0, n_threads=None, eng_kw=None,
         stop=None):
    """Find the weights and load them: yields Progress, returns a LlamaEngine. `n_ctx` is capped at what the model was
    trained for, unless `eng_kw` rescales its positions. `eng_kw` holds any numeric field of llama.cpp's model and
    context parameters. Raises ModelNotFound, BadWeights, BackendMissing, EngineDied, EngineError, BadRequest."""
    _check(n_ctx=n_ctx, n_gpu_layers=n_gpu_layers, n_threads=n_threads)
    file = yield from _resolved(model, model_path, quant, stop)
    verdict = probe.check()
    eng = LlamaEngine(file, dict(n_gpu_layers=n_gpu_layers, use_extra_bufts=verdict.extra_bufts),
                      n_ctx, n_threads or physical_cores(), dict(eng_kw or {}))
    try: yield from eng.owner.stream(eng._load, stop or Stop())
    except BaseException:
        eng.close()
        raise
    return eng


def _resolved(model, model_path, quant, stop):
    "Run the search for the weights on a thread, so that a download can tell how far it is."
    from ..owner import Owner
    finder = Owner('download')
    def job(flag, emit):
        return resolve(model, model_path=model_path, quant=quant, stop=flag,
                       progress=lambda done, total: emit(Progress('download', done, total)))
    try: return (yield from finder.stream(job, stop or Stop()))
    finally: finder.close()


def _check(**numbers):
    for k, v in numbers.items():
        low = -1 if k == 'n_gpu_layers' else 1
        if v is not None and (isinstance(v, bool) or not isinstance(v, int) or v < low):
            raise BadRequest(f'{k}={v!r} cannot be used: it must be a whole number of at least {low}.')


class LlamaEngine(Engine):
    "A GGUF model, loaded by `load`."
    runtime, n_seq, batched = 'llama', 16, True

    def __init__(self, file, model_kw, n_ctx, n_threads, eng_kw):
        super().__init__(file.name)
        self.file, self.path, self.n_threads = file, file.path, n_threads
        self.system = EMBEDDED_SYSTEM if file.source == 'wheel' else ''
        self._asked = (model_kw, n_ctx, eng_kw)
        self._pieces, self._native, self._vocab_lock = {}, None, threading.Lock()

    def _load(self, stop, emit):
        from .native import L, Native
        self._native, (model_kw, n_ctx, eng_kw) = Native(), self._asked
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _end, self.owner, self._native)
        mp, cp = L.llama_model_default_params(), L.llama_context_default_params()
        _fill((mp, cp), model_kw | eng_kw)
        emit(Progress('load', 0, 1000))
        def report(fraction):
            emit(Progress('load', int(fraction * 1000), 1000))
            return not stop.is_set()
        if not self._native.load(self.path, mp, report):
            raise EngineError(f'Loading {self.name} was stopped; run it again to load it.')
        trained = L.llama_model_n_ctx_train(self._native.model)
        if self._native.whole: self.n_seq = 4        # each has a state of full size, used or not
        rescaled = any(k.startswith(('rope', 'yarn')) for k in eng_kw)
        own = dict(n_ctx=n_ctx if rescaled else min(n_ctx, trained), n_batch=256, n_seq_max=self.n_seq,
                   kv_unified=True, no_perf=True, n_threads=self.n_threads, n_threads_batch=self.n_threads)
        _fill((mp, cp), own | eng_kw)
        self._shape = {k: getattr(cp, k) for k in SHAPE}
        self._native.open(cp)
        self._describe(L, model_kw)

    def _describe(self, L, model_kw):
        n, vocab = self._native, self._native.vocab
        self.n_ctx, self.batch, self.vocab_size = n.n_ctx, n.n_batch, L.llama_vocab_n_tokens(vocab)
        self.can_trim, self.snaps = not (n.whole or n.n_swa), n.parts
        self.n_threads, self.n_seq = L.llama_n_threads(n.ctx), L.llama_n_seq_max(n.ctx)
        self.gpu = bool(model_kw['n_gpu_layers']) and bool(L.llama_supports_gpu_offload())
        self._bos = L.llama_vocab_bos(vocab) if L.llama_vocab_get_add_bos(vocab) else None
        text = lambda id: self.piece(id).decode(errors='replace') if id >= 0 else ''
        self.template = Template(n.meta('tokenizer.chat_template'), text(L.llama_vocab_bos(vocab)),
                                 text(L.llama_vocab_eos(vocab)))
        self._defaults = DEFAULTS | {k: type(v)(float(m)) for k, v in DEFAULTS.items()
                                     if (m := n.meta(f'general.sampling.{k}')) is not None}

    def tokenize(self, data, first):
        bos = first and self._bos is not None and not data.startswith(self.piece(self._bos) or b'\0')
        with self._vocab_lock:
            self.check_open()
            return self._native.tokenize(data, bos)

    def _look(self, id):
        "What a token stands for and whether it is a control token, asked once."
        if (known := self._pieces.get(id)) is None:
            with self._vocab_lock:
                self.check_open()
                known = self._pieces[id] = (self._native.piece(id), self._native.is_control(id))
        return known

    def piece(self, id): return self._look(id)[0]
    def is_control(self, id): return self._look(id)[1]
    def is_eog(self, id): return self._native.is_eog(id)
    def _trim(self, seq, n): return self._native.trim(seq, n)
    def _copy(self, seq, to, n): self._native.copy(seq, to, n)
    def _save(self, seq): return self._native.save(seq)
    def _restore(self, seq, state): return self._native.restore(seq, state)
    def _floor(self, seq): return self._native.floor(seq)
    def _snap(self, seq): return self._native.save(seq, part=True)
    def _unsnap(self, seq, state): return self._native.restore(seq, state, part=True)
    def _kv_bytes(self, seq): return self._native.kv_bytes(seq)

    def identity(self):
        from .native import L
        return dict(model=fingerprint(self.path), template=hashlib.sha256(self.template.source.encode()).hexdigest(),
                    library=f'llama-cpp-python {L.__version__}', **self._shape)

    def _eval(self, tokens, seq, at, stop): return self._eval_rows([(tokens, seq, at)], stop)

    def _eval_rows(self, rows, stop):
        code = self._native.decode(rows, stop)
        if code == 1: raise PoolFull
        return code == 0

    def _free(self):
        with self._vocab_lock:           # other threads may be tokenising
            if self._native: self._native.free()

    def _logits(self): return self._native.logits(self.vocab_size).copy()

    def _sampler(self, sampling: Sampling, constraint):
        sample = self._chain(sampling)
        if constraint is None: return sample
        from ..grammar import narrow
        def narrowed(i=-1):
            narrow(self._native.logits(self.vocab_size, i), constraint.mask())
            tok = sample(i)
            constraint.accept(tok)
            return tok
        return narrowed

    def _chain(self, sampling):
        from .native import L
        get = lambda k: self._defaults[k] if getattr(sampling, k) is None else getattr(sampling, k)
        parts = []
        penalties = [sampling.repeat_penalty or 1.0, sampling.frequency_penalty or 0.0,
                     sampling.presence_penalty or 0.0]
        if penalties != [1.0, 0.0, 0.0]:
            parts.append(L.llama_sampler_init_penalties(self.vocab_size, 64, *penalties))
        if get('temp') == 0: return self._native.sampler([*parts, L.llama_sampler_init_greedy()])
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF
        parts += [L.llama_sampler_init_top_k(get('top_k')), L.llama_sampler_init_top_p(get('top_p'), 1),
                  L.llama_sampler_init_min_p(get('min_p'), 1), L.llama_sampler_init_temp(get('temp')),
                  L.llama_sampler_init_dist(seed)]
        return self._native.sampler(parts)


def _end(owner, native): owner.close(native.free)


def _fill(structs, values):
    "Set each value on the struct that has its field; a name that none has is the caller's mistake."
    from .native import set_fields
    left = values
    for s in structs:
        try: left = set_fields(s, left)
        except TypeError as e: raise BadRequest(f'An engine option has the wrong kind of value: {e}.') from e
    if left:
        bad, names = next(iter(left)), [f for s in structs for f, _ in s._fields_]
        near = difflib.get_close_matches(bad, names, 1)
        raise BadRequest(f'llama.cpp has no engine option {bad!r}' + (f'; did you mean {near[0]!r}?' if near else '.'))
