"""A hundred short rows behind a prefix of 500 tokens: `chat.map`, beside a loop of `create_chat_completion`.

Same model, threads, messages and token limit, one after the other in one process; once plain, and once with turns of a
conversation between the rows. `prefix` counts how many of the prefix's tokens were evaluated: at best each once.
"""
import json
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
from _bare import smol  # noqa: E402

RULES = 'You sort short messages of guests of a small hotel by the sea for the people at its front desk. '
SYSTEM = RULES + 'Say in a few words what the guest wants and who should see to it. ' * 30
THINGS = ['soup', 'bed', 'key', 'taxi', 'lift', 'bill', 'bath', 'view', 'music', 'garden']
FOUND = ['cold', 'wet', 'lost', 'late', 'slow', 'wrong', 'small', 'lovely', 'loud', 'closed']
ROWS = [f'The {thing} was {found}.' for thing in THINGS for found in FOUND]
TALK = ['Good morning. What is your name?', 'Name a colour.', 'Thank you.']
MAX, ROOM, GOAL = 16, dict(n_ctx=4096), .6


class Ours:
    "`chat.map` on a chat that also holds a conversation."

    def __init__(self):
        from rishi import Chat
        self.chat = Chat(smol(), temp=0, sp=SYSTEM, **ROOM)
        self.engine, self.evaluated = self.chat.engine, []
        evaluate = self.engine._eval_rows
        def counted(rows, stop):
            self.evaluated += [(at, len(tokens)) for tokens, _, at in rows]
            return evaluate(rows, stop)
        self.engine._eval_rows = counted
        ids = [self.engine.tokenize(self.chat.render(r).encode(), True) for r in ROWS]
        self.prefix = next(n for n, column in enumerate(zip(*ids)) if len(set(column)) > 1)

    def plain(self): return self.chat.map(ROWS, messages=(), max_output_tokens=MAX, progress=False)

    def talking(self):
        "The same while a conversation goes on; its turns begin when a quarter, a half and three quarters are done."
        at = [threading.Event() for _ in TALK]
        def tell(done, total): [e.set() for k, e in enumerate(at, 1) if done >= total * k // 4]
        def talk():
            for event, text in zip(at, TALK):
                event.wait()
                self.chat(text, max_output_tokens=MAX)
        speaker = threading.Thread(target=talk)
        speaker.start()
        out = self.chat.map(ROWS, messages=(), max_output_tokens=MAX, progress=tell)
        speaker.join()
        return out

    def run(self, how):
        "(seconds, tokens of the prefix evaluated, answers)."
        self.engine.forget()
        self.chat.reset()
        self.evaluated.clear()
        start = time.perf_counter()
        out = getattr(self, how)()
        took = time.perf_counter() - start
        return took, sum(max(min(at + n, self.prefix) - at, 0) for at, n in self.evaluated), list(map(str, out))


class Theirs:
    "A loop over `create_chat_completion`."

    def __init__(self, threads):
        import llama_cpp
        self.llm = llama_cpp.Llama(smol(), verbose=False, n_threads=threads, n_threads_batch=threads, **ROOM)

    def ask(self, messages):
        out = self.llm.create_chat_completion(messages, temperature=0, max_tokens=MAX)
        return out['choices'][0]['message']['content']

    def run(self, how):
        "(seconds, answers)."
        self.llm.reset()
        head = {'role': 'system', 'content': SYSTEM}
        talk, out, start = [head], [], time.perf_counter()
        for i, row in enumerate(ROWS):
            out.append(self.ask([head, {'role': 'user', 'content': row}]))
            if how == 'talking' and i + 1 in (25, 50, 75):
                talk.append({'role': 'user', 'content': TALK[len(talk) // 2]})
                talk.append({'role': 'assistant', 'content': self.ask(talk)})
        return time.perf_counter() - start, out


def main():
    ours, rows = Ours(), {}
    theirs = Theirs(ours.engine.n_threads)
    ours.chat.oneshot('Hello', max_output_tokens=2)
    theirs.ask([{'role': 'user', 'content': 'Hello'}])       # each has its threads now, which changes how they wait
    print(f'{len(ROWS)} rows, prefix {ours.prefix} tokens, {ours.engine.n_threads} threads')
    print(f'{"":9}{"rishi s":>9}{"llama_cpp s":>13}{"rows/s":>8}{"ratio":>8}{"prefix":>8}{"equal":>7}')
    for how in ('plain', 'talking'):
        (took, prefix, mine), (peer, other) = ours.run(how), theirs.run(how)
        rows[how], same = took / peer, sum(a == b for a, b in zip(mine, other))
        print(f'{how:9}{took:9.1f}{peer:13.1f}{len(ROWS) / took:8.1f}{rows[how]:8.2f}{prefix:8}{same:7}')
    ours.chat.close()
    ok = all(r <= GOAL for r in rows.values())
    print(json.dumps(dict(name='map', value=round(rows['plain'], 3), goal=GOAL, ok=ok, unit='time of ours to theirs',
                          talking=round(rows['talking'], 3))))
    return 0 if ok else 1


if __name__ == '__main__': sys.exit(main())
