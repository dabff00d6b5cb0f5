"""Tokens evaluated at each turn of a plain conversation, beside those that are new and what llama_cpp evaluates.

New is what the text between the last generated token and the next generation prompt tokenises to.
"""
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
from _bare import smol  # noqa: E402

SYSTEM = 'You are a helpful assistant.'
TURNS = ['The sky is blue and grass is green. ' * 60 + 'What is the capital of France? Answer in one sentence.',
         'And of Germany?', 'Thank you. Which of the two is larger?', 'Name a river there.']
MAX = 24


def ours():
    "(new, evaluated, why) a turn."
    from rishi import Chat
    with Chat(smol(), temp=0, n_ctx=2048, sp=SYSTEM, max_output_tokens=MAX) as chat:
        for msg in TURNS:
            held = chat._known
            prompt = chat.render(msg).encode()
            assert prompt.startswith(held.data), 'the conversation is not extended'
            new = len(chat.engine.tokenize(prompt[len(held.data):], first=False))
            pending = len(held.ids) - chat.engine.n_tokens      # generated last and not yet evaluated
            chat(msg)
            report = chat.cache_report()
            yield new + pending, report.evaluated, report.why


def theirs():
    "Tokens that `create_chat_completion` evaluates a turn."
    import llama_cpp
    llm = llama_cpp.Llama(smol(), n_ctx=2048, verbose=False)
    seen, evaluate = [], llm.eval
    llm.eval = lambda tokens: (seen.append(len(tokens)), evaluate(tokens))[1]
    messages = [{'role': 'system', 'content': SYSTEM}]
    for msg in TURNS:
        seen.clear()
        messages.append({'role': 'user', 'content': msg})
        out = llm.create_chat_completion(messages, temperature=0, max_tokens=MAX)
        messages.append(out['choices'][0]['message'])
        yield seen[0]
    llm.close()


def main():
    rows = list(zip(ours(), theirs()))
    print(f'{"turn":>5}{"new":>7}{"rishi":>8}{"llama_cpp":>11}   why')
    for i, ((new, done, why), peer) in enumerate(rows, 1): print(f'{i:5}{new:7}{done:8}{peer:11}   {why}')
    wasted = sum(done - new for (new, done, _), _ in rows)
    print(json.dumps(dict(name='cache', value=wasted, goal=0, ok=not wasted, unit='tokens evaluated, not new')))
    return 0 if not wasted else 1


if __name__ == '__main__': sys.exit(main())
