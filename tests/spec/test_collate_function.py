"""Batches of a user's function: the same from every loader, and the treatment of failures."""

import os
import threading

import numpy as np
import pytest
from scenes_sized import KINDS, Broken, Lengths, bits

import kerasfeed as kf
from kerasfeed.errors import KerasfeedError, SpecError
from kerasfeed.spec.inference import difference_text

LENGTHS = [(7 * index) % 13 for index in range(37)]


def graph(scenes):
    """All points of a batch, which scene each is of, labels, text, and a number."""
    return {
        "points": np.concatenate([points for points, _ in scenes]),
        "scene": np.repeat(np.arange(len(scenes)), [len(points) for points, _ in scenes]),
        "labels": (np.array([label for _, label in scenes]), f"é{scenes[0][1]}"),
        "count": len(scenes),
        "names": np.array([f"scene {label}" for _, label in scenes]),
    }


def labels_of(scenes):
    return np.array([label for _, label in scenes])


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_every_loader_delivers_the_result_of_the_function(feed_on, kind):
    sequence = Lengths(LENGTHS)
    feed = feed_on(kind, sequence, collate=graph)
    for epoch in (0, 3):
        expected = []
        for step in range(len(feed)):
            made = graph([sequence[index] for index in feed.plan.indices(epoch, step)])
            made["names"] = made["names"].astype(object)
            expected.append(made)
        assert bits(feed.epoch(epoch)) == bits(expected)
        assert bits(kf.load(feed, epoch=epoch, step=step) for step in range(len(feed))) == bits(expected)
    assert feed[4]["count"] == 5


def test_the_spec_marks_axes_that_depend_on_the_scenes_or_their_number(feed_on):
    spec = feed_on("inline", Lengths(LENGTHS), collate=graph).element_spec
    assert spec["points"] == kf.ArraySpec((None, 3), np.dtype("float32"))
    assert spec["labels"][0].shape == (None,)
    whole = feed_on("inline", Lengths(LENGTHS), collate=graph, drop_remainder=True).element_spec
    assert whole["labels"][0].shape == (8,)
    assert whole["points"].shape == (None, 3)


@pytest.mark.heavy
def test_the_function_can_be_a_closure_and_return_a_ragged_array(feed_on):
    offset = np.arange(3, dtype=np.float32)

    def ragged(scenes):
        splits = np.cumsum([0, *(len(points) for points, _ in scenes)])
        return kf.RaggedArray(np.concatenate([points + offset for points, _ in scenes]), splits)

    found = list(feed_on("process", Lengths(LENGTHS), collate=ragged, shuffle=False))
    assert isinstance(found[0], kf.RaggedArray)
    assert found[0].row_splits.tolist() == np.cumsum([0, *LENGTHS[:8]]).tolist()
    labels = list(feed_on("process", Lengths(LENGTHS), collate=lambda scenes: labels_of(scenes) + 1, shuffle=False))
    assert labels[4].tolist() == [33, 34, 35, 36, 37]


@pytest.mark.heavy
def test_a_batch_larger_than_its_slot_is_correct(feed_on):
    lengths = [3] * 37
    lengths[5] = 4000  # scenes 0, 9, 18, 27 and 36 are read first
    for kind in KINDS:
        feed = feed_on(kind, Lengths(lengths), collate=lambda scenes: np.concatenate([p for p, _ in scenes]))
        sizes = [len(batch) for batch in feed.epoch(0)]
        assert sum(sizes) == sum(lengths)


class Named(Lengths):
    def __getitem__(self, index):
        return {"points": super().__getitem__(index)[0], "name": f"scene {index}"}


def without_names(scenes):
    for scene in scenes:
        scene.pop("name")
    return np.concatenate([scenes.pop(0)["points"] for _ in range(len(scenes))])


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_the_function_can_drop_fields_of_its_scenes(feed_on, kind):
    feed = feed_on(kind, Named(LENGTHS), collate=without_names)
    assert feed[0].shape == (sum(LENGTHS[index] for index in feed.plan.indices(0, 0)), 3)


