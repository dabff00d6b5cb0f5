"""The llama.cpp runtime: any GGUF model, through llama-cpp-python's low-level API."""
from __future__ import annotations

from ..core import Chat, checked
from .weights import _gguf, _mmproj, get_mmproj

__all__ = ['LlamaChat', 'get_mmproj', 'gpu_offload_supported', 'qwen3_06b', 'qwen3_17b', 'qwen3_4b', 'gemma4_e2b']

qwen3_06b, qwen3_17b, qwen3_4b = 'Qwen/Qwen3-0.6B-GGUF', 'Qwen/Qwen3-1.7B-GGUF', 'Qwen/Qwen3-4B-GGUF'
gemma4_e2b = 'unsloth/gemma-4-E2B-it-GGUF'

OPTIONS = ('quant', 'n_ctx', 'n_gpu_layers', 'n_threads', 'eng_kw', 'preserve_cache')


class LlamaChat(Chat):
    """A Chat over a GGUF model. Options: `quant` the preferred quantisation, `n_ctx` the window in tokens (capped at
    what the model was trained for), `n_gpu_layers` layers on the GPU (-1: all), `n_threads` (default: the physical
    cores), `eng_kw` any field of llama.cpp's model and context parameters; `comp_kw` more sampling options
    (`repeat_penalty`, `presence_penalty`, `frequency_penalty`). `preserve_cache` is taken and changes nothing:
    one-shots and other chats have slots of their own, so the cache of a conversation is always preserved."""
    _runtime = 'llama'
    _free = ('preserve_cache',)

    @classmethod
    def _load(cls, model, *, model_path=None, stop=None, **options):
        checked(options, OPTIONS, 'llama')
        options.pop('preserve_cache', None)
        from .engine import load
        return (yield from load(model, model_path=model_path, stop=stop, **options))


def gpu_offload_supported() -> bool:
    "Whether the installed llama-cpp-python was built with GPU offload. Raises BackendMissing."
    from .probe import check
    check()
    from .native import L
    return bool(L.llama_supports_gpu_offload())
