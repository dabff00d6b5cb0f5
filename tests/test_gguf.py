"""GGUF headers: what is read, and what is said of a file that is no model, or not a whole one (case 25)."""
import ctypes
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from gguf_maker import fails, make, split, write
from hub_standin import MODELS
from hypothesis import given, settings
from hypothesis import strategies as st

from rishi.errors import BadWeights, ModelNotFound
from rishi.llama import gguf
from rishi.llama.gguf import Damaged, check_gguf

TINY, PROJECTOR = MODELS/'tiny-chat-q8_0.gguf', MODELS/'tiny-omni-mmproj-f16.gguf'


# --- headers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('file, arch, name, quant, window', [
    (TINY, 'qwen3', 'Tiny Chat', 'Q8_0', 4096), (MODELS/'tiny-omni-q8_0.gguf', 'gemma4', 'Tiny Omni', 'Q8_0', 4096),
    (PROJECTOR, 'clip', 'Tiny Omni', 'F16', 0)])
def test_header_of_real_files(file, arch, name, quant, window):
    h = check_gguf(file)
    assert (h.arch, h.name, h.quant, h.context_length, h.version) == (arch, name, quant, window, 3)
    assert h.size == file.stat().st_size and h.is_projector == (arch == 'clip')
    assert bool(h.chat_template) == (arch != 'clip')


def test_real_files_end_where_their_tensor_table_says(smol, tmp_path):
    for file in (smol, TINY, PROJECTOR, MODELS/'tiny-ultravox-mmproj-f16.gguf'):
        with file.open('rb') as f: data = f.read()
        assert gguf._Reader(data).header()[2] == len(data)


def test_header_of_the_embedded_model(smol):
    h = check_gguf(smol)
    assert (h.arch, h.quant, h.context_length, h.n_tensors) == ('llama', 'Q4_1', 8192, 272)
    assert not any(k.startswith('tokenizer.ggml.tokens') for k in h.meta)


def test_metadata_kinds(tmp_path):
    h = check_gguf(write(tmp_path/'m.gguf', make(general__sampling__temp=0.5, general__sampling__top_k=20, x__flag=True,
                                                 tokenizer__ggml__tokens=['a', 'bc', ''], general__file_type=15)))
    assert h.sampling == {'temp': 0.5, 'top_k': 20} and h.meta['x.flag'] is True and h.quant == 'Q4_K_M'
    assert 'tokenizer.ggml.tokens' not in h.meta


def test_no_library_is_loaded():
    code = ('import sys, types, importlib; p = types.ModuleType("rishi.llama"); import rishi\n'
            f'p.__path__ = [{str(Path(gguf.__file__).parent)!r}]; sys.modules["rishi.llama"] = p\n'
            'import rishi.llama.weights\n'
            'print(*sorted({"llama_cpp", "numpy", "huggingface_hub", "mlx"} & set(sys.modules)))')
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert (out.stdout, out.stderr) == ('\n', '')


@pytest.mark.needs('llama')
def test_the_block_table_is_ggmls():
    import llama_cpp
    libs = Path(llama_cpp.__file__).parent.glob('lib/*ggml-base*')
    lib = next(p for p in libs if p.suffix in ('.so', '.dylib', '.dll'))
    g = ctypes.CDLL(str(lib))
    g.ggml_type_size.restype, g.ggml_blck_size.restype = ctypes.c_size_t, ctypes.c_int64
    assert gguf._BLOCKS == {i: (g.ggml_blck_size(i), g.ggml_type_size(i)) for i in gguf._BLOCKS}


# --- case 25: files that are no model -------------------------------------------------------------------------------
def test_first_two_megabytes(tmp_path, smol):
    with smol.open('rb') as f: half = write(tmp_path/'half.gguf', f.read(2_000_000))
    fails(Damaged, lambda: check_gguf(half), str(half), '2,000,000', f'{smol.stat().st_size:,}', 'cut short')


@pytest.mark.parametrize('n', [1, 3, 4, 8, 23, 24, 25, 100, 1000, 50_000, -1])
def test_cut_anywhere(tmp_path, n):
    data = TINY.read_bytes()
    fails(Damaged, lambda: check_gguf(write(tmp_path/'m.gguf', data[:n])), str(tmp_path/'m.gguf'))


@pytest.mark.parametrize('data, words', [
    (b'', '0 bytes'), (b'<!DOCTYPE html>\n', 'web page'), (b'\n  <html>', 'web page'),
    (b'PK\x03\x04' + bytes(40), 'zip'),
    (b'version https://git-lfs.example/spec/v1\n', 'LFS pointer'), (b'tjgg' + bytes(40), 'old GGML'),
    (struct.pack('<Q', 40) + b'{"__metadata__":{}}', 'safetensors'), (b'\x7fELF' + bytes(40), 'ELF')])
def test_what_it_is_instead(tmp_path, data, words):
    fails(Damaged, lambda: check_gguf(write(tmp_path/'m.gguf', data)), words, str(tmp_path/'m.gguf'))


def test_versions_and_byte_order(tmp_path):
    for version in (0, 1, 4, 99):
        file = write(tmp_path/f'{version}.gguf', make(version))
        fails(BadWeights, partial(check_gguf, file), f'version {version}')
    fails(BadWeights, lambda: check_gguf(write(tmp_path/'m.gguf', make(3, order='>'))), 'big-endian')
    assert check_gguf(write(tmp_path/'m.gguf', make(2))).version == 2


def test_a_missing_file(tmp_path): fails(ModelNotFound, lambda: check_gguf(tmp_path/'m.gguf'), str(tmp_path/'m.gguf'))


def test_a_tensor_type_of_the_future_is_not_called_damage(tmp_path):
    data = make(tensors=((64, 2), (64, 2)))
    newer = data.replace(struct.pack('<IQ', 2, 64), struct.pack('<IQ', 99, 64))
    assert newer != data and check_gguf(write(tmp_path/'m.gguf', newer)).n_tensors == 2


def test_split_parts_must_all_be_there_and_whole(tmp_path):
    files = split(tmp_path)
    assert check_gguf(files[0]).meta['split.count'] == 3
    data = files[2].read_bytes()
    files[2].write_bytes(data[:-40])
    fails(Damaged, lambda: check_gguf(files[0]), str(files[2]), 'cut short')
    files[2].unlink()
    files[1].unlink()
    fails(BadWeights, lambda: check_gguf(files[0]), files[1].name, files[2].name)
    fails(BadWeights, lambda: check_gguf(files[0].rename(tmp_path/'renamed.gguf')), '-00001-of-00003')


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bytes_are_a_header_or_bad_weights(tmp_path_factory, data):
    "Bytes changed at random in a good header never escape as another exception."
    good = bytearray(make(tokenizer__ggml__tokens=['a', 'b'], general__alignment=32, split__count=1))
    change = st.tuples(st.integers(4, len(good) - 1), st.integers(0, 255))
    for at, byte in data.draw(st.lists(change, max_size=6)): good[at] = byte
    file = write(tmp_path_factory.getbasetemp()/'fuzz.gguf', bytes(good[:data.draw(st.integers(0, len(good)))]))
    try: h = check_gguf(file)
    except BadWeights as e: assert '\n' not in str(e)
    else: assert isinstance(h.quant + h.arch + h.name, str) and h.sampling is not None
