"""The tools of a chat in a notebook: functions by the names they have there, and who decides about their calls."""
from __future__ import annotations

from rishi.errors import BadRequest
from rishi.tools import Policy, Toolbox, hitl_policy

from .request import suggestion

__all__ = ['found', 'summaries', 'approver']

VERDICTS = dict(ask='check', always='approved', never='dont_run')
_NONE = object()


def found(names, ns, hint='') -> Toolbox:
    """The functions that `names` (`add`, `db.find`) stand for in the namespace `ns` now; the model is told the last
    part of each. BadRequest names the first that is none, and adds `hint`."""
    table = {}
    for name in names:
        fn, last = _look_up(name, ns, hint), name.rpartition('.')[2]
        if table.setdefault(last, fn) != fn:
            raise BadRequest(f'Two tools are called {last}: {", ".join(names)}. Give one of them another name.')
    return Toolbox(table)


def _look_up(name, ns, hint):
    first, *rest = name.split('.')
    o, near = ns.get(first, _NONE), [n for n, v in ns.items() if n[:1] != '_' and callable(v)]
    for i, part in enumerate(rest):
        if o is _NONE: break
        near = ['.'.join([first, *rest[:i], n]) for n in dir(o) if n[:1] != '_']
        o = getattr(o, part, _NONE)
    if o is _NONE:
        near = suggestion(name, near)
        raise BadRequest(f'There is no function {name} here.{near} Run the cell that defines it{hint}.')
    if callable(o): return o
    raise BadRequest(f'{name} cannot be a tool: it is a value of type {type(o).__name__}, not a function.')


def summaries(toolbox) -> dict[str, str]:
    "The first line of each tool's description."
    told = (s['function'] for s in toolbox.schemas)
    return {f['name']: (f.get('description') or '').strip().split('\n')[0] for f in told}


def approver(how, granted, ask, own):
    """What decides about a chat's calls. `how` is one of `APPROVALS`, or None: then `own` decides, the chat's own
    `approve`. `ask(call)` is put where a person is to be asked, but for the tools in `granted`."""
    if how is not None: return Policy(_granted({}, VERDICTS[how], granted), ask, VERDICTS[how])
    on_console = isinstance(own, Policy) and own.ask is hitl_policy({}).ask
    return Policy(_granted(own.policy, own.default, granted), ask, own.default) if on_console else own


def _granted(table, default, names):
    return table | {n: 'approved' for n in names if table.get(n, default) == 'check'}
