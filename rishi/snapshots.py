"""Snapshots: how an engine goes back whose cache cannot be cut at any place, as with recurrent and hybrid models and
with sliding windows that moved on.

A snapshot is the part of a sequence's state that cannot be cut. It is taken at the edges of turns, where later prompts
will differ, and kept in host memory with the slot whose first cells it stands for. Going back restores the nearest one
and cuts the rest. Snapshots and the slots that were moved to host memory share one budget, the least used go first.
"""
from __future__ import annotations

from collections.abc import Iterable

from .kv import Edge, Slot

__all__ = ['edges', 'keep', 'back', 'fit']


def edges(ids: list[int], is_eog, is_control) -> set[int]:
    """Where in the prompt `ids` snapshots are worth while: behind the first message, and before the last one and its
    answer. Told by the tokens that end messages, or else by control tokens."""
    found = [i + 1 for i, t in enumerate(ids) if is_eog(t)] or [i for i, t in enumerate(ids) if is_control(t)]
    return {*found[:1], *found[-2:]}


def keep(engine, slot: Slot, passing=False):
    "Take a snapshot of `slot` as it stands. One in passing is for an interrupt: it lives until the next one."
    if (state := engine._snap(slot.seq)) is None: return
    slot.edges = {n: e for n, e in slot.edges.items() if not e.passing}
    slot.edges[len(slot.cells)] = Edge(state, engine._clock, passing)
    fit(engine, slot)


def back(engine, slot: Slot, n: int) -> int:
    "Restore the last snapshot within the first `n` cells of `slot`; returns how many it holds then (0: none was left)."
    if at := max((e for e in slot.edges if e <= n), default=0):
        edge = slot.edges[at]
        edge.used = engine._clock
        whole = engine._unsnap(slot.seq, edge.state)
        while not whole and engine._make_room(slot): whole = engine._unsnap(slot.seq, edge.state)
        if whole and engine._trim(slot.seq, at): return at
    engine._trim(slot.seq, 0)
    return 0


def fit(engine, but: Slot | None):
    "Drop what was not used for longest until what is in host memory fits; the state of `but` is not counted."
    while True:
        parked, taken = [s for s in engine.slots if s.seq is None and s is not but], _taken(engine.slots)
        if sum(len(o.state) for o in [*parked, *taken]) <= engine.host_bytes: return
        last = min([*parked, *taken], key=lambda o: o.used)
        if isinstance(last, Slot): engine._drop([last])
        else:
            for s in engine.slots: s.edges = {n: e for n, e in s.edges.items() if e is not last}


def _taken(slots: Iterable[Slot]) -> set[Edge]: return {e for s in slots for e in s.edges.values()}
