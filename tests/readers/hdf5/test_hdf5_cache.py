"""The cache of chunks: bounded, decoded once by one thread, and never blocking."""

import os
import sys
import threading
import time
import weakref

import h5py
import numpy as np
import pytest
from decode_threads import set_threads
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.readers.hdf5 import chunked as direct_room
from kerasfeed.readers.hdf5.chunked import ChunkCache, share
from kerasfeed.readers.hdf5.open_files import registry
from kerasfeed.util import lru, resources


def _array(value, nbytes=100):
    return np.full(nbytes, value, np.uint8)


def test_the_cache_evicts_least_recently_used_chunks_and_keeps_its_bound():
    cache = ChunkCache(350)
    for key in range(3):
        assert cache.get_or_load(key, lambda key=key: _array(key))[1] is False
    assert cache.get(0) is not None
    cache.get_or_load(3, lambda: _array(3))
    assert [cache.get(key) is not None for key in range(4)] == [True, False, True, True]
    assert cache.weight == 300
    cache.get_or_load(9, lambda: _array(9, 351))
    assert cache.get(9) is None
    assert cache.weight == 300
    assert cache.get_all([0, 3])[1][0] == 3
    assert cache.get_all([0, 1]) is None
    assert cache.missing([0, 1, 2]) == [1]
    cache.forget(range(1, 1 << 60))
    assert cache.weight == 100
    assert cache.get(0) is not None


def test_cached_arrays_are_read_only():
    cache = ChunkCache(1000)
    array, _ = cache.get_or_load(0, lambda: _array(1))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2


@pytest.mark.parametrize("limit", [0, 1000])
def test_one_thread_decodes_a_chunk_while_the_others_wait(limit):
    cache, calls, begun = ChunkCache(limit), [], threading.Barrier(6, timeout=30)
    found = []

    def load():
        calls.append(threading.get_ident())
        wait_until(lambda: sum(map(asking, threads)) == 6)
        time.sleep(0.2)  # until the last one waits
        return _array(7)

    def asking(thread):
        frame = sys._current_frames().get(thread.ident)
        while frame is not None and frame.f_code is not ChunkCache.get_or_load.__code__:
            frame = frame.f_back
        return frame is not None

    def ask():
        begun.wait()
        found.append(cache.get_or_load(5, load))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert sorted(waited for _, waited in found) == [False] + [True] * 5
    assert all(array[0] == 7 for array, _ in found)


def test_a_failed_decode_lets_the_next_thread_try():
    cache, began, go_on, found = ChunkCache(1000), threading.Event(), threading.Event(), []

    def fail():
        began.set()
        assert go_on.wait(30)
        raise OSError("damaged")

    def first():
        with pytest.raises(OSError, match="damaged"):
            cache.get_or_load(1, fail)
        found.append("failed")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert began.wait(30)
    threads.append(threading.Thread(target=lambda: found.append(cache.get_or_load(1, lambda: _array(4))[0][0])))
    threads[1].start()
    time.sleep(0.05)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert set(found) == {"failed", 4}


@pytest.mark.parametrize("where", ["begin", "wait", "load"])
def test_an_interrupted_reader_does_not_block_others(where, monkeypatch):
    cache = ChunkCache(1000)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "begin":  # between claiming the chunk and decoding it
            patch.setattr(cache, "_loading", flights := _Interrupted())
        elif where == "wait":
            flight = lru._Loading()
            flight.done = _InterruptedLock()
            cache._loading[1] = flight
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_load(1, interrupt)
        if where == "wait":
            assert cache._loading.pop(1) is flight  # still the array of the decoding thread
        elif where == "begin":
            assert not flights
    assert cache.get_or_load(1, lambda: _array(3))[0][0] == 3


class _Interrupted(dict):
    def setdefault(self, key, value):
        super().setdefault(key, value)
        raise KeyboardInterrupt


class _InterruptedLock:
    def __enter__(self):
        raise KeyboardInterrupt

    def __exit__(self, *_):
        pass


