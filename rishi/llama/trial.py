"""A script run by `probe` in a process of its own: load a small quantised model and decode with it, or die.

It stands alone (no relative import), for it must not depend on anything but the library under test.
Arguments: the folder that holds `llama_cpp`, the model, and 1 or 0 for the library's extra buffers.
"""
import math
import sys

__all__ = ['decode']


def decode(lib, path: str, extra_bufts: bool, n: int = 32) -> bool:
    "Evaluate a prompt of `n` tokens and one token more; True when all logits are finite."
    mp, cp = lib.llama_model_default_params(), lib.llama_context_default_params()
    mp.use_extra_bufts, mp.n_gpu_layers = extra_bufts, 0
    cp.n_ctx, cp.n_threads, cp.n_threads_batch, cp.offload_kqv, cp.op_offload = 64, 1, 1, False, False
    model = lib.llama_model_load_from_file(path.encode(), mp)
    if not model: raise OSError(f'{path} did not load')
    ctx = lib.llama_init_from_model(model, cp)
    width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    good = all(_step(lib, ctx, ids, width) for ids in (list(range(n)), [n]))
    lib.llama_free(ctx)
    lib.llama_model_free(model)
    return good


def _step(lib, ctx, ids, width):
    "A single token, or an unquantised model, does not show the fault looked for: whence the batch."
    held = (lib.llama_token*len(ids))(*ids)  # the batch points into it
    if lib.llama_decode(ctx, lib.llama_batch_get_one(held, len(ids))): return False
    logits = lib.llama_get_logits_ith(ctx, -1)
    return all(math.isfinite(logits[i]) for i in range(width))


def _no_core_dump():
    "The death of this process is an answer, not something to file."
    try:
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError): pass


if __name__ == '__main__':
    _no_core_dump()
    sys.path.append(sys.argv[1])
    from llama_cpp import llama_cpp
    llama_cpp.llama_backend_init()
    if not decode(llama_cpp, sys.argv[2], sys.argv[3] == '1'): sys.exit('it did not decode to finite numbers')
