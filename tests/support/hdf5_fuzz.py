"""Damage copies of an HDF5 file, one after another, and read each with h5py and with kerasfeed.

Run as a program in its own process, because HDF5 itself may crash on a damaged file:
`python hdf5_fuzz.py FILE FOLDER READERS NUMBER...` writes one JSON line before each reader starts (so that the watching
process knows which reader crashed) and one with the verdict of each damage.

Invariant: a damage is a pure function of the file's bytes and name and the damage's number, so that a finding can be
repeated alone.
"""

import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

import h5py
import hdf5_files  # noqa: F401  registers the filters of hdf5plugin with h5py
import numpy as np
from hdf5_answers import Refusal, answer, difference

import kerasfeed as kf

PATIENCE = 20.0  # seconds of one reader on one file, which takes about 0.01, until it counts as hung
MEMORY = 4 << 30  # bytes of address space, because damaged sizes request terabytes
LARGEST = 1 << 22  # values; larger datasets (damaged sizes) are not read whole
QUERIES = {
    "[()]": (),
    "[3]": 3,
    "[-1]": -1,
    "[5:31:3]": np.s_[5:31:3],
    "[..., 1]": np.s_[..., 1],
    "[0:8, 2:9]": np.s_[0:8, 2:9],
    "[list]": [0, 7, 8, 30],
}


def spans(path: Path) -> list[tuple[int, int]]:
    """Offsets and sizes, in bytes, of the stored chunks (or of the one contiguous block) of "data"."""
    with h5py.File(path) as file:
        identifier = file["data"].id
        if file["data"].chunks is None:
            return [(identifier.get_offset(), identifier.get_storage_size())]
        found = [identifier.get_chunk_info(number) for number in range(identifier.get_num_chunks())]
        return [(one.byte_offset, one.size) for one in found]


def damaged(whole: bytes, where: list[tuple[int, int]], name: str, number: int) -> tuple[bytes, str]:
    """The bytes with the damage of this number, and a description."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), number])
    data = bytearray(whole)
    if number % 3 == 2:  # anywhere outside chunks: headers, heaps, the index of chunks
        free = np.frombuffer(whole, "u1") != 0
        for offset, size in where:
            free[offset : offset + size] = False
        place = int(rng.choice(np.flatnonzero(free)))
        area = "metadata"
    else:
        offset, size = where[int(rng.integers(len(where)))]
        # Codecs check the ends of a chunk: headers and checksums.
        edges = [0, 1, 2, size // 2, size - 1, size - 2, size - 5]
        place = offset + int(rng.choice([*edges, *rng.integers(0, size, 7)]) % size)
        area = "chunk"
    run = slice(place, place + int(rng.integers(2, 33)))
    what = rng.choice(["bit", "bit", "bit", "byte", "zeros", "ones", "copy", "cut"])
    if what == "bit":
        data[place] ^= 1 << int(rng.integers(8))
    elif what == "byte":
        data[place] = (data[place] + int(rng.integers(1, 256))) % 256
    elif what == "cut":
        del data[place:]
    else:
        size = len(data[run])
        start = int(rng.integers(0, len(whole) - size))
        data[run] = {"zeros": bytes(size), "ones": b"\xff" * size, "copy": whole[start : start + size]}[str(what)]
    return bytes(data), f"{what} at {place} ({area})"


def _read(dataset: Any, small: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"shape": dataset.shape, "dtype": str(dataset.dtype), "by h5py": set()}
    by_h5py = not isinstance(dataset, h5py.Dataset) and dataset.reader.kind == "h5py"
    for name, asked in QUERIES.items():
        if small or name == "[3]":
            before = _fallbacks(dataset)
            found[name] = answer(dataset, asked)
            if by_h5py or _fallbacks(dataset) > before:
                found["by h5py"].add(name)
    return found


def _fallbacks(dataset: Any) -> int:
    """Selections that h5py read instead of the direct reader."""
    return 0 if isinstance(dataset, h5py.Dataset) else dataset.stats().fallbacks


def _with(opener: Any, path: Path) -> dict[str, Any] | Refusal:
    try:
        with opener(path) as file:
            dataset = file["data"]
            return _read(dataset, np.prod(dataset.shape, dtype=float) <= LARGEST)
    except Exception as error:
        return Refusal(type(error).__name__, str(error))


def _again(path: Path) -> list[Any]:
    """h5py's answers with other content in freed memory, which HDF5 reads if a chunk decodes to too few bytes."""
    found = []
    for filling in (b"\x00", b"\x55", b"\xee"):
        leftovers = [filling * size for size in (64, 160, 320, 640, 1280, 3840, 7680) for _ in range(50)]
        del leftovers
        found.append(_with(h5py.File, path))
    return found


def verdict(ours: Any, theirs: Any, path: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """The verdict for each query: the damage is harmless, refused, or (the defects) "different" or "garbage".

    The data from before the damage are never a defect, even if h5py returns others.
    """
    found: dict[str, Any] = {}
    for name in (name for name in truth if name != "by h5py"):
        one, two = (side if isinstance(side, Refusal) else side.get(name) for side in (ours, theirs))
        if isinstance(one, Refusal):
            found[name] = "both refuse" if isinstance(two, Refusal) else "we refuse"
            if one.kind not in ("OSError", "KeyError", "FileNotFoundError") and getattr(two, "kind", "") != one.kind:
                found[name] = f"unclear: {one.kind}: {one.text[:200]}"
        elif isinstance(two, Refusal):
            wrong = difference(one, truth[name])
            found[name] = f"garbage: {wrong} where h5py says {two.text[:100]}" if wrong else "we answer rightly"
        elif (wrong := difference(one, two)) and not difference(one, truth[name]):
            found[name] = "we answer rightly"  # for example, HDF5 no longer finds a chunk through a damaged index
        elif wrong:
            more = [side if isinstance(side, Refusal) else side.get(name) for side in _again(path)]
            # Then h5py returns memory that it never wrote; the same if h5py answered for kerasfeed.
            guesses = name in ours["by h5py"] or any(difference(two, three) for three in more)
            found[name] = "h5py guesses" if guesses else f"different: {wrong}"
        else:
            found[name] = "same" if difference(one, truth[name]) else "harmless"
    return found


def main(path: Path, folder: Path, readers: str, numbers: list[int]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    whole, where = path.read_bytes(), spans(path)
    truth = _with(h5py.File, path)
    assert not isinstance(truth, Refusal)
    for number in numbers:
        data, what = damaged(whole, where, path.stem, number)
        copy = folder / f"{path.stem}-{number}.h5"
        copy.write_bytes(data)
        theirs = ours = Refusal("", "not asked")
        if "h5py" in readers:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            print(json.dumps({"number": number, "what": what, "starts": "h5py"}), flush=True)
            theirs = _with(h5py.File, copy)
            gc.collect()
        if "kerasfeed" in readers:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            print(json.dumps({"number": number, "what": what, "starts": "kerasfeed"}), flush=True)
            if "crash" in readers:  # to test that the watching process notices
                os.kill(os.getpid(), signal.SIGSEGV)
            ours = _with(kf.HDF5File, copy)
        faulthandler.cancel_dump_traceback_later()
        found = verdict(ours, theirs, copy, truth)
        print(json.dumps({"number": number, "what": what, "found": found}), flush=True)
        copy.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], [int(number) for number in sys.argv[4:]])
