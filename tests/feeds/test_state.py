"""`Feed.get_state` and `set_state` in plain loops: a feed continues after another one, bit for bit."""

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
import scenes
from scenes_frameworks import environment_of
from waits import PROGRAM_SECONDS

import kerasfeed as kf

LENGTH, BATCH = 37, 8  # 5 steps


class Counted(scenes.Augmented):
    """Scenes with noise, which count their reads."""

    def __init__(self, length=LENGTH):
        super().__init__(length)
        self.asked = []

    def __getitem__(self, index):
        self.asked.append(index)
        return super().__getitem__(index)


def make_feed(sequence=None, batch_size=BATCH, **arguments):
    arguments = {"shuffle": True, "seed": 3, "workers": 2, "worker_type": "thread", **arguments}
    return kf.Feed(scenes.Augmented() if sequence is None else sequence, batch_size, **arguments)


def taken(batches):
    return [(points.tobytes(), labels.tobytes()) for points, labels in batches]


def stream(epochs, **arguments):
    with make_feed(**arguments) as feed:
        return [batch for epoch in range(epochs) for batch in taken(feed.epoch(epoch))]


def through_json(state):
    text = json.dumps(state)
    assert len(text) < 1000
    return json.loads(text)


def state_after(number, **arguments):
    """The state within a loop that has received `number` batches, from 1."""
    with make_feed(**arguments) as feed:
        count = 0
        while True:
            for _ in feed:
                count += 1
                if count == number:
                    return through_json(feed.get_state())


@pytest.mark.parametrize("number", [1, 3, 5, 6, 9, 10])
def test_a_resumed_loop_continues_after_the_last_batch_received(number):
    state = state_after(number)
    assert (state["epoch"], state["step"]) == divmod(number, 5)
    with make_feed() as feed:
        feed.set_state(state)
        rest = taken(feed)
        assert len(rest) == 5 - number % 5
        assert rest + taken(feed) == stream(4)[number:][: len(rest) + 5]


def test_get_state_returns_the_position_of_new_feeds_and_between_epochs():
    with make_feed() as feed:
        assert feed.get_state()["epoch"] == feed.get_state()["step"] == 0
        assert len(list(feed)) == 5
        assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (1, 0)
        feed.set_state(feed.get_state(epoch=7, step=2))
        assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (7, 2)
        assert taken([feed[4]]) == stream(8)[39:40]


def test_the_state_of_a_loop_left_early_is_after_its_last_batch():
    with make_feed() as feed:
        for step, _ in enumerate(feed):
            if step == 2:
                break
        assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (0, 3)


