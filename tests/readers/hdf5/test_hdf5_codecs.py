"""Decoded filters: exactly the bytes, or an error that names a missing package."""

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.readers.hdf5 import codecs
from kerasfeed.readers.hdf5.codecs import DEFLATE, FLETCHER32, LZF, SHUFFLE, DecodeError, Filter, Pipeline

OPTIONAL = ("deflate", "zlib_into", "imagecodecs")


@pytest.fixture(params=["all codecs", "required codecs"])
def installed(request, monkeypatch):
    """Run with all installed packages, and with only the required ones."""
    if request.param != "all codecs":
        for name in OPTIONAL:
            monkeypatch.setitem(sys.modules, name, None)
    return request.param


def _shuffled(data, width):
    whole = len(data) // width * width
    return data[:whole].reshape(-1, width).T.tobytes() + data[whole:].tobytes()


def _noise(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 9, nbytes).astype(np.uint8)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("nbytes", [0, 5, 48, 50, 1001])
def test_shuffled_and_deflated_bytes_are_restored(installed, width, nbytes):
    data = _noise(nbytes)
    pipeline = Pipeline((Filter(SHUFFLE, (width,)), Filter(DEFLATE, (4,))), nbytes)
    stored = zlib.compress(_shuffled(data, width))
    assert bytes(pipeline.decode(stored, 0)) == data.tobytes()
    assert bytes(pipeline.decode(zlib.compress(data.tobytes()), 0b01)) == data.tobytes()
    assert bytes(pipeline.decode(_shuffled(data, width), 0b10)) == data.tobytes()
    assert bytes(pipeline.decode(data.tobytes(), 0b11)) == data.tobytes()


@pytest.mark.parametrize("change", ["short", "long", "cut", "flipped", "empty"])
@pytest.mark.parametrize("mask", [0, 1])
def test_stored_bytes_that_do_not_decode_to_a_chunk_raise(installed, change, mask):
    data = _noise(4000)
    pipeline = Pipeline((Filter(SHUFFLE, (4,)), Filter(DEFLATE, (4,))), 4000)
    whole = zlib.compress(data.tobytes())
    stored = {
        "short": zlib.compress(data[:-4].tobytes()),
        "long": zlib.compress(data.tobytes() + bytes(4)),
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        "empty": b"",
    }[change]
    with pytest.raises(DecodeError):
        pipeline.decode(stored, mask)


@pytest.mark.parametrize("nbytes", [1, 2, 7, 4096, 300_001])
def test_the_checksum_equals_the_one_written_by_hdf5(tmp_path, nbytes):
    pytest.importorskip("imagecodecs")
    data = np.random.default_rng(1).integers(0, 256, nbytes).astype(np.uint8)
    with h5py.File(tmp_path / "kerasfeed.h5", "w") as file:
        dataset = file.create_dataset("x", data=data, chunks=(nbytes,), fletcher32=True)
        stored = dataset.id.read_direct_chunk((0,))[1]
    pipeline = Pipeline((Filter(FLETCHER32, ()),), nbytes)
    assert bytes(pipeline.decode(stored, 0)) == data.tobytes()
    damaged = bytearray(stored)
    damaged[nbytes // 2] ^= 4
    with pytest.raises(DecodeError, match="wrong checksum"):
        pipeline.decode(bytes(damaged), 0)
    for cut in (b"abc", b""):
        with pytest.raises(DecodeError, match=r"wrong checksum|0 bytes instead of"):
            pipeline.decode(cut, 0)


def test_a_blosc_header_with_wrong_sizes_is_refused():
    pytest.importorskip("imagecodecs")
    pipeline = Pipeline((Filter(codecs.BLOSC, (2, 2, 4, 64)),), 64)
    with pytest.raises(DecodeError, match="no blosc header"):
        pipeline.decode(b"abc", 0)
    with pytest.raises(DecodeError, match="header of 4,294,967,295 bytes"):
        pipeline.decode(bytes(4) + struct.pack("<III", 2**32 - 1, 64, 20) + bytes(4), 0)


def test_a_bitshuffle_header_with_wrong_sizes_is_refused():
    pytest.importorskip("imagecodecs")
    pipeline = Pipeline((Filter(codecs.BITSHUFFLE, (0, 4, 4, 0, 2)),), 64)
    for header in (struct.pack(">QI", 2**60, 32), struct.pack(">QI", 64, 0), struct.pack(">QI", 64, 33), b"ab"):
        with pytest.raises(DecodeError):
            pipeline.decode(header + bytes(30), 0)
    with pytest.raises(DecodeError, match="reaches beyond the chunk"):
        pipeline.decode(struct.pack(">QII", 64, 64, 999) + bytes(30), 0)


@pytest.mark.parametrize("each", [Filter(4, (1, 2)), Filter(6, ()), Filter(12345, ())])
def test_a_filter_without_a_decoder_is_named(each):
    assert Pipeline((each,), 8).refusal == f"no decoder for {each.name}"


def test_without_a_package_h5py_decodes_its_filter_and_the_reader_names_it(tmp_path, monkeypatch):
    path = tmp_path / "kerasfeed.h5"
    data = np.arange(400, dtype="f4").reshape(20, 20)
    with h5py.File(path, "w") as file:
        file.create_dataset("lzf", data=data, chunks=(5, 20), compression="lzf")
        file.create_dataset("gzip", data=data, chunks=(5, 20), compression="gzip", shuffle=True)
    for name in OPTIONAL:
        monkeypatch.setitem(sys.modules, name, None)
    assert codecs.decoder_of(Filter(LZF, ())) is None
    with kf.HDF5File(path) as file:
        assert str(file["lzf"].reader) == "h5py: no decoder for lzf; pip install imagecodecs"
        assert str(file["gzip"].reader) == "direct"
        for name in ("lzf", "gzip"):
            assert np.array_equal(file[name][[7, 1]], data[[7, 1]])


_FILTERED = """
import sys
{before}
from kerasfeed.readers.hdf5.file import HDF5File
file = HDF5File("filtered.h5")
try:
    print(file["points"][3].tolist())
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("is_there", [True, False], ids=["installed", "missing"])
def test_an_unregistered_filter_is_loaded_or_named_in_the_error(tmp_path, is_there):
    pytest.importorskip("hdf5plugin")
    write = (
        "import h5py, hdf5plugin, numpy as np\n"
        "with h5py.File('filtered.h5', 'w') as file:\n"
        "    file.create_dataset('points', data=np.arange(8.0), chunks=(4,), compression=hdf5plugin.LZ4())\n"
    )
    read = _FILTERED.format(before="" if is_there else "sys.modules['hdf5plugin'] = None")
    environment = {**os.environ, "PYTHONPATH": str(Path(kf.__file__).parents[1])}
    for code in (write, read):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=60, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    if is_there:
        assert done.stdout == "3.0\n"
    else:
        assert "'points'[3]" in done.stdout
        assert "HDF5 does not know its filter lz4. Run pip install hdf5plugin" in done.stdout
