"""Drives JupyterLab in headless Chromium, for tests: one server and one browser a session, all state in a temp folder.

A pytest plugin: `lab` is the running server with its browser, `lab.open(cells)` a notebook in a page.
"""
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

from browser import chromium

ROOT = Path(__file__).parents[1]
FLAGS = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
         '--disable-component-update', '--disable-sync']
SETTINGS = {'notebook-extension/tracker': {'windowingMode': 'none', 'autosave': False},
            'apputils-extension/notification': {'fetchNews': 'false', 'checkForUpdates': False},
            'docmanager-extension/plugin': {'autosave': False}}
READY = """() => { const w = window.jupyterapp?.shell.currentWidget, s = w?.context?.sessionContext;
  const k = s?.session?.kernel;
  return !!(w?.content?.widgets && w.context.isReady && (!s.kernelPreference.shouldStart ||
    k?.connectionStatus === 'connected' && k.status === 'idle')); }"""
IDLE = """() => { const w = window.jupyterapp.shell.currentWidget;
  return w.context.sessionContext.session.kernel.status === 'idle' && w.content.widgets.every(c =>
    c.model.type !== 'code' || !/\\[\\*\\]/.test(c.node.querySelector('.jp-InputPrompt')?.innerText || '')); }"""
THEME = "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})"


def _free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Server:
    "A `jupyter-lab` of this environment whose every file lies under `base`."

    def __init__(self, base):
        self.base, self.root = base, base/'notebooks'
        self.port, self.token = _free_port(), secrets.token_hex(16)
        self.root.mkdir(parents=True)
        for name, value in SETTINGS.items():
            f = base/'settings'/'@jupyterlab'/f'{name}.jupyterlab-settings'
            f.parent.mkdir(parents=True, exist_ok=True)
            f.write_text(json.dumps(value))
        self.log = (base/'server.log').open('w')
        self.process = subprocess.Popen(self._command(), env=self._env(), stdout=self.log, stderr=subprocess.STDOUT,
                                        cwd=self.root, start_new_session=True)
        self._wait()

    def _command(self):
        return [sys.executable, '-m', 'jupyterlab', '--no-browser', '--allow-root', '--ip=127.0.0.1',
                f'--port={self.port}', f'--IdentityProvider.token={self.token}', f'--ServerApp.root_dir={self.root}',
                '--LabApp.expose_app_in_browser=True', '--ServerApp.open_browser=False']

    def _env(self):
        own = dict(JUPYTER_CONFIG_DIR='config', JUPYTER_DATA_DIR='data', JUPYTER_RUNTIME_DIR='run',
                   IPYTHONDIR='ipython', JUPYTERLAB_SETTINGS_DIR='settings', JUPYTERLAB_WORKSPACES_DIR='workspaces')
        own = {k: str(self.base/v) for k, v in own.items()}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))
        return os.environ | own | dict(PYTHONPATH=path, JUPYTER_PLATFORM_DIRS='1')

    def _wait(self, limit=90):
        end = time.monotonic() + limit
        while self.process.poll() is None and time.monotonic() < end:
            try: return self.get('api')
            except (urllib.error.URLError, OSError): time.sleep(.1)
        self.stop()
        raise RuntimeError(f'jupyter-lab did not start:\n{(self.base/"server.log").read_text()[-2000:]}')

    def get(self, path):
        "What the server's REST interface answers."
        url = f'http://127.0.0.1:{self.port}/{path}?token={self.token}'
        with urllib.request.urlopen(url, timeout=10) as r: return json.loads(r.read())

    def url(self, name): return f'http://127.0.0.1:{self.port}/lab/tree/{name}?token={self.token}&reset'

    def stop(self):
        self.process.terminate()
        try: self.process.wait(15)
        except subprocess.TimeoutExpired: self.process.kill()
        self.process.wait()
        self.log.close()