def test_an_interrupted_share_call_waits_for_its_helpers(monkeypatch):
    set_threads(monkeypatch, 1)
    helping, ended, caller = threading.Event(), threading.Event(), threading.current_thread()

    def items():
        yield 0  # for the helper, because the caller is busy with the first
        yield 1
        raise KeyboardInterrupt

    def work(_):
        if threading.current_thread() is caller:
            assert helping.wait(30)
        else:
            helping.set()
            time.sleep(0.2)
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        share(items(), work, 1)
    assert ended.is_set()


def test_destinations_are_not_held_while_all_threads_are_busy(monkeypatch):
    set_threads(monkeypatch, 1)
    go_on = threading.Event()
    busy = direct_room._threads.here().submit(go_on.wait, SECONDS)
    out = np.zeros(3)
    held = weakref.ref(out)
    share(iter(range(3)), lambda place, out=out: out.__setitem__(place, 1), 1)
    del out
    try:
        assert held() is None
    finally:
        go_on.set()
    assert busy.result()


def test_an_error_of_the_items_in_a_helper_is_raised_in_the_caller(monkeypatch):
    set_threads(monkeypatch, 1)
    failed, caller = threading.Event(), threading.current_thread()

    class Items:
        def __iter__(self):
            return self

        def __next__(self):
            if threading.current_thread() is caller:
                if failed.is_set():
                    raise StopIteration  # like a generator that has raised
                return 0
            failed.set()
            raise MemoryError

    with pytest.raises(MemoryError):
        share(Items(), lambda _: failed.wait(30), 1)


def test_forget_never_blocks_and_is_deferred_if_necessary():
    cache = ChunkCache(1000)
    keys = cache.reserve(2)
    for key in keys:
        cache.get_or_load(key, lambda: _array(1))
    with cache._lock:  # as if the garbage collector ran in the thread that holds it
        cache.forget(keys)
    assert cache.weight == 200
    cache.get_or_load(cache.reserve(1)[0], lambda: _array(1))
    assert cache.weight == 100


def test_many_files_share_one_cache_bound_and_release_their_share_on_close(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "cache", ChunkCache(5 * 4000))
    data = np.arange(4000, dtype=np.float32).reshape(4, 1000)
    files = []
    for number in range(10):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("chunked", data=data, chunks=(1, 1000), compression="gzip")
            file.create_dataset("contiguous", data=data[:, :10])
        files.append(kf.HDF5File(tmp_path / f"{number}.h5"))
        for row in range(4):
            assert np.array_equal(files[-1]["chunked"][row], data[row])
            assert np.array_equal(files[-1]["contiguous"].take([row, 0])[0], data[row, :10])
        assert registry.cache.weight <= 5 * 4000
    assert registry.cache.weight > 4 * 4000
    own = kf.HDF5File(tmp_path / "0.h5", chunk_cache=4000)
    assert np.array_equal(own["chunked"][3], data[3])
    assert own["chunked"].stats().again == 0
    own.close()
    for file in files:
        file.close()
    assert registry.cache.weight == 0


def test_threads_decode_different_chunks_in_parallel():
    cache, both = ChunkCache(1000), threading.Barrier(2, timeout=30)

    def load():
        both.wait()  # fails unless both threads are here at the same time
        return _array(1)

    threads = [threading.Thread(target=cache.get_or_load, args=(key, load)) for key in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.weight == 200


def test_the_bound_is_a_sixteenth_of_memory_and_at_most_a_gibibyte(monkeypatch):
    monkeypatch.setattr(resources, "memory", lambda: 8 << 30)
    assert resources.cache_bytes("chunk_cache", "auto") == 512 << 20
    monkeypatch.setattr(resources, "memory", lambda: 1 << 40)
    assert resources.cache_bytes("chunk_cache", "auto") == 1 << 30
    assert resources.cache_bytes("chunk_cache", 0) == 0
    assert resources.cache_bytes("chunk_cache", np.int64(5)) == 5


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "must be at least 0 bytes, received -1"),
        ("1 GB", ValueError, r"must be 'auto' or a number of bytes such as 268435456 \(256 MiB; 0 keeps nothing\)"),
        (1.5, TypeError, "received 1.5"),
        (True, TypeError, "received True"),
        (None, TypeError, "received None"),
    ],
)
def test_the_error_for_an_invalid_bound_lists_valid_ones(tmp_path, value, error, message):
    with pytest.raises(error, match=message):
        kf.HDF5File(tmp_path / "any.h5", chunk_cache=value)


