"""What a chat and a cell cost on top of llama.cpp: decode speed as a ratio to a bare low-level loop.

Same model, threads and prompt; alternating runs in one process, medians. For the cell the process is a real kernel,
driven as a front end drives it (widgets on, a reader for every message).
"""
import json
import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
from _bare import Bare, smol  # noqa: E402

PROMPT, TOKENS, ROUNDS = 'Tell me a long story about a fisherman and the sea.', 96, 7
GOALS = {'chat': .97, 'cell': .95}


def chat_once(chat):
    "Tokens a second between the first piece and the end of a streamed answer."
    chat.reset()
    stream = chat(PROMPT, stream=True, max_output_tokens=TOKENS)
    next(stream)
    start = time.perf_counter()
    for _ in stream: pass
    return (chat.cache_report().generated - 1) / (time.perf_counter() - start)


def cell_once(chat):
    "Tokens a second of a whole cell, what came before its first token left out."
    from IPython import get_ipython
    start = time.perf_counter()
    get_ipython().run_cell_magic('rishi', f'--new --temperature 0 --max-tokens {TOKENS}', PROMPT)
    report = chat.cache_report()
    return (report.generated - 1) / (time.perf_counter() - start - report.ttft)


def compare(chat, once, rounds=ROUNDS):
    "Alternating runs: medians of ours and of the bare loop, in tokens a second."
    text = chat.render(PROMPT)
    bare = Bare(str(chat.engine.path), chat.engine.n_threads, extra_bufts=True)
    once(chat), bare.run(text, 8)
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append((TOKENS - 1) / bare.run(text, TOKENS))
        ours.append(once(chat))
    bare.close()
    return statistics.median(ours), statistics.median(theirs)


def in_kernel():
    "`compare` with cells, in a kernel of its own; the numbers come back as text."
    from jupyter_client.manager import start_new_kernel
    code = f'''
import sys; sys.path[:0] = {sys.path[:2]!r}
%load_ext rishi
import rishi_jupyter, overhead
get_ipython().run_cell_magic('rishi', '--max-tokens 2', 'hi')
print('RESULT', *overhead.compare(rishi_jupyter.chat(), overhead.cell_once))'''
    manager, client = start_new_kernel()
    out = []
    def hear(msg):
        if msg['msg_type'] == 'stream': out.append(msg['content']['text'])
        if msg['msg_type'] == 'error': out.append('\n'.join(msg['content']['traceback']))
    try: client.execute_interactive(code, allow_stdin=True, output_hook=hear, timeout=300)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    found = [o.split('RESULT')[1].split() for o in out if 'RESULT' in o]
    if not found: raise SystemExit('the kernel failed:\n' + ''.join(out))
    return tuple(map(float, found[0]))


def main():
    from rishi import Chat
    with Chat(smol(), temp=0, n_ctx=2048) as chat: rows = {'chat': compare(chat, chat_once)}
    rows['cell'] = in_kernel()
    ratios = {k: ours / theirs for k, (ours, theirs) in rows.items()}
    print(f'{"":6}{"ours":>8}{"bare":>8}{"ratio":>8}{"goal":>7}   tokens/s, medians of {ROUNDS}')
    for k, (ours, theirs) in rows.items(): print(f'{k:6}{ours:8.1f}{theirs:8.1f}{ratios[k]:8.3f}{GOALS[k]:7.2f}')
    ok = all(ratios[k] >= GOALS[k] for k in GOALS)
    print(json.dumps(dict(name='overhead', value=round(ratios['chat'], 3), goal=GOALS['chat'], ok=ok,
                          cell=round(ratios['cell'], 3), cell_goal=GOALS['cell'])))
    return 0 if ok else 1


if __name__ == '__main__': sys.exit(main())