class Notebook:
    "A notebook in a page. Cells are counted from 0; nothing here sleeps, all waits are for a state."

    def __init__(self, page, path):
        self.page, self.path = page, path
        self.requests = []
        page.on('request', lambda r: self.requests.append(r.url))

    def ready(self, timeout=90_000):
        self.page.wait_for_function(READY, timeout=timeout)
        return self

    def command(self, name, **args):
        "Run a command of JupyterLab without waiting for it."
        self.page.evaluate('([n, a]) => { window.jupyterapp.commands.execute(n, a); }', [name, args])

    def start(self, i=None):
        "Run cell `i`, or all, and do not wait."
        self.command(self._select(i))

    def _select(self, i):
        "Make cell `i` the active one; the command that then runs it, or all."
        if i is None: return 'notebook:run-all-cells'
        self.page.evaluate('i => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i; }', i)
        return 'notebook:run-cell'

    def idle(self, timeout=90_000):
        "Wait until no cell runs."
        self.page.wait_for_function(IDLE, timeout=timeout)

    def run(self, i=None, timeout=90_000):
        "Run cell `i`, or all, and wait for the end. The promise of the command ends with the last cell."
        self.page.evaluate("""n => { delete window.ran;
            window.jupyterapp.commands.execute(n).finally(() => window.ran = 1); }""", self._select(i))
        self.page.wait_for_function('() => window.ran', timeout=timeout)
        self.idle(timeout)

    def cell(self, i): return self.page.locator('.jp-Notebook .jp-Cell').nth(i)
    def output(self, i): return self.cell(i).locator('.jp-OutputArea')

    def turn(self, i):
        "The last drawn turn of cell `i`."
        return self.output(i).locator('article.rishi').last

    def interrupt(self): self.command('notebook:interrupt-kernel')

    def save(self):
        "Save, and give the file's content."
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save').then(() => 1)")
        return nbformat.read(self.path, as_version=4)

    def theme(self, dark):
        "Change the theme, and wait until the page says so."
        self.page.evaluate(THEME, 'JupyterLab Dark' if dark else 'JupyterLab Light')
        self.page.wait_for_selector(f'body[data-jp-theme-light="{str(not dark).lower()}"]', state='attached')
        self.page.wait_for_selector('#jupyterlab-splash', state='detached')

    def close(self, shutdown=True):
        if shutdown: self.page.evaluate("""() => window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()
            .then(() => 1)""")
        self.page.context.close()


class Lab:
    "A server and a browser. `open(cells)` and `reopen(path)` give notebooks."

    def __init__(self, server, browser):
        self.server, self.browser, self.opened = server, browser, 0

    def write(self, cells, name=None):
        "A notebook file of code cells."
        self.opened += 1
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c, id=f'cell-{i}') for i, c in enumerate(cells)])
        nb.metadata['kernelspec'] = dict(name='python3', display_name='Python 3 (ipykernel)', language='python')
        path = self.server.root/(name or f'nb{self.opened}.ipynb')
        nbformat.write(nb, path)
        return path

    def page(self, size=(1400, 1000), **options):
        "A fresh page, with no cookies of another."
        context = self.browser.new_context(viewport=dict(width=size[0], height=size[1]), **options)
        return context.new_page()

    def open(self, cells, size=(1400, 1000)) -> Notebook:
        "Write `cells` as a notebook and open it with a kernel."
        return self.reopen(self.write(cells), size)

    def reopen(self, path, size=(1400, 1000)) -> Notebook:
        "Open a saved notebook. What ran before is not trusted to have a kernel."
        nb = Notebook(self.page(size), path)
        nb.page.goto(self.server.url(path.name))
        return nb.ready()

    def still(self, path, size=(1400, 1000)) -> Notebook:
        "Open a saved notebook with no kernel at all."
        nb = Notebook(self.page(size), path)
        nb.page.route('**/api/kernels**', lambda r: r.abort())
        nb.page.route('**/api/sessions**', lambda r: r.fulfill(status=503, body='{}') if r.request.method == 'POST'
                      else r.continue_())
        nb.page.goto(self.server.url(path.name))
        nb.page.wait_for_function('() => window.jupyterapp?.shell.currentWidget?.context?.isReady', timeout=90_000)
        return nb


@contextmanager
def running(folder):
    "A JupyterLab with all its state in `folder`, and a Chromium."
    from playwright.sync_api import sync_playwright
    server = Server(folder)
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=chromium(), headless=True, args=FLAGS)
            try: yield Lab(server, browser)
            finally: browser.close()
    finally: server.stop()


@pytest.fixture(scope='session')
def lab(tmp_path_factory):
    "One JupyterLab and one Chromium for all browser tests."
    with running(tmp_path_factory.mktemp('lab')) as it: yield it


@pytest.fixture
def notebook(lab):
    "`notebook(cells)` opens one, and closes it with its kernel when the test ends."
    made = []

    def make(cells, size=(1400, 1000)):
        made.append(lab.open(cells, size))
        return made[-1]
    yield make
    for nb in made: nb.close()