@pytest.fixture
def path(tmp_path):
    """40 rows in 10 chunks of 4, of 1,600 bytes each."""
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(4000, dtype="f4").reshape(40, 100), chunks=(4, 100), compression=1)
    return path


def _read(data, order):
    expected = np.arange(4000, dtype="f4").reshape(40, 100)
    for index in order.tolist():
        assert np.array_equal(data[index], expected[index])


def test_each_chunk_is_decoded_once_if_the_dataset_fits_in_the_cache(path):
    order = np.random.default_rng(0).permutation(40)
    with kf.HDF5File(path, chunk_cache=16_000) as file:
        _read(file["x"], order)
        _read(file["x"], order)
        stats = file["x"].stats()
    assert (stats.decoded, stats.again, stats.fallbacks) == (10, 0, 0)
    assert stats.hits == 70
    assert 0 < stats.nbytes < 16_000
    assert stats.seconds > 0


@pytest.mark.parametrize(("limit", "least"), [(0, 30), (8_000, 10)])
def test_evicted_chunks_are_counted_when_decoded_again(path, limit, least):
    order = np.random.default_rng(0).permutation(40)
    with kf.HDF5File(path, chunk_cache=limit) as file:
        _read(file["x"], order)
        stats = file["x"].stats()
    assert stats.decoded + stats.hits == 40
    assert stats.again == stats.decoded - 10
    assert stats.again >= least


def test_overlapping_boxes_decode_chunks_once_with_a_small_cache(tmp_path):
    volume = np.random.default_rng(0).integers(0, 9, (16, 16, 16), np.uint8)
    with h5py.File(tmp_path / "volume.h5", "w") as file:
        file.create_dataset("volume", data=volume, chunks=(4, 4, 4), compression=1)
    with kf.HDF5File(tmp_path / "volume.h5", chunk_cache=volume.nbytes // 2) as file:
        for begin in (0, 4, 8):
            assert np.array_equal(file["volume"][0:8, 0:8, begin : begin + 8], volume[0:8, 0:8, begin : begin + 8])
        stats = file["volume"].stats()
    assert (stats.decoded, stats.again, stats.hits) == (16, 0, 8)


@pytest.fixture
def scaled(tmp_path):
    """A volume with a filter that only HDF5 decodes: 48 chunks of 16 KiB, many of them at the edge, one missing."""
    volume = np.random.default_rng(0).integers(0, 99, (40, 50, 60), np.int32)
    volume[:16, 16:32, 16:32] = 7
    with h5py.File(tmp_path / "scaled.h5", "w") as file:
        data = file.create_dataset("x", volume.shape, "i4", chunks=(16, 16, 16), scaleoffset=0, fillvalue=7)
        for part in (np.s_[16:], np.s_[:16, :16], np.s_[:16, 32:], np.s_[:16, 16:32, :16], np.s_[:16, 16:32, 32:]):
            data[part] = volume[part]
        assert data.id.get_num_chunks() == 47
    return tmp_path / "scaled.h5", volume


def _patches(shape, count=30, size=12):
    corners = np.random.default_rng(0).integers(0, np.array(shape) - size + 1, (count, 3))
    return [tuple(slice(first, first + size) for first in corner) for corner in corners.tolist()]


def test_chunks_that_h5py_decodes_are_kept_and_decoded_once(scaled):
    path, volume = scaled
    with kf.HDF5File(path) as file:
        data = file["x"]
        for patch in _patches(volume.shape) * 2:
            assert np.array_equal(data[patch], volume[patch])
        stats = data.stats()
        assert str(data.reader) == "h5py: no decoder for scale-offset"
        assert np.array_equal(data[...], volume)
        assert np.array_equal(data.take([39, 3, 3, -1]), volume[[39, 3, 3, -1]])
        assert [np.array_equal(row, volume[index]) for index, row in enumerate(data)] == [True] * 40
        assert data.stats().decoded == 47
    assert (stats.again, stats.fallbacks) == (0, 0)
    assert 0 < stats.decoded <= 47


def test_chunks_decoded_by_h5py_respect_chunk_cache_and_rdcc_nbytes(scaled):
    path, volume = scaled
    rows = [(slice(index, index + 1), slice(None), slice(None)) for index in range(40)]
    for options, decoded in (({"chunk_cache": 5 * 2**14}, 100), ({"chunk_cache": 0}, 0), ({"rdcc_nbytes": 2**22}, 0)):
        with kf.HDF5File(path, **options) as file:
            for box in [*_patches(volume.shape), *rows]:
                assert np.array_equal(file["x"][box], volume[box])
            assert file["x"].stats().decoded >= decoded
            assert decoded or not file["x"].stats().decoded


def test_rows_decoded_by_hdf5_are_cached_only_if_all_of_them_fit(tmp_path):
    rows = np.arange(8 * 5000, dtype="i4").reshape(8, 5000) % 99
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(1, 5000), scaleoffset=0)
    for limit, decoded in ((rows.nbytes, 8), (rows.nbytes - 1, 0)):
        with kf.HDF5File(tmp_path / "rows.h5", chunk_cache=limit) as file:
            for index in [*range(8), *range(8)]:
                assert np.array_equal(file["x"][index], rows[index])
            assert np.array_equal(file["x"][2:7], rows[2:7])
            assert file["x"].stats().decoded == decoded