CHANGES = {
    "no workers": {"workers": 0},
    "processes": {"worker_type": "process"},
    "more workers": {"workers": 5, "max_queue_size": 2},
    "what becomes of failed scenes": {"on_error": "replace"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_is_valid_for_any_workers(name):
    with make_feed(**CHANGES[name]) as feed:
        feed.set_state(state_after(3))
        assert taken(feed) == stream(1)[3:]
        state = feed.get_state()
    with make_feed() as feed:
        feed.set_state(state)
        assert taken(feed) == stream(2)[5:]


@pytest.mark.parametrize("shards", [2, 4])
def test_a_state_is_valid_for_other_shards_of_the_same_global_batch(shards):
    state = state_after(7)
    parts = []
    for shard in range(shards):
        with make_feed(batch_size=BATCH // shards, shard_index=shard, shard_count=shards) as feed:
            feed.set_state(state)
            parts.append([labels for _, labels in feed])
    expected = [np.frombuffer(labels, np.int64) for _, labels in stream(2)[7:10]]
    assert [np.concatenate(step).tolist() for step in zip(*parts, strict=True)] == [step.tolist() for step in expected]


def test_resuming_reads_no_earlier_scene_at_any_position():
    asked = []
    for epoch in (0, 1_000_000):
        sequence = Counted(100_000)
        with make_feed(sequence, 10, workers=0) as feed:
            probed = len(feed.element_spec) and len(sequence.asked)
            feed.set_state(feed.get_state(epoch=epoch, step=9_998))
            assert len(list(feed)) == 2
            asked.append(len(sequence.asked) - probed)
    assert asked == [20, 20]


def test_get_state_after_ctrl_c_starts_no_workers():
    class Interrupted(scenes.Augmented):
        begun, interrupts = 0, False

        def on_worker_begin(self, worker):
            self.begun += 1

        def __getitem__(self, index):
            if self.interrupts:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    sequence = Interrupted()
    with make_feed(sequence, workers=0) as feed:
        batches = iter(feed)
        next(batches)
        sequence.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        feed.set_state(feed.get_state(epoch=0, step=1))
        assert sequence.begun == 1
        sequence.interrupts = False
        assert taken(feed) == stream(1)[1:]


@pytest.mark.heavy
def test_a_state_describes_text_fields_without_a_framework():
    code = """
    import sys
    sys.modules["tensorflow"] = sys.modules["torch"] = None
    import os; os.environ["KERAS_BACKEND"] = "jax"
    import scenes, kerasfeed as kf
    with kf.Feed(scenes.Nested(), 1, seed=1, workers=0) as feed:
        print(feed.get_state()["fingerprint"]["spec"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment_of(),
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "'name': 'str[]'" in done.stdout
    assert "'words': 'str[2]'" in done.stdout


class Other(scenes.Augmented):
    """Another class of the same scenes."""


class Wider(kf.SceneSequence):
    """Scenes of another spec."""

    __qualname__ = "Augmented"

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return np.zeros((4, 6), np.float64), index


def halves(*parts):
    return kf.Concat(scenes.Augmented(20), kf.Map(scenes.Augmented(17), *parts))


def plus_one(scene):
    return scene[0] + 1, scene[1]


def plus_two(scene):
    return scene[0] + 2, scene[1]


VIEWS = {
    "class inside": (scenes.Augmented(60)[:37], Other(60)[:37], "class was Subset 0:37 of Augmented, is .* of Other"),
    "slice": (scenes.Augmented(60)[:37], scenes.Augmented(60)[5:42], "Subset 0:37 of Augmented, is Subset 5:42 of"),
    "split": (
        kf.split(scenes.Augmented(74), [0.5, 0.5], seed=1)[0],
        kf.split(scenes.Augmented(74), [0.5, 0.5], seed=2)[0],
        "class was Subset [0-9a-f]{24} of Augmented, is Subset [0-9a-f]{24} of Augmented",
    ),
    "lengths": (
        kf.Concat(scenes.Augmented(20), scenes.Augmented(17)),
        kf.Concat(scenes.Augmented(17), scenes.Augmented(20)),
        "class was Concat of 20 Augmented and 17 Augmented, is Concat of 17 Augmented and 20 Augmented",
    ),
    "function": (halves(plus_one), halves(plus_two), "and 17 .Map plus_one of Augmented., is Concat .*Map plus_two"),
    "weights": (
        kf.Mixture([scenes.Augmented(9), Other(9)], [1, 2], num_scenes=37),
        kf.Mixture([scenes.Augmented(9), Other(9)], [1, 3], num_scenes=37),
        "Mixture 1/3, 2/3 .seed 0. of 9 Augmented and 9 Other, is Mixture 1/4, 3/4",
    ),
    "stride": (
        kf.Patches(np.zeros((9, 115)), (9, 7), stride=3),
        kf.Patches(np.zeros((9, 151)), (9, 7), stride=4),
        "Patches 9 every 3 to 0 of 9 x 7 every 3 to 108 of 115, is Patches 9 .* x 7 every 4 to 144 of 151",
    ),
    "border": (
        kf.Patches(np.zeros(114), (7,), stride=3, border="pad"),
        kf.Patches(np.zeros(114), (7,), stride=3, border="shift"),
        r"class was Patches 7 every 3 to 108 of 114, fill \w+, is Patches 7 every 3 to 107 of 114",
    ),
    "sampling": (
        kf.Concat([kf.Windows(np.zeros(39), 3)]),
        kf.Concat([kf.Windows(np.zeros(41), 3, sampling_rate=2)]),
        "of Windows 3 every 1 to 36 of 39, is Concat of Windows 3 .each 2. every 1 to 36 of 41",
    ),
    "target": (
        kf.Windows(np.zeros(40), 3, offset=3),
        kf.Windows(np.zeros(41), 3, offset=4),
        "to 36 of 40, target 3, is Windows 3 every 1 to 36 of 41, target 4",
    ),
    "one of many": (
        kf.Concat([scenes.Augmented(1)] * 37),
        kf.Concat([scenes.Augmented(1)] * 36 + [Other(1)]),
        "Concat of 1 Augmented, 1 Augmented, 1 Augmented and 34 more .[0-9a-f]{24}., is",
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_state_identifies_the_content_of_a_view(name):
    one, other, message = VIEWS[name]
    with make_feed(one) as feed, make_feed(one) as same, make_feed(other) as changed:
        state = through_json(feed.get_state(epoch=1, step=2))
        same.set_state(state)
        with pytest.raises(ValueError, match=message):
            changed.set_state(state)


@pytest.mark.parametrize("kind", [kf.FileSequence, kf.TFRecordSequence])
def test_a_state_identifies_files_by_names_and_order_wherever_their_folder_is(tmp_path, kind):
    for folder in (tmp_path / "here", tmp_path / "there"):
        for number in range(3):
            path = folder / f"{number}" / "scenes.npy"
            path.parent.mkdir(parents=True)
            np.save(path, np.arange(4.0))
            kf.write_tfrecords(np.arange(4.0), path.with_suffix(".tfrecord"), num_shards=1)

    def files(folder, *order):
        suffix = "npy" if kind is kf.FileSequence else "tfrecord"
        paths = [tmp_path / folder / f"{number}" / f"scenes.{suffix}" for number in order]
        return kf.FileSequence(paths, np.load) if kind is kf.FileSequence else kf.TFRecordSequence(paths)

    with make_feed(files("here", 0, 1, 2), 4) as feed:
        state = through_json(feed.get_state(epoch=1, step=2))
    with make_feed(files("there", 0, 1, 2), 4) as moved, make_feed(files("here", 0, 2, 1), 4) as other:
        moved.set_state(state)
        with pytest.raises(ValueError, match=r"class was \w+ of 3 files .*, is \w+ of 3 files"):
            other.set_state(state)


@pytest.mark.parametrize("other", [["val-0", "val-1"], ["val-0"]])
def test_a_state_identifies_names_of_files_that_begin_alike(tmp_path, other):
    for name in ("train-0", "train-1", "val-0", "val-1"):
        np.save(tmp_path / f"{name}.npy", np.arange(4.0))

    def feed_of(names):
        return make_feed(kf.FileSequence([tmp_path / f"{name}.npy" for name in names], np.load), 4)

    with feed_of([name.replace("val", "train") for name in other]) as feed:
        state = feed.get_state(epoch=0, step=1)
    with feed_of(other) as changed, pytest.raises(ValueError, match="class was FileSequence of"):
        changed.set_state(state)


def test_a_state_is_valid_after_the_sequence_is_cached():
    with (
        make_feed(scenes.Clouds(LENGTH), workers=0) as feed,
        make_feed(kf.Cached(scenes.Clouds(LENGTH)), workers=0) as cached,
    ):
        cached.set_state(feed.get_state())


def test_a_state_is_valid_for_other_shards_of_the_same_buckets():
    def bucketed(shard, shards, *sizes):
        order = kf.Bucketed(np.arange(LENGTH), [10, 20], sizes)
        return make_feed(batch_size=1, order=order, shuffle=False, workers=0, shard_index=shard, shard_count=shards)

    with bucketed(0, 1, 6, 4, 6) as whole:
        state = through_json(whole.get_state(epoch=1, step=3))
        whole.set_state(state)
        expected = [sorted(labels.tolist()) for _, labels in whole]
        changed = pytest.raises(ValueError, match=r"global_batch_size was \[6, 4, 6\], is \[6, 4, 8\]")
        with bucketed(0, 1, 6, 4, 8) as other, changed:
            other.set_state(state)
    parts = []
    for shard in range(2):
        with bucketed(shard, 2, 3, 2, 3) as feed:
            feed.set_state(state)
            parts.append([labels for _, labels in feed])
    assert [sorted(np.concatenate(step).tolist()) for step in zip(*parts, strict=True)] == expected


REFUSED = {
    "length": ({"sequence": scenes.Augmented(38)}, r"length was 37, is 38"),
    "class": ({"sequence": Other()}, r"class was Augmented, is Other"),
    "spec": ({"sequence": Wider()}, r"field '0' was float32\[4, 3\], is float64\[4, 6\]"),
    "order": ({"shuffle": False}, r"order was Shuffled.*, is Sequential"),
    "seed": ({"seed": 4}, r"seed was 3, is 4"),
    "global batch": ({"batch_size": 6}, r"global_batch_size was 8, is 6; steps was 5, is 7"),
    "remainder": ({"drop_remainder": True}, r"steps was 5, is 4"),
    "several": ({"seed": 4, "sequence": Other()}, r"seed was 3, is 4; class was Augmented, is Other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_error_for_a_state_of_other_batches_names_the_change(name):
    arguments, message = REFUSED[name]
    state = state_after(3)
    with make_feed(**arguments) as feed:
        with pytest.raises(
            ValueError, match=f"the state belongs to a feed with other batches.*{message}.*Make the feed as it was"
        ):
            feed.set_state(state)
        assert feed.get_state()["epoch"] == feed.get_state()["step"] == 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda state: "state", TypeError, "the dict that get_state.. returns, received a str"),
        (lambda state: {}, ValueError, "has version 1, received None"),
        (lambda state: {**state, "version": 2}, ValueError, "has version 1, received 2"),
        (lambda state: {**state, "step": 6}, ValueError, "step must be at most 5, the steps of an epoch, received 6"),
        (lambda state: {**state, "epoch": -1}, ValueError, "epoch of the state must be at least 0"),
        (lambda state: {**state, "seed": "3"}, TypeError, "seed of the state must be an integer"),
        (lambda state: {**state, "fingerprint": 3}, ValueError, "needs fingerprint, received"),
        (lambda state: {k: v for k, v in state.items() if k != "step"}, ValueError, "needs step, received"),
    ],
)
def test_an_invalid_state_is_refused(change, error, message):
    with make_feed() as feed:
        state = feed.get_state()
        with pytest.raises(error, match=message):
            feed.set_state(change(state))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epoch": 1}, TypeError, "takes epoch and step together, received epoch=1, step=None"),
        ({"epoch": -1, "step": 0}, ValueError, "epoch must be at least 0, received -1"),
        ({"epoch": 0, "step": 6}, ValueError, "step must be at most 5"),
        ({"epoch": 0, "step": 1.5}, TypeError, "step must be an integer"),
    ],
)
def test_an_invalid_position_is_refused(arguments, error, message):
    with make_feed() as feed, pytest.raises(error, match=message):
        feed.get_state(**arguments)


def test_the_end_of_an_epoch_is_the_beginning_of_the_next():
    with make_feed() as feed:
        assert feed.get_state(epoch=1, step=5) == feed.get_state(epoch=2, step=0)


def test_set_state_warns_about_a_sequence_with_epoch_hooks():
    with kf.Feed(scenes.Reshuffled(), None, seed=1, workers=0) as feed:
        feed.set_state(feed.get_state())
        with pytest.warns(
            kf.FeedWarning, match="Reshuffled has on_epoch_begin or on_epoch_end. The feed's state does not"
        ):
            feed.set_state(feed.get_state(epoch=2, step=1))
        with pytest.warns(kf.FeedWarning, match="on_epoch_begin or on_epoch_end") as caught:
            feed.load_state_dict(feed.get_state(epoch=2, step=1))
        assert caught[0].filename == __file__


@pytest.mark.parametrize("kind", ["feed", "stream"])
def test_state_dict_and_load_state_dict_work_with_a_pytorch_checkpoint(kind, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def make():
        order = kf.Bucketed(np.arange(10), [5], [2, 3])
        return kf.Feed(np.arange(10), 1, order=order, seed=1, workers=0) if kind == "feed" else streamed()

    with make() as feed:
        batches = iter(feed)
        next(batches)
        state = feed.state_dict()
        assert state == feed.get_state()
        torch.save({"feed": state}, tmp_path / "checkpoint.pt")
        rest = [batch.tolist() for batch in batches]
    with make() as feed:
        feed.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["feed"])
        assert feed.state_dict() == state
        assert [batch.tolist() for batch in feed] == rest


def streamed():
    def numbers(*, start):
        yield from range(start, 10)

    return kf.StreamFeed(numbers, 2, seed=1, workers=0)


def test_a_batch_that_was_skipped_counts_as_consumed():
    with make_feed(
        scenes.Failing(3, ValueError("bad"), 5), 1, shuffle=False, on_error="skip", max_failures=5, workers=1
    ) as feed:
        steps = [feed.get_state()["step"] for _ in feed]
        assert steps == [1, 2, 3, 0]
        assert feed.get_state()["epoch"] == 1


def test_only_the_clock_of_a_feed_writes_its_state():
    for path in Path(kf.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                assert not ast.unparse(node.value).endswith("clock"), f"{path}:{node.lineno}"


def test_get_state_raises_in_a_loop_over_a_numbered_epoch():
    with kf.Feed(np.arange(6), 2, workers=0) as feed:
        for step, _ in enumerate(feed.epoch(3)):
            with pytest.raises(RuntimeError, match=r"a loop over feed.epoch\(n\) does not change the position"):
                feed.get_state()
            state = feed.get_state(epoch=3, step=step + 1)
        assert (state["epoch"], state["step"]) == (4, 0)
        for number, _ in enumerate(feed):
            batches = feed.epoch(5)
            assert (feed.get_state()["epoch"], feed.get_state()["step"]) == divmod(number + 1, 3)
            next(batches)
            with pytest.raises(RuntimeError, match="does not change the position of the feed"):
                feed.get_state()
        batches.close()
        assert feed.get_state()["epoch"] == 1


@pytest.mark.parametrize("view", [kf.Concat, kf.Zip, lambda *parts: kf.Mixture(parts, [1, 1])])
@pytest.mark.parametrize(
    "make", [lambda data: data, lambda data: kf.Patches(data, (1,)), lambda data: kf.Subset(data, [1, 2])]
)
def test_a_state_refuses_a_view_of_the_same_files_in_another_order(tmp_path, view, make):
    for name in ("old/a.h5", "old/b.h5", "moved/a.h5", "moved/b.h5"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = np.arange(4.0)

    def feed(folder, names):
        parts = [make(kf.HDF5File(tmp_path / folder / f"{name}.h5")["x"]) for name in names]
        return kf.Feed(view(*parts), 2, shuffle=True, seed=0, workers=0)

    state = feed("old", "ab").get_state()
    feed("moved", "ab").set_state(state)
    with pytest.raises(ValueError, match="the state belongs to a feed with other batches: class was"):
        feed("old", "ba").set_state(state)


def test_a_state_refuses_patches_with_another_fill():
    def feed(fill):
        return kf.Feed(kf.Patches(np.arange(5.0), (2,), border="pad", fill=fill), 2, shuffle=True, seed=0, workers=0)

    state = feed(0).get_state()
    feed(0).set_state(state)
    with pytest.raises(ValueError, match=r"class was Patches .*, fill "):
        feed(-1).set_state(state)
