"""The rules of the house, each an assertion: who may import whom, what stays pure, how long things may get."""
import ast
import builtins
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rishi
import rishi_jupyter.request

ROOT = Path(__file__).parents[1]
PACKAGES = ('rishi', 'rishi_jupyter')
SOURCES = sorted(f for p in PACKAGES for f in (ROOT/p).rglob('*.py'))
TESTS = sorted(f for f in (ROOT/'tests').rglob('*.py') if 'models' not in f.parts)
TREES = {f: ast.parse(f.read_text('utf-8')) for f in [*SOURCES, *TESTS]}

# room -> the rooms of its package that it may import. A new room needs a line here: say what it stands on.
ROOMS = {
    'rishi': {
        '': set(),
        'errors': set(), 'machine': set(), 'types': {'errors'}, 'kv': {'types'}, 'dialect': {'errors', 'types'},
        'fetch': {'errors'}, 'hub': {'errors', 'fetch'}, 'owner': {'errors', 'types'}, 'stream': {'types'},
        'encode': {'kv', 'types'}, 'tools': {'errors', 'types'}, 'history': {'errors'},
        'disk': {'encode', 'errors', 'history'},
        'grammar': {'errors'}, 'schema': {'errors'},
        'engine': {'dialect', 'kv', 'owner', 'snapshots', 'types', 'errors'},
        'testing': {'dialect', 'engine', 'errors'},
        'snapshots': {'kv'},
        'callbacks': {'errors', 'history', 'tools', 'types'},
        'context': {'callbacks', 'errors', 'history', 'tools'}, 'fence': {'callbacks', 'history', 'tools', 'types'},
        'oneshots': {'context', 'errors', 'grammar', 'schema', 'types'},
        'idle': {'encode', 'engine', 'errors', 'kv', 'owner', 'snapshots'},
        'batch': {'engine', 'errors', 'grammar', 'kv', 'owner', 'schema', 'turn', 'types'},
        'turn': {'callbacks', 'context', 'dialect', 'encode', 'engine', 'errors', 'history', 'kv', 'tools', 'types'},
        'asking': {'callbacks', 'errors', 'idle', 'owner', 'stream', 'turn', 'types'}, 'aio': {'core', 'owner'},
        'core': {'aio', 'asking', 'batch', 'callbacks', 'context', 'dialect', 'disk', 'encode', 'engine', 'errors',
                 'fence', 'history', 'kv', 'llama', 'oneshots', 'owner', 'stream', 'tools', 'types'},
        'llama': {'core', 'dialect', 'engine', 'errors', 'grammar', 'hub', 'machine', 'owner', 'types'},
        'doctor': {'errors', 'hub', 'llama', 'machine'},
    },
    'rishi_jupyter': {
        '': {'magics', 'session'},
        'style': set(), 'markdown': set(), 'panel': {'markdown'}, 'request': set(), 'kit': {'request'},
        'fold': set(), 'view': {'fold', 'markdown', 'panel', 'style'}, 'live': {'fold', 'markdown', 'style', 'view'},
        'show': {'fold', 'live', 'markdown', 'panel', 'style', 'view'}, 'session': {'kit', 'request', 'show'},
        'status': {'markdown', 'panel', 'request', 'style'}, 'magics': {'request', 'session', 'show', 'status'},
    },
}
PURE = ('rishi/types.py', 'rishi/kv.py', 'rishi/encode.py', 'rishi/dialect',
        'rishi_jupyter/request.py', 'rishi_jupyter/fold.py')
IMPURE = {'asyncio', 'ctypes', 'datetime', 'glob', 'io', 'logging', 'multiprocessing', 'os', 'pathlib', 'random',
          'secrets', 'shutil', 'signal', 'socket', 'subprocess', 'sys', 'tempfile', 'threading', 'time', 'urllib'}
MUTATORS = {'add', 'append', 'appendleft', 'clear', 'discard', 'extend', 'insert', 'pop', 'popitem', 'remove',
            'setdefault', 'update', 'write'}
ESCAPERS = {'html', 'markdown_it', 'markupsafe', 'nh3'}
ESCAPING = {'markdown', 'panel', 'view'}
TOP = {*PACKAGES, 'nbs', 'tests', 'pyproject.toml', 'README.md', 'LICENSE', 'CHANGELOG.md', 'Makefile'}
BUILT = {'build', 'dist', 'out'}
# distribution -> the module that it brings, where the two are not one
MODULES = {'markdown-it-py': 'markdown_it', 'ipython': 'IPython', 'llama-cpp-python': 'llama_cpp'}


def rel(f): return f.relative_to(ROOT).as_posix()


