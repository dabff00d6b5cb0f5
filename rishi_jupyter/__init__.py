"rishi in a notebook: `%load_ext rishi`, then `%%rishi` cells. Nothing heavy is imported before a cell runs."

__all__ = ['chat', 'load_ipython_extension']


def load_ipython_extension(ip):
    "What `%load_ext rishi_jupyter` (or `rishi`) calls: registers `%%rishi` and `%rishi`."
    from .magics import register
    register(ip)


def chat(name='main'):
    "The kernel's `rishi.Chat` of that name, the one that `%%rishi --chat NAME` talks to; loads its model if needed."
    import sys

    from .session import session_of
    ipython = sys.modules.get('IPython')   # not imported here: without IPython there is no shell
    return session_of(ipython and ipython.get_ipython()).chat(name)
