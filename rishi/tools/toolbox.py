"""The tools of a chat: a table from exact names to functions, and their schemas in order."""
from __future__ import annotations

from collections.abc import Mapping
from types import BuiltinMethodType, MethodType

from ..errors import BadRequest
from .schema import Tool, make_tool

__all__ = ['Toolbox']


class Toolbox:
    """The functions that a model may call: one, a list, or `{name: function}`.
    The same function twice is one tool; two functions of one name are a BadRequest."""

    def __init__(self, functions=None):
        self._tools = {}
        for name, fn in _pairs(functions): self._add(make_tool(fn, name))

    def _add(self, tool):
        had = self._tools.setdefault(tool.name, tool)
        if not _same(had.fn, tool.fn):
            raise BadRequest(f"Two different tools are called {tool.name}. Pass one as {{'other_name': function}}.")

    @property
    def schemas(self) -> list[dict]:
        "What the model is told, in order."
        return [o.schema for o in self._tools.values()]

    @property
    def names(self) -> list[str]:
        "The names, in order."
        return list(self._tools)

    @property
    def functions(self) -> list:
        "The functions as they were given, in order."
        return [o.fn for o in self._tools.values()]

    def get(self, name) -> Tool | None:
        "The tool of exactly this name, or None."
        return self._tools.get(name) if isinstance(name, str) else None

    def __getitem__(self, name):
        "The function of exactly this name; KeyError if there is none."
        return self._tools[name].fn

    def __contains__(self, name): return self.get(name) is not None
    def __iter__(self): return iter(self._tools)
    def __len__(self): return len(self._tools)
    def __repr__(self): return f'Toolbox({", ".join(self._tools)})'


def _pairs(functions):
    if functions is None: return []
    if isinstance(functions, Toolbox): functions = dict(zip(functions.names, functions.functions))
    if isinstance(functions, Mapping): return list(functions.items())
    if callable(functions) or isinstance(functions, str): functions = [functions]
    try: return [(None, o) for o in functions]
    except TypeError: return [(None, functions)]


def _same(a, b):
    "Whether both are one object, or one method of one object: each look-up of `obj.method` makes a new one."
    return a is b or isinstance(a, (MethodType, BuiltinMethodType)) and a == b
