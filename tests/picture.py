"The picture of the README: `python tests/picture.py nbs/cell.png` runs cells in JupyterLab and photographs them."
import sys
import tempfile
from pathlib import Path

from lab import running

CELLS = ['%load_ext rishi', '%%rishi --temperature 0\nName the capital of France.',
         '%%rishi --temperature 0\nAnd of Germany?']
TIDY = '''() => { const app = window.jupyterapp; app.shell.collapseLeft(); app.shell.collapseRight();
  app.shell.currentWidget.content.activeCellIndex = 0;
  document.querySelectorAll('.jp-cell-toolbar, .jp-Toolbar').forEach(e => e.style.visibility = 'hidden'); }'''


def take(path):
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as lab:
        nb = lab.open(CELLS, size=(1000, 900))
        nb.run()
        nb.page.evaluate(TIDY)
        nb.page.wait_for_timeout(500)
        nb.page.locator('.jp-Notebook .jp-WindowedPanel-inner').first.screenshot(path=path)
        nb.close()


if __name__ == '__main__': take(sys.argv[1])
