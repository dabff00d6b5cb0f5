"""`make demo`: run nbs/demo.ipynb in a kernel, offline and with no browser, and print what a reader would see."""
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

ROOT = Path(__file__).parents[1]
COUNTS = '''import rishi_jupyter
_r = rishi_jupyter.chat().cache_report()
print(f'{_r.cached} {_r.evaluated} {_r.generated} {_r.why}', end='')'''


def run(path: Path):
    "The executed notebook, with one more cell that asks the chat for the counts of its last turn."
    nb = nbformat.read(path, 4)
    nb.cells.append(nbformat.v4.new_code_cell(COUNTS))
    os.environ |= {'HF_HUB_OFFLINE': '1', 'PYDEVD_DISABLE_FILE_VALIDATION': '1'}
    NotebookClient(nb, timeout=300, kernel_name='python3', extra_arguments=['--log-level=40'],
                   resources={'metadata': {'path': str(path.parent)}}).execute()
    return nb


def said(out) -> str:
    "The plain text of one output."
    if out.output_type == 'stream': return out.text
    if out.output_type == 'error': return f'{out.ename}: {out.evalue}'
    return out.get('data', {}).get('text/plain', '')


def show(nb):
    *cells, last = nb.cells
    for cell in cells:
        if cell.cell_type != 'code': continue
        print('\n' + '\n'.join('> ' + line for line in cell.source.splitlines()))
        for o in cell.outputs: print(said(o).rstrip('\n'))
    cached, evaluated, generated, why = said(last.outputs[0]).split(' ', 3)
    print(f'\nSecond turn: {cached} tokens cached, {evaluated} evaluated, {generated} generated ({why}).')


if __name__ == '__main__':
    try: show(run(ROOT/'nbs'/'demo.ipynb'))
    except CellExecutionError as e: sys.exit(f'The demo did not run: {e.ename}: {e.evalue}')
    except CellTimeoutError: sys.exit('The demo did not run: a cell took more than five minutes.')