def test_threads_and_callbacks_with_the_hdf5_lock_read_chunks_decoded_by_h5py(scaled):
    path, volume = scaled
    wrong = []

    def read(name="", _=None):
        for patch in _patches(volume.shape, 8):
            if not np.array_equal(file["x"][patch], volume[patch]):
                wrong.append((name, patch))

    with kf.HDF5File(path) as file, h5py.File(path) as other:
        threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
        threads.append(threading.Thread(target=other.visititems, args=(read,), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_threads_and_callbacks_with_the_hdf5_lock_open_the_same_datasets(tmp_path):
    path, names = tmp_path / "many.h5", [f"x{number}" for number in range(64)]
    with h5py.File(path, "w") as file:
        for name in names:
            file.create_dataset(name, data=np.arange(20000), chunks=(5000,), compression="gzip")
    wrong = []

    def read(_name="", _=None):
        wrong.extend(name for name in names if file[name][7] != 7)

    for _ in range(10):
        with kf.HDF5File(path) as file, h5py.File(path) as other:
            threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
            threads.append(threading.Thread(target=other.visititems, args=(read,), daemon=True))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SECONDS)
            assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_a_file_truncated_while_h5py_decodes_its_chunks_raises(scaled):
    path, _ = scaled
    with kf.HDF5File(path) as file:
        assert file["x"][0, 0, 0] >= 0
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(OSError, match=r"scaled\.h5"):
            file["x"][...]


def test_take_reads_each_chunk_once_even_without_a_cache(path):
    rows = np.random.default_rng(0).permutation(np.arange(-40, 40))
    with kf.HDF5File(path, chunk_cache=0) as file:
        assert np.array_equal(file["x"].take(rows), np.arange(4000, dtype="f4").reshape(40, 100)[rows])
        assert file["x"].stats().decoded == 10


def test_only_files_with_equal_bounds_share_a_cache(path):
    with kf.HDF5File(path) as one, kf.HDF5File(path) as same, kf.HDF5File(path, chunk_cache=0) as other:
        for file in (one, same, other):
            assert file["x"][1, 0] == 100
        assert one["x"].stats() == same["x"].stats()
        assert one["x"].stats().hits == 1
        assert other["x"].stats().decoded == 1


def test_read_ahead_decodes_rows_before_they_are_read(path):
    with kf.HDF5File(path, chunk_cache=16_000) as file:
        data = file["x"]
        data.read_ahead(np.arange(20))
        wait_until(lambda: data.stats().decoded >= 5)
        assert data.stats().decoded == 5
        _read(data, np.arange(20))
        assert data.stats().decoded == 5
        data.read_ahead(np.arange(20))
        data.read_ahead([99, -99])
        data.read_ahead("nonsense")
        assert data.stats().decoded == 5


def test_read_ahead_fills_at_most_half_of_the_cache(path):
    with kf.HDF5File(path, chunk_cache=6_400) as file, kf.HDF5File(path, chunk_cache=3_000) as small:
        for each in (file, small):
            each["x"].read_ahead(np.arange(40))
        wait_until(lambda: file["x"].stats().decoded == 2)
        time.sleep(0.3)  # no more decodes follow
        assert file["x"].stats().decoded == 2
        assert small["x"].stats().decoded == 0


@pytest.mark.parametrize("window", [1, 2, 4])
def test_repeated_read_ahead_evicts_no_chunk_that_is_still_needed(tmp_path, window):
    path = tmp_path / "kerasfeed.h5"
    values = np.random.default_rng(0).integers(0, 99, (16 * 64, 50)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(64, 50), compression=1)
    rng = np.random.default_rng(1)
    blocks = np.arange(1024).reshape(16, 64)[rng.permutation(16)]
    order = np.concatenate([rng.permutation(blocks[k : k + window].reshape(-1)) for k in range(0, 16, window)])
    with kf.HDF5File(path, chunk_cache=8 * 64 * 50 * 4) as file:
        data = file["x"]
        for begin in range(0, 1024, 16):
            for ahead in range(1, 11):
                data.read_ahead(order[begin + 16 * ahead : begin + 16 * ahead + 16])
            for index in order[begin : begin + 16].tolist():
                assert np.array_equal(data[index], values[index])
        assert (data.stats().decoded, data.stats().again) == (16, 0)


def test_read_ahead_continues_after_requested_rows_are_never_read(path, monkeypatch):
    with kf.HDF5File(path, chunk_cache=6_400) as file:
        data = file["x"]
        for expected, rows in ((2, np.arange(8)), (2, np.arange(8, 16)), (4, np.arange(8, 16))):
            if expected == 4:
                monkeypatch.setattr(direct_room, "_AHEAD_SECONDS", 0.0)
            data.read_ahead(rows)
            wait_until(lambda expected=expected: data.stats().decoded >= expected)
            time.sleep(0.05)  # no more decodes follow
            assert data.stats().decoded == expected


@pytest.mark.parametrize("again", [False, True])
def test_read_ahead_does_not_decode_whole_chunk_rows_twice(tmp_path, again):
    path = tmp_path / "kerasfeed.h5"
    values = np.random.default_rng(0).integers(0, 9, (40, 500)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 500), compression=1)
    with kf.HDF5File(path, chunk_cache=(40 if again else 20) * 2000) as file:
        data = file["x"]
        for begin in range(0, 40, 4):
            data.read_ahead(np.arange(begin, min(40, begin + 16)))
            assert np.array_equal(data.take(np.arange(begin, begin + 4)), values[begin : begin + 4])
        assert data.stats().decoded == 40


def test_the_real_files_decode_each_chunk_once_in_random_order(real_data):
    path = real_data / "bimnet10_train.h5"
    with h5py.File(path) as reference, kf.HDF5File(path) as file:
        expected, data = reference["data"][()], file["data"]
        assert data.reader.kind == "direct"
        for seed in range(2):
            for index in np.random.default_rng(seed).permutation(len(data)).tolist():
                assert data[index].tobytes() == expected[index].tobytes()
        stats = data.stats()
        chunks = np.prod([-(-size // chunk) for size, chunk in zip(data.shape, data.chunks, strict=True)])
        assert (stats.decoded, stats.again) == (chunks, 0)