@pytest.mark.parametrize("kind", KINDS)
def test_after_replacing_a_failed_scene_the_function_runs_again(feed_on, kind):
    sequence = Broken(LENGTHS, (3, 7, 20))
    feed = feed_on(kind, sequence, collate=labels_of, on_error="replace")
    reference = feed_on("inline", Lengths(LENGTHS), collate=labels_of)
    rows = feed_on("inline", sequence, collate="ragged", on_error="replace")
    for found, whole, stacked in zip(feed.epoch(1), reference.epoch(1), rows.epoch(1), strict=True):
        assert found.tolist() == stacked[1].tolist()
        differ = whole != found
        assert set(whole[differ].tolist()) <= {3, 7, 20}
        assert not {3, 7, 20} & set(found.tolist())


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_failed_scenes_and_batches_without_scenes_are_skipped(feed_on, kind):
    bad = (3, 4, 5, 20)
    feed = feed_on(kind, Broken(LENGTHS, bad), 3, collate=labels_of, on_error="skip", shuffle=False, max_failures=9)
    found = [batch.tolist() for batch in feed]
    assert [3, 4, 5] not in found
    assert np.concatenate(found).tolist() == [index for index in range(37) if index not in bad]
    assert len(found) == 12
    assert [18, 19] in found


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_function_is_raised_by_its_batch(feed_on, kind):
    def picky(scenes):
        if any(label == 7 for _, label in scenes):
            raise ZeroDivisionError("no 7, please")
        return labels_of(scenes)

    for on_error in ("raise", "replace"):
        feed = feed_on(kind, Lengths(LENGTHS), collate=picky, shuffle=False, on_error=on_error)
        with pytest.raises(ZeroDivisionError, match="no 7, please") as caught:
            feed.submit(2, 0).result(timeout=30)
        assert "scenes 0, 1, 2, 3, 4, 5, 6, 7 (collate), epoch 2, step 0" in "\n".join(caught.value.__notes__)
        assert feed.submit(2, 1).result(timeout=30).tolist() == list(range(8, 16))


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_a_function_for_differing_scenes_names_scenes_and_field(feed_on, kind):
    feed = feed_on(
        kind, Lengths([4, 4, 5, 4]), 4, collate=lambda scenes: np.stack([p for p, _ in scenes]), shuffle=False
    )
    with pytest.raises(ValueError, match="same shape") as caught:
        feed.submit(0, 0).result(timeout=30)
    notes = "\n".join(caught.value.__notes__)
    assert "field '0' has shape (4, 3) in scene 0 and (5, 3) in scene 2" in notes
    assert "scenes 0, 1, 2, 3 (collate), epoch 0, step 0" in notes


def test_differences_are_not_reported_for_unsupported_or_equal_scenes():
    assert difference_text([(3, {"a": 1, "b": object()}), (5, {"a": 1})]) == ""
    assert difference_text([(3, {"a": 1}), (5, {"a": 2})]) == ""
    assert "scenes 3 and 5 have different structures" in difference_text([(3, {"a": 1}), (5, {"b": 1})])
    assert "in scene 3 and bool" in difference_text([(3, np.zeros(2)), (5, np.zeros(2, bool))])


@pytest.mark.parametrize("kind", KINDS)
def test_the_exception_of_a_scene_is_raised_unchanged(feed_on, kind):
    feed = feed_on(kind, Broken(LENGTHS, (7,)), collate=labels_of, shuffle=False)
    with pytest.raises(ValueError, match="scene 7 is broken") as caught:
        feed.submit(0, 0).result(timeout=30)
    assert "scene 7, epoch 0, step 0" in "\n".join(caught.value.__notes__)


def test_the_error_for_a_batch_unlike_the_spec_describes_the_batch(feed_on):
    def fickle(scenes):
        labels = labels_of(scenes)
        return labels.astype(np.float32) if len(set(labels.tolist())) > 1 else labels

    feed = feed_on("inline", Lengths(LENGTHS), collate=fickle)
    with pytest.raises(SpecError, match=r"the batch that collate returned: field 'scene': expected int64.*float32"):
        list(feed)
    feed = feed_on("inline", Lengths(LENGTHS), collate=lambda scenes: None)
    with pytest.raises(SpecError, match="the collate function returned None: return the batch"):
        list(feed)


def test_the_error_for_a_scene_of_none_says_how_to_skip_it(feed_on):
    def dropping(scenes):
        return np.array([scene for scene in scenes if scene is not None])

    feed = feed_on("inline", [None, 1, 2, 3], collate=dropping)
    with pytest.raises(SpecError, match=r"__getitem__ returned None, but a collate function .*on_error"):
        list(feed)


def test_a_function_that_cannot_be_pickled_is_refused_for_processes(feed_on):
    lock = threading.Lock()

    def locked(scenes):
        with lock:
            return labels_of(scenes)

    with pytest.raises(TypeError, match="the collate function cannot be sent to worker processes"):
        feed_on("process", Lengths(LENGTHS), collate=locked)
    assert len(list(feed_on("thread", Lengths(LENGTHS), collate=locked))) == 5


