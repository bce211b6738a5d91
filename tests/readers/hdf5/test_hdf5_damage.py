"""Damaged files: an error or h5py's answer, never a crash, a hang, or other data than h5py's."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import h5py
import numpy as np
import pytest
from hdf5_answers import Refusal
from hdf5_files import PIPELINES, lacking, values
from hdf5_fuzz import _with, verdict
from places import SUPPORT

import kerasfeed as kf

NUMBER = int(os.environ.get("KERASFEED_FUZZ", "18"))  # damages of each file
ALLOWED = {"same", "harmless", "both refuse", "we refuse", "we answer rightly", "h5py guesses"}

FILES = {
    "contiguous": ("none", None, "earliest"),
    "none": ("none", (8, 5), "earliest"),
    "none-latest": ("none", (8, 5), "latest"),
    "gzip4": ("gzip4", (8, 5), "earliest"),
    "shuffle-gzip4": ("shuffle-gzip4", (8, 5), "earliest"),
    "shuffle-gzip4-latest": ("shuffle-gzip4", (8, 5), "latest"),
    "shuffle-gzip4-rows": ("shuffle-gzip4", (1, 24), "earliest"),
    "lzf": ("lzf", (8, 5), "earliest"),
    "fletcher32": ("fletcher32", (8, 5), "earliest"),
    "shuffle-gzip-fletcher32": ("shuffle-gzip-fletcher32", (8, 5), "earliest"),
    "scaleoffset": ("scaleoffset", (8, 5), "earliest"),
    "blosc-lz4-shuffle": ("blosc-lz4-shuffle", (8, 5), "earliest"),
    "zstd": ("zstd", (8, 5), "earliest"),
    "bitshuffle-lz4": ("bitshuffle-lz4", (8, 5), "earliest"),
}


@dataclass(frozen=True)
class Finding:
    """The result of one damage.

    Attributes:
        number: Number of the damage.
        what: The damage.
        found: Verdict of each query; empty after a crash.
        ended: None, or the reader that crashed or hung, and the output of its process.
    """

    number: int
    what: str
    found: dict[str, str]
    ended: str | None = None

    @property
    def wrong(self) -> dict[str, str]:
        """Queries whose verdict is a defect."""
        return {query: outcome for query, outcome in self.found.items() if outcome not in ALLOWED}


def _watch(path, folder, readers, numbers):
    """Run the damages of these numbers in one child; the findings up to the end, or up to the first crash or hang."""
    script = SUPPORT / "hdf5_fuzz.py"
    command = [sys.executable, "-W", "ignore", str(script), str(path), str(folder), readers, *map(str, numbers)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    findings = [Finding(one["number"], one["what"], one["found"]) for one in records if "found" in one]
    if done.returncode != 0:
        assert records, f"the harness itself failed: {done.stderr[-2000:]}"
        assert "starts" in records[-1], f"the harness itself failed: {done.stderr[-2000:]}"
        ended = f"{records[-1]['starts']} ended with {done.returncode}: {done.stderr[-3000:]}"
        findings.append(Finding(records[-1]["number"], records[-1]["what"], {}, ended))
    return findings


def _fuzz(path, folder, numbers):
    """Findings of all these damages; a crash or hang of h5py alone on the same file is no finding."""
    findings, left = [], list(numbers)
    while left:
        some = _watch(path, folder, "h5py kerasfeed", left)
        left = left[len(some) :]
        if some[-1].ended is not None:
            crashed = some.pop()
            alone = _watch(path, folder, "kerasfeed", [crashed.number])
            theirs = [_watch(path, folder, "h5py", [crashed.number])[-1].ended for _ in range(3)]
            if alone[-1].ended is not None and not any(theirs):
                some.append(alone[-1])
        findings += some
    return findings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kerasfeed-damage")


@pytest.mark.heavy
@pytest.mark.timeout(600 + 2 * NUMBER)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_raises_or_reads_as_in_h5py(folder, name):
    pipeline, chunks, libver = FILES[name]
    filters = PIPELINES[pipeline]
    if reason := lacking(filters.needs):
        pytest.skip(reason)
    path = folder / f"{name}.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("data", data=values((40, 24), filters.dtype), chunks=chunks, **filters.arguments())
    findings = _fuzz(path, folder, range(NUMBER))

    crashed = [finding for finding in findings if finding.ended is not None]
    assert not crashed
    wrong = [f"{finding.number}: {finding.what}: {finding.wrong}" for finding in findings if finding.wrong]
    assert not wrong, "\n".join(wrong)

    # Some damage must have had an effect; otherwise the assertions above are empty.
    counts = Counter(outcome for finding in findings for outcome in finding.found.values())
    assert len(findings) > NUMBER // 2
    assert counts["harmless"] > 0
    assert counts["same"] + counts["both refuse"] + counts["we refuse"] > NUMBER


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["gzip4", "shuffle-gzip4", "shuffle-gzip-fletcher32"])
def test_every_flipped_bit_of_a_checked_chunk_is_detected(folder, name):
    """A codec with a checksum detects every flip: the result is an error or the true data."""
    filters = PIPELINES[name]
    path = folder / f"{name}-bits.h5"
    data = values((16, 8), filters.dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, chunks=(4, 8), **filters.arguments())
        place = file["data"].id.get_chunk_info(2)
    whole = path.read_bytes()
    counts = Counter()
    for number in range(0, 8 * place.size, max(1, 8 * place.size // 250)):
        flipped = bytearray(whole)
        flipped[place.byte_offset + number // 8] ^= 1 << number % 8
        path.write_bytes(flipped)
        with kf.HDF5File(path) as file:
            assert np.array_equal(file["data"][0], data[0])
            try:
                ours = file["data"][9]
            except OSError as error:
                assert "'data'" in str(error)  # noqa: PT017  most flips raise, those in unused bits may not
                counts["refused"] += 1
            else:
                assert np.array_equal(ours, data[9]), number
                counts["right"] += 1
    assert counts["refused"] > 0.9 * counts.total()


def test_the_harness_distinguishes_wrong_data_from_correct_data(folder):
    path = folder / "verdicts.h5"
    data = values((40, 24), "f4")
    with h5py.File(path, "w") as file:
        file["data"] = data
    truth = _with(h5py.File, path)
    assert set(verdict(truth, truth, path, truth).values()) == {"harmless"}
    other = truth | {"[3]": data[4], "[-1]": data[-1].astype("f8")}
    refused = Refusal("OSError", "damaged")
    assert verdict(other, truth, path, truth)["[3]"].startswith("different")
    assert verdict(other, truth, path, truth)["[-1]"].startswith("different: dtype")
    assert verdict(other, refused, path, truth)["[3]"].startswith("garbage")
    assert verdict(other, other, path, truth)["[3]"] == "same"
    assert set(verdict(truth, refused, path, truth).values()) == {"we answer rightly"}
    assert set(verdict(refused, truth, path, truth).values()) == {"we refuse"}
    assert verdict(Refusal("AttributeError", "?"), truth, path, truth)["[3]"].startswith("unclear")
    assert not {outcome for outcome in verdict(other, truth, path, truth).values() if outcome != "harmless"} & ALLOWED


@pytest.mark.heavy
def test_the_harness_distinguishes_a_crash_from_a_normal_exit(folder):
    path = folder / "crash.h5"
    with h5py.File(path, "w") as file:
        file["data"] = values((40, 24), "f4")
    assert [finding.ended for finding in _watch(path, folder, "h5py kerasfeed", [0, 1])] == [None, None]
    crashed = _watch(path, folder, "h5py crash kerasfeed", [0, 1])
    assert len(crashed) == 1
    assert crashed[0].ended.startswith(f"kerasfeed ended with -{int(signal.SIGSEGV)}")
