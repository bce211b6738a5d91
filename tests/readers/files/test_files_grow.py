"""Files that grow: refreshed between two epochs, with the right length."""

from pathlib import Path

import numpy as np
import pytest

import kerasfeed as kf


def values(feed):
    return sorted(np.concatenate(list(feed)).tolist())


@pytest.mark.parametrize(("workers", "worker_type"), [(0, "thread"), (2, "thread"), (1, "process")])
def test_the_next_epoch_contains_the_scenes_of_new_and_grown_files(tmp_path, workers, worker_type):
    one, two = str(tmp_path / "one.npy"), str(tmp_path / "two.npy")
    np.save(one, np.arange(5.0))
    files = kf.FileSequence([one], np.load)
    with kf.Feed(files, 4, shuffle=True, seed=0, workers=workers, worker_type=worker_type) as feed:
        assert values(feed) == list(range(5))
        np.save(one, np.arange(7.0))
        np.save(two, np.arange(7.0, 13.0))
        assert files.refresh([one, two]) == 8
        assert values(feed) == list(range(13))
        assert (len(feed), feed.get_state()["epoch"], feed.get_state()["fingerprint"]["length"]) == (4, 2, 13)


def test_a_refresh_that_fails_changes_nothing(tmp_path):
    one, two = str(tmp_path / "one.npy"), str(tmp_path / "two.npy")
    np.save(one, np.arange(5.0))
    files = kf.FileSequence([one], np.load)
    np.save(two, np.arange(3.0))
    assert files.refresh([one, two]) == 3
    with pytest.raises(FileNotFoundError):
        files.refresh([one, "absent.npy"])
    assert len(files) == 8
    assert files.refresh() == 0


def test_a_refresh_finds_the_new_files_of_a_glob(tmp_path):
    np.save(tmp_path / "part-2.npy", np.arange(2.0))
    files = kf.FileSequence(f"{tmp_path}/part-*.npy", np.load)
    np.save(tmp_path / "part-10.npy", np.arange(10.0, 13.0))
    assert files.refresh() == 3
    assert [float(scene) for scene in files] == [0, 1, 10, 11, 12]
    (tmp_path / "part-2.npy").unlink()
    assert files.refresh() == -2


def test_refresh_during_an_epoch_raises_in_its_loop(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(50.0))
    files = kf.FileSequence([str(tmp_path / "one.npy")], np.load)
    with kf.Feed(files, 2, workers=2) as feed:
        batches = iter(feed)
        next(batches)
        files.refresh()
        with pytest.raises(RuntimeError, match=r"FileSequence was refreshed during an epoch.*between two epochs"):
            list(batches)
        assert len(list(feed)) == 25


@pytest.mark.parametrize("workers", [0, 2])
def test_refresh_keeps_recorded_failures_and_counts_new_ones_from_zero(tmp_path, workers):
    path = str(tmp_path / "one.npy")

    def load(path):
        return [None if number < 0 else number for number in np.load(path).tolist()]

    np.save(path, np.arange(20.0) * ([1] * 7 + [-1] + [1] * 12))
    files = kf.FileSequence([path], load)
    with kf.Feed(files, 4, on_error="skip", max_failures=1, workers=workers, worker_type="thread") as feed:
        assert sum(map(len, feed)) == 19
        np.save(path, np.arange(30.0) * ([1] * 3 + [-1] + [1] * 26))
        files.refresh()
        assert sum(map(len, feed)) == 29
        assert [(row.index, row.epoch) for row in feed.failures] == [(3, 1), (7, 0)]
        assert feed.stats().failed == 2


