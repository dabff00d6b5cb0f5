"""Prompt tokens evaluated at each step of a working day: turns, side questions, other chats, edits, forks, a restart.

New is what no earlier prompt or answer of the session begins with: tracked here from the token ids of every request,
apart from the cache that is measured. Beside it the same steps by `llama_cpp.Llama.create_chat_completion`.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
from _bare import smol  # noqa: E402

TINY = Path(__file__).parents[1]/'models'/'tiny-chat-q8_0.gguf'
MODELS = {'SmolLM2': lambda: smol(), 'tiny-chat': lambda: str(TINY)}
SYSTEM = 'You are a helpful assistant.'
LONG = 'The sky is blue and grass is green. ' * 40 + 'What is the capital of France? Answer in one sentence.'
KINDS = ['joy', 'anger']
OTHER, JUDGE, EDIT = 'Name three colours.', 'Was every question answered?', LONG.replace('France', 'Spain')
CLASSIFY = f'Classify the text.\nAnswer with one of: {", ".join(KINDS)}.\n\nI won the race!'
ROOM = dict(n_ctx=2048)
MAX = 16


def common(a, b):
    n = 0
    for x, y in zip(a, b):
        if x != y: break
        n += 1
    return n


class Watch:
    "Stands before an engine and notes the ids of every request, what was new of them and what was evaluated."

    def __init__(self, engine):
        self.engine, self.seen, self.row = engine, [], [0, 0]
        self.real, engine.stream = engine.stream, self.stream

    def stream(self, ids, sampling, stop, step, *rest, **kw):
        new = len(ids) - min(max((common(ids, s) for s in self.seen), default=0), len(ids) - 1)
        yield from self.real(ids, sampling, stop, step, *rest, **kw)
        self.row[0] += new
        self.row[1] += step.evaluated
        self.seen.append([*ids, *step.generated][:max(len(ids) + len(step.generated) - 1, len(ids))])

    def take(self):
        row, self.row = tuple(self.row), [0, 0]
        return row


def ours(path):
    "(step, new, evaluated, why) of each step."
    from rishi import Chat
    ask = dict(temp=0, max_output_tokens=MAX, think=False if path == str(TINY) else None)
    with Chat(path, sp=SYSTEM, **ROOM, **ask) as chat, tempfile.TemporaryDirectory() as folder:
        watch, forks, other = Watch(chat.engine), [], Chat(engine=chat.engine, sp=SYSTEM, **ask)
        def turn(c, msg): return lambda: c(msg)
        def edit():
            chat.hist[0] = dict(chat.hist[0], content=EDIT)
            del chat.hist[1:]
            return chat()
        def fork():
            forks.append(chat.fork())        # held, so that what it evaluated stays
            forks[-1]('And of Greece?')
        def regenerate():
            chat.hist.pop()
            return chat()
        steps = [('turn', turn(chat, LONG)), ('turn', turn(chat, 'And of Germany?')),
                 ('classify', lambda: chat.classify('I won the race!', KINDS)),
                 ('turn', turn(chat, 'And of Italy?')), ('other chat', turn(other, OTHER)),
                 ('turn', turn(chat, 'And of Austria?')),
                 ('judge', lambda: chat.oneshot(JUDGE, messages=chat.hist)), ('turn', turn(chat, 'And of Poland?')),
                 ('edit of turn 1', edit), ('fork', fork),
                 ('regenerate', regenerate), ('turn', turn(chat, 'And of Norway?'))]
        for name, step in steps:
            step()
            own = name in ('turn', 'edit of turn 1', 'regenerate')
            yield name, *watch.take(), chat.cache_report().why if own else ''
        yield 'restart', *restarted(chat, path, folder), ''


def restarted(chat, path, folder):
    "(new, evaluated) of a turn in a new process that loaded the cache of this one."
    file = Path(folder)/'chat.cache'
    chat.save_cache(file)
    out = subprocess.run([sys.executable, __file__, 'restart', path, file], capture_output=True, text=True, check=True)
    return tuple(map(int, out.stdout.split()[-2:]))


def restart(path, file):
    from rishi import Chat
    think = False if path == str(TINY) else None
    with Chat(path, sp=SYSTEM, temp=0, max_output_tokens=MAX, think=think, **ROOM) as chat:
        chat.load_cache(file)
        watch = Watch(chat.engine)
        watch.seen.append(list(chat.engine.held))
        chat('And of Sweden?')
        print(*watch.take())


def theirs(path):
    "Tokens that `create_chat_completion` evaluates at each step."
    import llama_cpp
    def load(): return llama_cpp.Llama(path, verbose=False, **ROOM)
    llm, seen = load(), []
    main, other = [{'role': 'system', 'content': SYSTEM}], [{'role': 'system', 'content': SYSTEM}]
    def ask(messages, n=MAX):
        evaluate = llm.eval
        llm.eval = lambda tokens: (seen.append(len(tokens)), evaluate(tokens))[1]
        try: out = llm.create_chat_completion(messages, temperature=0, max_tokens=n)
        finally: llm.eval = evaluate
        done = seen[0] if seen else 0
        seen.clear()
        return done, out['choices'][0]['message']
    def turn(history, msg):
        history.append({'role': 'user', 'content': msg})
        done, answer = ask(history)
        history.append({'role': 'assistant', 'content': answer['content'] or ''})
        return done
    yield turn(main, LONG)
    yield turn(main, 'And of Germany?')
    yield ask([{'role': 'user', 'content': CLASSIFY}], 4)[0]
    yield turn(main, 'And of Italy?')
    yield turn(other, OTHER)
    yield turn(main, 'And of Austria?')
    yield ask([*main, {'role': 'user', 'content': JUDGE}])[0]
    yield turn(main, 'And of Poland?')
    main[1:] = []
    yield turn(main, EDIT)
    yield ask([*main, {'role': 'user', 'content': 'And of Greece?'}])[0]
    main.pop(), main.pop()
    yield turn(main, EDIT)
    yield turn(main, 'And of Norway?')
    llm.close()
    llm = load()
    yield turn(main, 'And of Sweden?')
    llm.close()


def main():
    wasted, saved = 0, {}
    for name, find in MODELS.items():
        path = find()
        rows = list(zip(ours(path), theirs(path)))
        print(f'{name}\n{"step":16}{"new":>6}{"rishi":>8}{"llama_cpp":>11}   why')
        for (step, new, done, why), peer in rows: print(f'{step:16}{new:6}{done:8}{peer:11}   {why}')
        wasted += sum(done - new for (_, new, done, _), _ in rows)
        saved[name] = round(sum(peer for _, peer in rows) / sum(done for (_, _, done, _), _ in rows), 2)
        print(f'in all {sum(r[0][2] for r in rows)} of theirs {sum(r[1] for r in rows)}\n')
    print(json.dumps(dict(name='cache', value=wasted, goal=0, ok=not wasted, unit='tokens evaluated, not new',
                          theirs_to_ours=saved)))
    return 0 if not wasted else 1


if __name__ == '__main__': sys.exit(restart(*sys.argv[2:]) if sys.argv[1:2] == ['restart'] else main())
