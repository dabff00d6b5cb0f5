"""rishi: a language model inside the notebook kernel. `Chat()` talks to it; `%load_ext rishi` brings the cells."""
from importlib import import_module

__version__ = '0.1.0'

_HOME = {'core': ['Chat', 'AsyncChat', 'ChatCallback', 'SlidingWindowCallback', 'PyFenceCallback', 'TruncationCallback',
                  'display_stream', 'hitl_policy', 'output_matches', 'task_complete', 'load_engine'],
         'types': ['Resp', 'ToolCall', 'Sampling', 'UsageStats', 'CacheReport', 'resp_text', 'thought'],
         'errors': ['RishiError', 'BadRequest', 'ModelNotFound', 'BadWeights', 'BackendMissing', 'MediaError',
                    'EngineError', 'ContextWindowExceededError', 'EngineBusy', 'EngineClosed', 'EngineDied']}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = ['__version__', *_WHERE]


def __getattr__(name):
    "Names load their room when they are first asked for, so that `import rishi` costs nothing."
    if name not in _WHERE: raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'.{_WHERE[name]}', __name__), name)


def __dir__(): return sorted([*globals(), *_WHERE])


def load_ipython_extension(ip):
    from rishi_jupyter import load_ipython_extension as load
    load(ip)
