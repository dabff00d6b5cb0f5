"`%%rishi` and `%rishi`: read, hand on, show. What they do is in `session`, what they say about it in `status`."
from __future__ import annotations

import re

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from rishi.errors import BadRequest

from . import status
from .request import OPTIONS, help_text, parse, split_line, suggestion
from .session import session_of

__all__ = ['RishiMagics', 'COMMANDS', 'register', 'as_written']

# name: (arguments, what it does)
COMMANDS = dict(
    status=('', 'The model, the chats, and the cache of the last turn. Also plain %rishi.'),
    models=('', 'What is loaded, what is on this machine, and names to try.'),
    use=('MODEL', 'Let every chat go on with MODEL from its next turn.'),
    chats=('', 'The chats of this kernel.'),
    reset=('[NAME]', 'Forget the turns, the system prompt and the tools of a chat (main).'),
    undo=('[NAME]', 'Drop the last turn of a chat (main).'),
    tools=('[none] [NAME]', 'The tools of a chat (main); with `none` they are taken away.'),
    stop=('', 'Stop what runs now.'),
    unload=('', 'Free the memory of all models. Chats stay, and load again at their next turn.'),
    doctor=('', 'What is needed to run a model, and what of it is here.'),
    help=('[TOPIC]', 'This list; `options`, or the name of a command or an option, for more.'),
)


def _commands(names=COMMANDS):
    spelled = {n: f'%rishi {n} {COMMANDS[n][0]}'.rstrip() for n in names}
    width = max(map(len, spelled.values()))
    return '\n'.join(f'{s:{width}}  {COMMANDS[n][1]}' for n, s in spelled.items())


def _options(): return f'%%rishi [MODEL] [options]\nthe message to the model\n\n{help_text()}'


@magics_class
class RishiMagics(Magics):
    "The magics of one shell, on the session of that shell."

    def __init__(self, shell, session):
        super().__init__(shell)
        self.session = session

    @no_var_expand
    @line_cell_magic
    def rishi(self, line, cell=None):
        if cell is None: self._command(line)
        else: self._turn(parse(line, cell))

    def _turn(self, req):
        if req.help: return print(_options())
        from .show import present
        turn = self.session.turn(req)
        try: present(turn.events, turn.header, on_stop=turn.stop, on_answer=turn.answer, about=turn.about,
                     stream=req.stream, fmt=req.format, reasoning=req.reasoning, stats=req.stats)
        finally: self._bind(turn)

    def _bind(self, turn):
        "A stopped turn has a result too: the partial one."
        if turn.resp is None: return
        self.shell.user_ns['_rishi'] = turn.resp
        if turn.request.out: self.shell.user_ns[turn.request.out] = turn.resp

    def _command(self, line):
        name, _, rest = (line.strip() or 'status').partition(' ')
        if name in ('-h', '--help'): name = 'help'
        if name not in COMMANDS:
            raise BadRequest(f'%rishi {name} is no command.{suggestion(name, COMMANDS)} `%rishi help` lists them; a '
                             'message to the model goes into a cell that begins with %%rishi.')
        words, takes = split_line(rest), COMMANDS[name][0]
        if len(words) > len(takes.split()) or (not words and takes and takes[0] != '['):
            raise BadRequest(f'It is `%rishi {name}{" " + takes if takes else ""}`: {COMMANDS[name][1]}')
        said = getattr(self, f'_{name}')(*words)
        if isinstance(said, str): print(said)
        else: self._show(said)

    def _show(self, tables):
        from IPython.display import display
        for t in tables: display(t)

    # --- one method a command: a sentence, or values to display -----------------------------------------------------
    def _status(self): return status.status(self.session)
    def _models(self): return status.models(self.session)
    def _chats(self): return status.chats(self.session)
    def _doctor(self): return status.doctor()

    def _use(self, model):
        self.session.use(model)
        return f'Chats go on with {model} from their next turn.'

    def _reset(self, name='main'):
        if name not in self.session.chats: return f'Chat {name} has no turns.'
        n = self.session.turns(name)
        self.session.clear(name)
        return f'Chat {name} is empty: {_count(n, "turn")} forgotten.'

    def _undo(self, name='main'):
        chat, n = self.session.bound(name).chat, self.session.turns(name)
        if not n: raise BadRequest(f'Chat {name} has no turn to undo.')
        chat.rewind(1)
        return f'Turn {n} of chat {name} is dropped: {_count(n - 1, "turn")} left.'

    def _tools(self, *words):
        off = words[:1] == ('none',)
        name = ''.join(words[off:]) or 'main'
        if not off: return status.tools(self.session, name)
        self.session.without_tools(name)
        return f'Chat {name} has no tools now.'

    def _stop(self):
        n = self.session.stop()
        return f'{_count(n, "turn")} stopped.' if n else 'Nothing runs.'

    def _unload(self):
        n = self.session.unload()
        return f'{_count(n, "model")} unloaded. Chats keep their turns.' if n else 'No model is loaded.'

    def _help(self, topic=''):
        name = topic.lstrip('%-').replace('-', '_')
        fields = {o.field for o in OPTIONS if topic in o.flags or name == o.field}
        if topic == 'options': return _options()
        if name in COMMANDS and topic[:1] != '-': return _commands([name])
        if fields: return help_text(fields)
        near = suggestion(topic, [*COMMANDS, *(o.field for o in OPTIONS)])
        if topic: raise BadRequest(f'There is no help on {topic!r}.{near} `%rishi help` lists all.')
        return f'{_commands()}\n\n`%rishi help options` lists the options of %%rishi.'


RishiMagics.rishi.__doc__ = f"""One turn with a model in this kernel (%%rishi), and what goes with it (%rishi).

{_options()}

{_commands()}
"""


def _count(n, what): return f'{n} {what}{"" if n == 1 else "s"}'


def as_written(lines):
    """Input transform: hand a `%%rishi` cell to its magic before IPython cleans it up.
    IPython drops `>>> ` and `In [1]: ` from every cell, and refuses one without a body before the magic can speak."""
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    m = lines and re.match(r'%%rishi(?:[ \t]+(.*))?$', lines[first].rstrip())
    if not m: return lines
    return [f'get_ipython().run_cell_magic("rishi", {m[1] or ""!r}, {"".join(lines[first + 1:]) or chr(10)!r})\n']


as_written.has_side_effects = True   # a terminal asks whether a cell is complete: leave that to IPython


def register(shell):
    "Put the magics, `%config Rishi` and the input transform into `shell`. Nothing is loaded; safe to repeat."
    shell.register_magics(RishiMagics(shell, session_of(shell)))
    cleanup = shell.input_transformer_manager.cleanup_transforms
    cleanup[:] = [as_written, *(t for t in cleanup if getattr(t, '__name__', '') != as_written.__name__)]