def test_refresh_includes_appended_records(tmp_path):
    def write(name, start, stop):
        scenes = kf.Zip(x=np.arange(float(start), float(stop)))
        return kf.write_tfrecords(scenes, str(tmp_path / name), num_shards=1, workers=0, progress=False)[0]

    path = write("a.tfrecord", 0, 4)
    more = write("more", 4, 9)
    records = kf.TFRecordSequence(str(tmp_path / "*.tfrecord"))
    with kf.Feed(records, 3, workers=2) as feed:
        assert len(list(feed)) == 2
        with Path(path).open("ab") as file:
            file.write(Path(more).read_bytes())
        write("b.tfrecord", 9, 11)
        assert records.refresh() == 7
        assert [x for batch in feed for x in batch["x"].tolist()] == list(range(11))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_error_for_a_view_of_refreshed_files_says_to_create_it_again(tmp_path, workers):
    np.save(tmp_path / "a.npy", np.arange(4))
    np.save(tmp_path / "b.npy", np.arange(4, 7))
    files = kf.FileSequence([tmp_path / "a.npy"], np.load)
    with kf.Feed(kf.Map(kf.Concat(files), abs), 2, workers=workers, worker_type="thread") as feed:
        assert len(list(feed)) == 2
        files.refresh([tmp_path / "b.npy", tmp_path / "a.npy"])
        with pytest.raises(RuntimeError, match=r"inside the Map was refreshed, .* Make the view and the feed again"):
            list(feed)
        with pytest.raises(RuntimeError, match="was refreshed"):
            feed[0]


def test_a_feed_ignores_a_user_s_attribute_named_generation():
    class Evolved(kf.SceneSequence):
        generation = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index + self.generation

    scenes = Evolved()
    with kf.Feed(scenes, 2, workers=0) as feed:
        for batch in feed:  # noqa: B007 - the last one is looked at
            scenes.generation += 1
        assert batch.tolist() == [3, 4]


@pytest.mark.parametrize("loop", ["dataset", "torch"])
def test_loaded_batches_are_not_delivered_after_a_refresh(tmp_path, loop):
    library = pytest.importorskip("tensorflow" if loop == "dataset" else "torch")
    np.save(tmp_path / "a.npy", np.arange(20.0))
    files = kf.FileSequence([tmp_path / "a.npy"], np.load)
    with kf.Feed(files, 2, workers=1, worker_type="thread") as feed:
        batches = iter(feed.to_tf_dataset() if loop == "dataset" else feed.to_torch(prefetch=1))
        next(batches)
        files.refresh()
        refused = library.errors.UnknownError if loop == "dataset" else RuntimeError
        with pytest.raises(refused, match="was refreshed during an epoch"):
            list(batches)


def test_a_tf_dataset_from_before_a_refresh_is_refused(tmp_path):
    tf = pytest.importorskip("tensorflow")
    np.save(tmp_path / "a.npy", np.arange(6.0))
    files = kf.FileSequence([tmp_path / "a.npy"], np.load)
    with kf.Feed(files, 2, workers=0) as feed:
        before = feed.to_tf_dataset()
        assert len(list(before)) == 3
        np.save(tmp_path / "a.npy", np.arange(10.0))
        files.refresh()
        after = feed.to_tf_dataset()
        assert len(list(after)) == int(after.cardinality()) == 5
        with pytest.raises(tf.errors.UnknownError, match="make datasets of the feed again"):
            list(before)


def test_set_state_works_after_the_same_refresh(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6.0))
    files = kf.FileSequence([tmp_path / "a.npy"], np.load)
    with kf.Feed(files, 2, seed=0, workers=0) as feed:
        np.save(tmp_path / "a.npy", np.arange(10.0))
        files.refresh()
        with kf.Feed(files, 2, seed=0, workers=0) as other:
            next(iter(other))
            feed.set_state(other.get_state())
        assert [batch.tolist() for batch in feed] == [[2, 3], [4, 5], [6, 7], [8, 9]]


def test_another_count_function_recounts_files_and_paths_can_be_an_iterator(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6.0))
    files = kf.FileSequence([tmp_path / "a.npy"], np.load, lambda path: 6)
    assert files.refresh(count=lambda path: 5) == -1
    scenes = kf.Zip(x=np.arange(4.0))
    paths = kf.write_tfrecords(scenes, str(tmp_path / "r"), num_shards=1, workers=0, progress=False)
    assert kf.TFRecordSequence(iter(paths)).refresh() == 0
