"""What the slots of the KV cache hold, which one serves a new prompt, and why a prefix ended. Pure.

A prompt is a list of cells: token ids, later also media tokens by content key. Two prompts share exactly their common
prefix of cells; text plays no part here. A slot is one sequence of the engine's pool; sequences share the cells of a
common prefix, so a copy of it costs nothing.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ['Slot', 'Edge', 'Choice', 'choose', 'evictable', 'common_prefix_len', 'plan', 'reason', 'extends',
           'state', 'used']

BRANCH = 32     # a slot that would lose more cells than this is kept beside the new one, as a branch to come back to


@dataclass(eq=False)
class Slot:
    """One sequence: `seq` is its number in the engine (None: it was moved to host memory and `state` holds it), `cells`
    what it holds, `owner` whose conversation it is (None: a branch that was left, or with `once` a one-shot), `used`
    when it was last of use. Where the cache cannot be cut at any place, `floor` is the fewest cells that it can be cut
    to (None: it cannot), and `edges` are the snapshots of it by number of cells."""
    seq: int | None = None
    cells: list = field(default_factory=list)
    owner: object = None
    used: int = 0
    state: object = None
    once: bool = False
    floor: int | None = None
    edges: dict[int, Edge] = field(default_factory=dict)


@dataclass(eq=False)
class Edge:
    "A snapshot of a slot: its `state`, when it was last of `used`, and whether it lasts only until the next one."
    state: bytes
    used: int = 0
    passing: bool = False


@dataclass(frozen=True)
class Choice:
    "Serve a prompt with the first `keep` cells of `slot`: of itself ('own'), of a 'copy' of it, or of none ('new')."
    how: str
    slot: Slot | None = None
    keep: int = 0


def common_prefix_len(a: Sequence, b: Sequence) -> int:
    "How many first items `a` and `b` share."
    n = min(len(a), len(b))
    if a[:n] == b[:n]: return n
    low, high = 0, n                     # a[:low] is shared, a[:high] is not
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if a[low:mid] == b[low:mid] else (low, mid)
    return low


def plan(held: Sequence, wanted: Sequence, can_trim=True, floor: int | None = None, edges: Iterable[int] = ()) -> int:
    """How many first cells of `held` to keep for `wanted`. At least one cell of `wanted` is left to evaluate, since
    the next token's logits come from it; without `can_trim` a cache is kept whole, cut to no less than `floor`, or
    taken back to one of `edges`."""
    n = min(common_prefix_len(held, wanted), len(wanted) - 1)
    if can_trim or n >= (len(held) if floor is None else floor): return n
    return max((e for e in edges if e <= n), default=0)


def choose(slots: Iterable[Slot], owner, wanted: Sequence, can_trim=True, branch=True) -> Choice:
    """Which slot serves `wanted` for `owner`: the one that shares most with it, and of equals the owner's own. The own
    slot is taken as it is when little is lost or nothing worth keeping (`branch=False`), else copied, so that the
    branch that it holds stays warm."""
    best = Choice('new')
    for s in slots:
        keep, own = plan(s.cells, wanted, can_trim, s.floor, s.edges), owner is not None and s.owner is owner
        if keep > best.keep or (keep == best.keep and own):
            best = Choice('own' if own and (not branch or len(s.cells) - keep <= BRANCH) else 'copy', s, keep)
    return best if best.keep or best.how == 'own' else Choice('new')


def evictable(slots: Iterable[Slot], but: Slot | None) -> Slot | None:
    "The slot to give up when room is short: nobody's before somebody's, and of those the one not used for longest."
    there = [s for s in slots if s is not but and s.seq is not None]
    return min(there, key=lambda s: (s.owner is not None, s.used), default=None)


def state(slot: Slot) -> str:
    "What a slot is, in words."
    if slot.seq is None: return 'in host memory'
    if slot.once: return 'one-shot'
    return 'branch' if slot.owner is None else 'idle'


def used(held: Sequence[Sequence]) -> int:
    "How many cells hold all of these, those of common prefixes counted once."
    return sum(len(a) - max((common_prefix_len(a, b) for b in held[:i]), default=0) for i, a in enumerate(held))


def reason(old: list[dict] | None, new: list[dict], *, kept: int, had: int, shared: int, changed_at=None,
           settings=False, can_trim=True) -> tuple[str, bool]:
    """Why the prefix ended, in words, and whether tokens are paid for again: `(why, lost)`.
    `old` are the messages of the turn before with its answer (None: there was none), `new` those of this prompt.
    `had` tokens were in the cache after the turn before, `shared` of them are a prefix of the new prompt, `kept` were
    still there; without `can_trim` more was, in a cache that could not be cut there. `changed_at()` gives the message
    (from 1) in which the text first differs."""
    if old is None: return 'first turn', False
    if kept < min(shared, had) - 1:
        return ('evicted' if can_trim else 'model cannot trim its cache'), True
    same = common_prefix_len([_bare(m) for m in old], [_bare(m) for m in new])
    if same == len(old):
        if kept >= had - 1: return 'extends the conversation', False
        at = changed_at() if changed_at else same
        return 'settings changed' if settings else f'template rewrote message {at}', True
    if settings: return 'settings changed', True
    if same >= len(new) - 1: return f'went back to turn {sum(_begins(m) for m in new)}', False
    return f'history edited at message {same + 1}', True


def extends(old: list[dict] | None, new: list[dict]) -> bool:
    "Whether the messages `new` only go on from `old`."
    return bool(old) and common_prefix_len([_bare(m) for m in old], [_bare(m) for m in new]) == len(old)


def _begins(m): return m['role'] == 'user' and not m.get('meta', {}).get('follows')
def _bare(m): return {k: v for k, v in m.items() if k != 'meta'}