def place(f):
    "(package, room) of a source file; the room of a package's own `__init__` is ''."
    package, *rest = f.relative_to(ROOT).parts
    return package, '' if rest == ['__init__.py'] else rest[0].removesuffix('.py')


def imports(f):
    "Absolute dotted names of all modules that a file imports, wherever it does so."
    base = ['', *f.relative_to(ROOT).with_suffix('').parts][1:]
    for n in ast.walk(TREES[f]):
        if isinstance(n, ast.Import): yield from (a.name for a in n.names)
        elif isinstance(n, ast.ImportFrom) and not n.level: yield n.module
        elif isinstance(n, ast.ImportFrom):
            above = base[:len(base) - n.level]
            if n.module: yield '.'.join([*above, n.module])
            else: yield from ('.'.join([*above, a.name]) for a in n.names)


def functions(tree): return [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


def each(files): return pytest.mark.parametrize('f', files, ids=rel)


# --- arrows ---------------------------------------------------------------------------------------------------------
@each(SOURCES)
def test_import_arrows(f):
    package, room = place(f)
    assert room in ROOMS[package], f'{room} is a new room: give it a line in ROOMS'
    for name in imports(f):
        top, *rest = name.split('.')
        if top == package and rest and rest[0] in ROOMS[package]:
            assert rest[0] in ROOMS[package][room] | {room}, f'{package}.{room} may not import {name}'


@each(SOURCES)
def test_foreign_arrows(f):
    package, room = place(f)
    for name in imports(f):
        top = name.split('.')[0]
        if top == 'llama_cpp': assert (package, room) == ('rishi', 'llama'), f'{rel(f)} imports {name}'
        if top.startswith('mlx'): assert (package, room) == ('rishi', 'mlx'), f'{rel(f)} imports {name}'
        if top in ('IPython', 'ipywidgets', 'anywidget', 'traitlets'): assert package == 'rishi_jupyter'
        if top == 'rishi_jupyter' and package == 'rishi': assert room == '', f'{rel(f)} imports {name}'
        if top in ESCAPERS: assert package == 'rishi_jupyter' and room in ESCAPING, f'{rel(f)} imports {name}'


def test_the_only_way_up_is_the_extension_hook():
    tree = TREES[ROOT/'rishi'/'__init__.py']
    hook = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == 'load_ipython_extension')
    up = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == 'rishi_jupyter']
    assert len(up) == 1 and up[0] in hook.body and len(hook.body) <= 3


def test_what_is_imported_is_declared():
    project = tomllib.loads((ROOT/'pyproject.toml').read_text())['project']
    lines = project['dependencies'] + [o for extra in project['optional-dependencies'].values() for o in extra]
    names = {re.match(r'[\w-]+', o)[0] for o in lines}
    declared = {MODULES.get(n, n.replace('-', '_')) for n in names} | set(PACKAGES) | sys.stdlib_module_names
    for f in SOURCES: assert {n.split('.')[0] for n in imports(f)} <= declared, rel(f)
    used = {n.split('.')[0] for f in SOURCES for n in imports(f)}
    core = {re.match(r'[\w-]+', o)[0] for o in project['dependencies']}
    assert {n for n in core if MODULES.get(n, n.replace('-', '_')) not in used} == set(), 'declared and never imported'


def test_one_version():
    assert tomllib.loads((ROOT/'pyproject.toml').read_text())['project']['version'] == rishi.__version__


# --- weight ---------------------------------------------------------------------------------------------------------
def loaded(code, *names):
    "Which of the modules `names` are loaded after `code`, in a fresh process."
    tail = f'\nimport sys, json; print(json.dumps([n for n in {names!r} if n in sys.modules]))'
    p = subprocess.run([sys.executable, '-c', code + tail], cwd=ROOT, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout.splitlines()[-1])


def test_import_rishi_is_light():
    assert loaded('import rishi; dir(rishi)', 'llama_cpp', 'mlx', 'numpy', 'PIL', 'IPython', 'jinja2',
                  'huggingface_hub', 'ipywidgets', 'rishi_jupyter') == []


@pytest.mark.parametrize('name', PACKAGES)
def test_load_ext_is_light(name):
    code = ('from IPython.core.interactiveshell import InteractiveShell as S; s = S.instance()\n'
            f's.run_line_magic("load_ext", {name!r})\n'
            'assert all("rishi" in s.magics_manager.magics[k] for k in ("cell", "line"))')
    assert loaded(code, 'llama_cpp', 'mlx', 'numpy', 'PIL', 'huggingface_hub', 'ipywidgets', 'anywidget') == []


