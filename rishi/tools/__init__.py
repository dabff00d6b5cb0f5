"""Tools: what a function looks like to a model, and what becomes of a call.

`Toolbox(functions).schemas` goes into the prompt; `check`, then `decide`, then `run` or `run_many` make a `ToolResult`
of each `ToolCall`. A model's mistakes are results that it reads; a caller's are `BadRequest`.
"""
from .approve import Policy, asks, decide, denied, hitl_policy
from .call import arguments_of, check, failed, interrupted, run, run_many
from .coerce import Mismatch, coerce, expected
from .schema import json_type, tool_schema
from .text import clip, to_text
from .toolbox import Toolbox

__all__ = ['Toolbox', 'tool_schema', 'json_type', 'coerce', 'expected', 'Mismatch', 'check', 'run', 'run_many',
           'arguments_of', 'failed', 'interrupted', 'hitl_policy', 'Policy', 'asks', 'decide', 'denied', 'to_text',
           'clip']
