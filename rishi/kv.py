"""What a slot of the KV cache holds, what a new prompt needs of it, and why a prefix ended. Pure.

A prompt is a list of cells: token ids, later also media tokens by content key. Two prompts share exactly their
common prefix of cells; text plays no part here.
"""
from __future__ import annotations

from collections.abc import Sequence

__all__ = ['common_prefix_len', 'plan', 'reason']


def common_prefix_len(a: Sequence, b: Sequence) -> int:
    "How many first items `a` and `b` share."
    n = min(len(a), len(b))
    if a[:n] == b[:n]: return n
    low, high = 0, n                     # a[:low] is shared, a[:high] is not
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if a[low:mid] == b[low:mid] else (low, mid)
    return low


def plan(held: Sequence, wanted: Sequence, can_trim=True) -> int:
    """How many first cells of `held` to keep for `wanted`. At least one cell of `wanted` is left to evaluate, since
    the next token's logits come from it; without `can_trim` a cache is kept whole or not at all."""
    n = min(common_prefix_len(held, wanted), len(wanted) - 1)
    return n if can_trim or n == len(held) else 0


def reason(old: list[dict] | None, new: list[dict], *, kept: int, had: int, shared: int, changed_at=None,
           settings=False) -> tuple[str, bool]:
    """Why the prefix ended, in words, and whether tokens are paid for again: `(why, lost)`.
    `old` are the messages of the turn before with its answer (None: there was none), `new` those of this prompt.
    `had` tokens were in the cache after the turn before, `shared` of them are a prefix of the new prompt, `kept` were
    still there. `changed_at()` gives the message (from 1) in which the text first differs."""
    if old is None: return 'first turn', False
    if kept < min(shared, had) - 1: return 'evicted', True
    if kept >= had - 1: return 'extends the conversation', False
    if settings: return 'settings changed', True
    same = common_prefix_len([_bare(m) for m in old], [_bare(m) for m in new])
    if same >= len(new) - 1 and same < len(old):
        return f'went back to turn {sum(m["role"] == "user" for m in new)}', False
    if same == len(old): return f'template rewrote message {changed_at() if changed_at else same}', True
    return f'history edited at message {same + 1}', True


def _bare(m): return {k: v for k, v in m.items() if k != 'meta'}