# --- purity ---------------------------------------------------------------------------------------------------------
@each([f for f in SOURCES if rel(f).startswith(PURE)])
def test_pure(f):
    tree = TREES[f]
    assert not {n.split('.')[0] for n in imports(f)} & IMPURE, 'no I/O, no clock, no chance'
    calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not calls & {'open', 'print', 'input', 'exec', 'eval'}
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Global)], 'no globals'
    names = {t.id for n in tree.body for t in targets(n) if isinstance(t, ast.Name)}
    written = [(n.name, w) for n in functions(tree) for w in writes(n) if w in names]
    assert not written, f'functions that write to the module: {written}'


def targets(n):
    if isinstance(n, ast.Assign): return n.targets
    return [n.target] if isinstance(n, (ast.AnnAssign, ast.AugAssign)) else []


def writes(fn):
    "Names that `fn` does not own and changes in place: `x[...] = `, `x.a = `, `del x[...]`, `x.append()`."
    own = {a.arg for a in [*fn.args.args, *fn.args.kwonlyargs, *fn.args.posonlyargs]}
    own |= {n.id for n in ast.walk(fn) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for n in ast.walk(fn):
        if isinstance(n, (ast.Subscript, ast.Attribute)) and isinstance(n.ctx, (ast.Store, ast.Del)): base = n.value
        elif isinstance(n, ast.Call) and getattr(n.func, 'attr', '') in MUTATORS: base = n.func.value
        else: continue
        while isinstance(base, (ast.Subscript, ast.Attribute)): base = base.value
        if isinstance(base, ast.Name) and base.id not in own: yield base.id


# --- size and words -------------------------------------------------------------------------------------------------
@each([*SOURCES, *TESTS])
def test_size(f):
    assert len(f.read_text('utf-8').splitlines()) <= 400, 'no file over 400 lines'
    long = [(n.name, n.end_lineno - n.lineno + 1) for n in functions(TREES[f]) if n.end_lineno - n.lineno >= 50]
    assert not long, 'no function over 50 lines'


def listed(tree):
    "What `__all__` holds, as far as it is written out."
    for n in tree.body:
        if any(getattr(t, 'id', '') == '__all__' for t in targets(n)):
            return {o.value for o in ast.walk(n.value) if isinstance(o, ast.Constant)}


@each(SOURCES)
def test_public_names(f):
    tree, names = TREES[f], listed(TREES[f])
    assert ast.get_docstring(tree), 'a module says what it is'
    assert names is not None, 'a module lists its public names in __all__'
    for n in tree.body:
        if not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or n.name.startswith('_'): continue
        if n.name == 'load_ipython_extension': continue
        private = f.stem.startswith('_')
        assert private or n.name in names, f'{n.name} is public and not in __all__'
        assert n.name not in names or ast.get_docstring(n), f'{n.name} has no docstring'


def guides():
    "All text of the README and of the guides."
    cells = [c for nb in (ROOT/'nbs').glob('*.ipynb') for c in json.loads(nb.read_text('utf-8'))['cells']]
    return (ROOT/'README.md').read_text('utf-8') + '\n'.join(''.join(c['source']) for c in cells)


@pytest.mark.parametrize('package', [rishi, rishi_jupyter], ids=PACKAGES)
def test_public_names_are_explained(package):
    text = guides()
    for name in package.__all__:
        assert getattr(package, name) is not None
        hidden = name.startswith('__') or name == 'load_ipython_extension'
        assert hidden or re.search(rf'\b{name}\b', text), f'{name} is in neither README nor nbs/'


def test_names_do_not_hide_builtins():
    assert not [n for p in (rishi, rishi_jupyter) for n in p.__all__ if hasattr(builtins, n) and not n.startswith('__')]


# --- the repository -------------------------------------------------------------------------------------------------
def test_top_level():
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(('.', '__')) and p.suffix != '.egg-info'}
    assert found - BUILT == TOP


def test_no_path_of_a_machine():
    words = re.compile(r'/(?:root|work|home/\w+|Users/\w+)/\w')
    files = [f for f in ROOT.rglob('*') if f.is_file() and not {'.git', '.venv', '__pycache__'} & set(f.parts)]
    texts = [f for f in files if f.suffix in {'.py', '.md', '.toml', '.js', '.css', '.ipynb', '.json', '.jinja'}
             or f.name in ('Makefile', 'run')]
    assert [rel(f) for f in texts if words.search(f.read_text('utf-8'))] == []


def test_package_data():
    for name in ('rishi/llama/probe.gguf', 'rishi_jupyter/live.js'): assert (ROOT/name).is_file(), name


def test_the_readme_lists_the_options(): assert rishi_jupyter.request.help_text().rstrip() in guides()
