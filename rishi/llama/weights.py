"""Which GGUF of a folder or a repo is the model, which the projector, and where they are on this machine.

A model is named `org/repo`, `org/repo:Q8_0` (that quantisation and no other), `org/repo/folder/file.gguf`, or by its
path.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from .. import hub
from ..errors import BadRequest, BadWeights
from .gguf import Damaged, Header, check_gguf, parts, read_header

__all__ = ['ModelFile', 'Name', 'resolve', 'get_model', 'get_mmproj', 'check_gguf', 'parts', 'quant_of']

_QUANT = re.compile(r'(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|B?FP?16|FP?32))'
                    r'(?![A-Za-z0-9_])', re.IGNORECASE)


@dataclass(frozen=True)
class ModelFile:
    "One model on this machine. `name` is for people; `source` is 'path', 'wheel', 'cache' or 'download'."
    path: Path
    name: str
    quant: str
    source: str
    header: Header


# --- choosing among names: pure -------------------------------------------------------------------------------------
def _base(file): return file.rpartition('/')[2]
def _is_gguf(file): return file.lower().endswith('.gguf')
def _is_mmproj(file): return _is_gguf(file) and 'mmproj' in _base(file).lower()
def _is_model(file): return _is_gguf(file) and not re.search('mmproj|imatrix', _base(file).lower())


def quant_of(file: str) -> str:
    "The quantisation that a file name (or else its folder) tells, in capitals, or ''."
    for part in reversed(file.split('/')):
        if found := _QUANT.findall(part.removesuffix('.gguf')): return re.sub('FP(?=16|32)', 'F', found[-1].upper())
    return ''


def _has(file, token):
    "Is `token` a whole token of this path? F16 is none of BF16, nor Q4_K of Q4_K_M."
    return bool(re.search(rf'(?<![A-Za-z0-9]){re.escape(token)}(?![A-Za-z0-9_])', file, re.IGNORECASE))


def _matching(models, want) -> list[str]:
    "Files that `want` names: a path, a pattern with * or ?, or a quantisation."
    low = want.lower()
    if set(low) & set('*?['): return [f for f in models if any(fnmatchcase(o.lower(), low) for o in (f, _base(f)))]
    if _is_gguf(low): return [f for f in models if f.lower() == low] or [f for f in models if _base(f).lower() == low]
    return [f for f in models if quant_of(f) == want.upper()] or [f for f in models if _has(f, want)]


def _first_parts(files) -> list[str]:
    "One name a model: the first part of each split file, in the order given."
    return list(dict.fromkeys(parts(f)[0] for f in files))


def _pick(files, want) -> str | None:
    "The one model that `want` names, None if there is none; raises BadRequest if it names several."
    found = _first_parts(_matching([f for f in files if _is_model(f)], want))
    if len(found) > 1: raise BadRequest(f'{want!r} names {len(found)} models: {", ".join(found)}. Name one.')
    return found[0] if found else None


def _gguf(files, quant: str = 'Q4_K_M') -> str | None:
    "The model among `files`: of this quantisation, else the first; part 1 if it is split. None if none is there."
    return _pick(files, quant) or next(iter(_first_parts(f for f in files if _is_model(f))), None)


def _mmproj(files, quant: str | None = None) -> str | None:
    "The projector among `files`, by file name: of this quantisation, else F16, else the first. None if none is there."
    found = [f for f in files if _is_mmproj(f)]
    ranked = (next((f for f in found if _has(_base(f), q)), None) for q in (quant, 'F16') if q)
    return next((f for f in ranked if f), next(iter(found), None))


def _all_parts(pick, files) -> list[str]:
    "What `pick` takes from `files`, with its further parts."
    file = pick(files)
    return parts(file) if file else []


# --- names ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Name:
    "A model's name taken apart: a repo and maybe what is wanted of it (file, pattern, quantisation), or a path."
    repo: str | None = None
    want: str | None = None
    path: Path | None = None

    @classmethod
    def of(cls, text):
        "Take `text` apart. What exists on this machine is a path. Raises BadRequest."
        text = str(text).strip()
        if _is_path(text): return cls(path=Path(text).expanduser())
        repo, _, want = text.partition(':')
        if (pieces := repo.split('/'))[2:]: repo, want = '/'.join(pieces[:2]), want or '/'.join(pieces[2:])
        if hub.is_repo_id(repo): return cls(repo, want or None)
        raise BadRequest(f'{text!r} is no model name: write org/repo, org/repo:Q8_0, org/repo/file.gguf, or a path.')


def _is_path(text):
    path = Path(text).expanduser()
    if not text: return False
    if text.startswith(('~', '.', '/', '\\')) or path.is_file(): return True
    if _is_gguf(text): return text.count('/') < 2 or path.is_absolute()
    return path.is_dir() and any(path.glob('*.gguf'))


# --- finding --------------------------------------------------------------------------------------------------------
def resolve(model=None, *, model_path=None, quant: str = 'Q4_K_M', progress=None, stop=None) -> ModelFile:
    """The model called `model`, or at `model_path`, on this machine; the embedded one without either. `quant` is a
    preference; `org/repo:QUANT` insists. `progress(done, total)` in bytes, and `stop`, are those of `hub.locate`.
    Raises ModelNotFound, BadWeights, BadRequest, or EngineError when stopped."""
    name = Name(path=Path(model_path)) if model_path is not None else Name.of(model) if model is not None else Name()
    if name.want and _is_mmproj(name.want): raise BadRequest(f'{name.want} is a projector: give it as mmproj, with a '
                                                             'model.')
    pick, prefer = _chooser(name, quant)
    found = hub.locate(name.repo, partial(_all_parts, pick), path=name.path, prefer=partial(_all_parts, prefer),
                       want=_wanted(name.want), verify=_whole, progress=progress, stop=stop)
    path = _first_here(found.paths[0])
    header = check_gguf(path)
    if header.is_projector: raise BadRequest(f'{path} is a projector, not a model: give it as mmproj, with a model.')
    kind = quant_of(path.name) or header.quant
    return ModelFile(path, _title(path.name, header, kind), kind, found.source, header)


def _wanted(want): return 'GGUF' if not want else want if _is_gguf(want) else f'{want} GGUF'


def _chooser(name, quant):
    "The choice among a repo's files, and the stricter one among those of an incomplete listing."
    def strict(files): return _pick(files, name.want or quant)
    if name.path: return partial(_only, quant=quant), strict
    return (strict, strict) if name.want else (partial(_gguf, quant=quant), strict)


def _only(files, quant):
    "The model of a folder: the one of this quantisation, else the only one. Raises BadRequest."
    found = _first_parts(f for f in files if _is_model(f))
    if len(found) < 2: return next(iter(found), None)
    if file := _pick(files, quant): return file
    raise BadRequest(f'The folder holds {len(found)} models: {hub.some(found)}. Name one of the files.')


def _first_here(path):
    "Part 1 for any part of a split file, if it is there."
    first = path.with_name(parts(path.name)[0])
    return first if first.is_file() else path


def _whole(path):
    "Raises for damage only: a file that is merely too new may stay in the cache."
    try: read_header(path)
    except Damaged: raise
    except BadWeights: pass


def _title(file, header, quant) -> str:
    "A name for people: the file's, unless it says nothing; spelled as the metadata does if that is the same name."
    stem = re.sub(r'-\d{5}-of-\d{5}$', '', file[:-5] if _is_gguf(file) else file)
    words = ' '.join(re.split(r'[-_\s]+', _QUANT.sub('', stem).strip('-_. ')))
    if words.casefold() in ('', 'model', 'ggml model') or words.casefold() == header.name.casefold():
        words = header.name or words or header.arch
    return f'{words} · {quant}' if quant else words


def get_model(model_id=None, model_path=None, quant: str = 'Q4_K_M') -> str:
    "The path of a model's GGUF: `model_path`, else the hub cache, else a download. Raises as `resolve`."
    return str(resolve(model_id, model_path=model_path, quant=quant).path)


def get_mmproj(model_id, mmproj_path=None) -> str:
    "The path of a model's projector: `mmproj_path`, else the hub cache, else a download. Raises as `resolve`."
    name = Name(path=Path(mmproj_path)) if mmproj_path is not None else Name.of(model_id)
    beside = name.path is not None and mmproj_path is None
    path = name.path.parent if beside and name.path.is_file() else name.path
    choose = partial(_all_parts, _mmproj)
    found = hub.locate(name.repo, choose, path=path, want='mmproj (projector)', verify=_whole)
    if not check_gguf(found.paths[0]).is_projector:
        raise BadWeights(f'{found.paths[0]} is no projector but a model of its own: name the mmproj file.')
    return str(found.paths[0])
