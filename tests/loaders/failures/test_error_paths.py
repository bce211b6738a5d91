"""An exception of a scene, in loops, in `feed[step]` and in `kf.load`, for every kind of exception and of worker."""

import pytest
from error_kinds import BAD, KINDS, Raising, assert_arrived, whole_text

import kerasfeed as kf
from kerasfeed.loaders.failures.exceptions import SceneLocation, for_consumer
from kerasfeed.util.error_text import note_causes, text_of


def _caught(action):
    with pytest.raises(BaseException) as caught:
        action()
    return caught.value


def test_a_loop_raises_the_exception_of_a_scene(case):
    feed, *kind = case
    assert_arrived(_caught(lambda: list(feed.epoch(3))), *kind, epoch=3)


def test_indexing_a_feed_raises_the_exception_of_a_scene(case):
    feed, *kind = case
    assert_arrived(_caught(lambda: feed[2]), *kind)
    assert len(feed[1]) == 2


def test_load_of_a_batch_raises_in_the_calling_thread(case):
    feed, kind, *_ = case
    assert_arrived(_caught(lambda: kf.load(feed, epoch=4, step=2)), kind, 0, "thread", epoch=4)


def test_load_of_a_scene_raises_in_the_calling_thread(case):
    feed, kind, *_ = case
    if kind == "spec":
        assert kf.load(feed, epoch=4, index=BAD)[1].shape == (2,)
        return
    error = _caught(lambda: kf.load(feed, epoch=4, index=BAD))
    assert type(error).__name__ in {KINDS[kind].type.__name__, "HomemadeError", "StopIteration"}
    if not KINDS[kind].steers and kind != "stop":
        note = (
            f"scene {BAD}, epoch 4, in the calling thread\nReproduce it here: kf.load(feed, epoch=4, index={BAD}), or"
        )
        assert note in "\n".join(error.__notes__)


# ---- locations


def test_an_exception_raised_repeatedly_names_only_the_last_location():
    error = ValueError("bad")
    for epoch in range(5):
        assert for_consumer(error, SceneLocation((7,), epoch, 1, "worker thread 0")) is error
    for_consumer(error, SceneLocation((8,), 5, 1, "worker thread 0"))
    assert [note.split(",")[:2] for note in error.__notes__] == [
        ["kerasfeed: scene 7", " epoch 4"],
        ["kerasfeed: scene 8", " epoch 5"],
    ]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            SceneLocation((37,), None, None, "worker thread 1"),
            "kerasfeed: scene 37, while inferring the spec, in worker thread 1\nReproduce it here: sequence[37]",
        ),
        (
            SceneLocation((37,), 0, 3, "worker thread 1"),
            "kerasfeed: scene 37, epoch 0, step 3, in worker thread 1\n"
            "Reproduce it here: kf.load(feed, epoch=0, step=3), or sequence[37]",
        ),
        (
            SceneLocation((3, 1, 2), 5, 4, "worker thread 1"),
            "kerasfeed: scenes 3, 1, 2 (get_batch), epoch 5, step 4, in worker thread 1\n"
            "Reproduce it here: kf.load(feed, epoch=5, step=4)",
        ),
        (
            SceneLocation((37,), None, None, "worker process 1 (pid 4)"),
            "kerasfeed: scene 37, while inferring the spec, in worker process 1 (pid 4)\n"
            "Reproduce it here: sequence[37]\n"
            "If it loads here, your program has set something that the worker process lacks: a flag of a package, a "
            "warnings filter, np.seterr, an open descriptor. Or the class has changed since the feed was made: make "
            "the feed again",
        ),
    ],
)
def test_the_text_of_a_location_says_how_to_reproduce_it(place, text):
    assert str(place) == text


def test_the_text_of_an_exception_contains_its_causes_once():
    def fail():
        try:
            raise KeyError("root")
        except KeyError:
            raise ValueError("outer")  # noqa: B904 - this test is about the context

    error = _caught(fail)
    assert text_of(error).count("KeyError: 'root'") == 1
    note_causes(error)
    note_causes(error)
    assert len(error.__notes__) == 1
    assert text_of(error).count("KeyError: 'root'") == 1
    lonely = ValueError("alone")
    note_causes(lonely)
    assert not hasattr(lonely, "__notes__")


def test_an_exception_from_a_process_has_the_worker_s_traceback():
    with kf.Feed(Raising("chain"), 6, workers=1, worker_type="process") as feed:
        error = _caught(lambda: feed[2])
    assert "Traceback in the worker:" in whole_text(error)
    assert 'raise KeyError("the root")' in whole_text(error)