def test_the_function_cannot_use_the_generator_of_a_scene(feed_on):
    class Drawn(Lengths):
        def together(self, scenes):
            return labels_of(scenes), np.array([self.rng.random() for _ in scenes])

        def apart(self, scenes):
            return labels_of(scenes), np.array([self.rng_for(label).random() for _, label in scenes])

    sequence = Drawn(LENGTHS)
    for kind in ("inline", "thread"):
        with pytest.raises(KerasfeedError, match=r"a collate function makes a batch of many: use kf.current_rng\(\)"):
            feed_on(kind, sequence, collate=sequence.together)[0]
    drawn = []
    for kind, batch_size in (("inline", 8), ("thread", 5)):
        feed = feed_on(kind, sequence, batch_size, collate=sequence.apart)
        drawn.append({label: number for batch in feed for label, number in zip(*batch, strict=True)})
    assert drawn[0] == drawn[1]


def drawn(scenes):
    return labels_of(scenes), kf.current_rng().random(2), kf.current_rng().random()


def numbers(batches):
    return [tuple(np.append(two, one).tolist()) for _, two, one in batches]


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_the_random_numbers_of_the_function_depend_only_on_seed_epoch_and_step(feed_on, kind):
    feed = feed_on(kind, Broken(LENGTHS, (7,)), collate=drawn, on_error="replace")
    epochs = [numbers(feed.epoch(epoch)) for epoch in (0, 1)]
    for epoch, found in enumerate(epochs):
        expected = [
            np.random.Generator(np.random.PCG64(np.random.SeedSequence(feed.seed, spawn_key=(16, epoch, step))))
            for step in range(len(feed))
        ]
        assert found == [tuple(rng.random(3).tolist()) for rng in expected]
    assert len({*epochs[0], *epochs[1]}) == 2 * len(feed)
    assert numbers([feed.submit(1, 2).result(timeout=30)]) == epochs[1][2:3]
    assert numbers([kf.load(feed, epoch=1, step=3)]) == epochs[1][3:4]


def test_the_function_draws_different_numbers_on_each_shard(feed_on):
    shards = [
        numbers(feed_on("thread", Lengths(LENGTHS), 4, collate=drawn, shard_index=shard, shard_count=2))
        for shard in range(2)
    ]
    assert len({*shards[0], *shards[1]}) == len(shards[0]) + len(shards[1]) == 10


def test_the_function_draws_the_same_numbers_after_a_resume(feed_on):
    feed = feed_on("inline", Lengths(LENGTHS), collate=drawn)
    batches = iter(feed)
    found = [next(batches) for _ in range(2)]
    state = feed.get_state()
    again = feed_on("thread", Lengths(LENGTHS), collate=drawn)
    again.set_state(state)
    assert numbers([*found, *again]) == numbers(feed.epoch(0))


def test_outside_a_feed_the_function_draws_unseeded_numbers():
    scenes = [(None, 0), (None, 1)]
    assert numbers([drawn(scenes)]) != numbers([drawn(scenes)])


class Deadly(Lengths):
    """Lengths one of whose scenes, or batches, ends the worker."""

    def collate(self, scenes):
        if len({label for _, label in scenes} & {7, 8}) == 2:
            os._exit(3)
        return labels_of(scenes)

    def __getitem__(self, index):
        if index == 20:
            os._exit(4)
        return super().__getitem__(index)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::kerasfeed.FeedWarning")
def test_a_deadly_scene_is_replaced_and_a_deadly_function_fails_its_batch(feed_on):
    sequence = Deadly(LENGTHS)
    feed = feed_on("process", sequence, 8, collate=labels_of, on_error="replace", shuffle=False)
    assert 20 not in np.concatenate(list(feed)).tolist()
    assert 20 not in np.concatenate(list(feed.epoch(1))).tolist()  # already known to fail
    feed = feed_on("process", sequence, 9, collate=sequence.collate, shuffle=False)
    message = r"exit code 3 while the collate function made the batch of epoch 0, step 0.*kf.load"
    with pytest.raises(kf.errors.WorkerDiedError, match=message):
        feed.submit(0, 0).result(timeout=60)
    assert feed.submit(0, 1).result(timeout=60).tolist() == list(range(9, 18))


def test_the_error_for_a_function_that_drops_scenes_says_how_to_skip_them(feed_on):
    def dropping(scenes):
        return np.array([scene for scene in scenes if scene is not None])

    feed = feed_on("inline", [1, 2, 3, None, 5, 6, 7, 8], collate=dropping)
    with pytest.raises(SpecError, match=r"that collate returned: .*gets all scenes of a batch, .*on_error"):
        list(feed)
