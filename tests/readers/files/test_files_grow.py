"""Files that others add to: taken in between two epochs, with an honest length."""

from pathlib import Path

import numpy as np
import pytest

import kerasfeed as kf


def values(feed):
    return sorted(np.concatenate(list(feed)).tolist())


@pytest.mark.parametrize(("workers", "worker_type"), [(0, "thread"), (2, "thread"), (2, "process")])
def test_the_next_epoch_has_the_scenes_of_files_that_have_come_or_grown(tmp_path, workers, worker_type):
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


def test_files_that_have_not_changed_are_not_counted_again_and_what_fails_changes_nothing(tmp_path):
    one, two = str(tmp_path / "one.npy"), str(tmp_path / "two.npy")
    np.save(one, np.arange(5.0))
    counted = []

    def count(path):
        counted.append(path)
        return len(np.load(path))

    files = kf.FileSequence([one], np.load, count)
    np.save(two, np.arange(3.0))
    assert files.refresh([one, two]) == 3
    assert counted == [one, two]
    with pytest.raises(FileNotFoundError):
        files.refresh([one, "absent.npy"])
    assert len(files) == 8
    assert files.refresh() == 0


def test_a_refresh_in_the_midst_of_an_epoch_is_an_error_in_it(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(50.0))
    files = kf.FileSequence([str(tmp_path / "one.npy")], np.load)
    with kf.Feed(files, 2, workers=2) as feed:
        batches = iter(feed)
        next(batches)
        files.refresh()
        with pytest.raises(
            RuntimeError, match=r"FileSequence was refreshed in the midst of an epoch.*between two epochs"
        ):
            list(batches)
        assert len(list(feed)) == 25


def test_records_that_others_append_are_taken_in(tmp_path):
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
def test_a_feed_over_a_view_of_files_that_were_refreshed_says_to_make_it_anew(tmp_path, workers):
    np.save(tmp_path / "a.npy", np.arange(4))
    np.save(tmp_path / "b.npy", np.arange(4, 7))
    files = kf.FileSequence([tmp_path / "a.npy"], np.load)
    with kf.Feed(kf.Map(kf.Concat(files), abs), 2, workers=workers, worker_type="thread") as feed:
        assert len(list(feed)) == 2
        files.refresh([tmp_path / "b.npy", tmp_path / "a.npy"])
        with pytest.raises(RuntimeError, match=r"inside the Map was refreshed, .* make the view anew, and the feed"):
            list(feed)
        with pytest.raises(RuntimeError, match="was refreshed"):
            feed[0]


def test_an_attribute_generation_of_ones_own_means_nothing_to_a_feed():
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
