"""Sequences that write into the slot themselves: the same bits from every loader, with and without."""

import numpy as np
import optree
import pytest
import scenes
from loader_kinds import InlineLoader, ProcessLoader, ThreadLoader

import kerasfeed as kf
from kerasfeed.errors import SpecError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.pending_batch import SceneTiming
from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan
from kerasfeed.readers import read_cost

LOADERS = {"inline": InlineLoader, "thread": ThreadLoader, "process": ProcessLoader}
KINDS = list(LOADERS)


@pytest.fixture
def make():
    """Make loaders that the test need not close."""
    made = []

    def _make(kind, sequence, batch_size=8, *, workers=2):
        workers = 1 if kind == "process" else workers  # all workers write into a slot alike
        job = Job(sequence, Plan(len(sequence), batch_size, Shuffled(), 3), workers, 1 << 30, 4)
        made.append(LOADERS[kind](job))
        return made[-1]

    yield _make
    for loader in made:
        loader.close()


def _epoch(loader, steps, epoch=0):
    futures = [loader.submit(epoch, step) for step in range(steps)]
    return [future.result(timeout=60) for future in futures]


def _assert_same(one, other):
    leaves, treespec = optree.tree_flatten(one)
    others, other_treespec = optree.tree_flatten(other)
    assert treespec == other_treespec
    for a, b in zip(leaves, others, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


class Mixed(kf.SceneSequence):
    """Fixed fields of every nesting, drawn partly at random."""

    def __len__(self):
        return 37

    def __getitem__(self, index):
        noise = self.rng.normal(size=(2, 3)).astype(np.float32)
        return {
            "x": (noise + index, np.array([index, -index], ">i4")),
            "n": index,
            "list": [np.full(1, index, np.uint8), np.full(2, index / 3)],
            "empty": np.empty((0, 2), np.int16),
        }


class Written(Mixed):
    """The same, written into the slot."""

    def read_into(self, index, out):
        scene = Mixed.__getitem__(self, index)
        out["x"][0][...] = scene["x"][0]
        out["x"][1][...] = scene["x"][1]
        out["n"][...] = scene["n"]
        for target, value in zip(out["list"], scene["list"], strict=True):
            target[...] = value
        assert out["empty"].shape == (0, 2)


class OneArray(kf.SceneSequence):
    """A scene that is one array."""

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return np.arange(6, dtype=np.int16).reshape(2, 3) * index

    def read_into(self, index, out):
        np.multiply(np.arange(6, dtype=np.int16).reshape(2, 3), index, out=out)


class OneArrayPlain(OneArray):
    read_into = None


class Together(scenes.Clouds):
    """Clouds whose `get_batch` writes into the rows it is given."""

    def get_batch(self, indices, out=None):
        points = np.arange(12, dtype=np.float32).reshape(1, 4, 3) + 100 * indices[:, None, None].astype(np.float32)
        if out is None:
            return points, indices
        out[0][...] = points
        out[1][...] = indices
        return None


class PartlyTogether(Together):
    """Writes one field and returns the other, with its given array as the first field."""

    def get_batch(self, indices, out=None):
        points, labels = super().get_batch(indices)
        out[0][...] = points
        return out[0], labels


@pytest.mark.light(
    where=lambda kind, direct, batch_size: (
        kind != "process" or (type(direct) in (Written, PartlyTogether) and batch_size)
    )
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("direct", "plain", "batch_size"),
    [
        (Written(), Mixed(), 8),
        (Written(), Mixed(), None),
        (OneArray(), OneArrayPlain(), 4),
        (Together(), scenes.Clouds(), 8),
        (PartlyTogether(), scenes.Clouds(), 8),
    ],
)
def test_a_slot_written_by_the_sequence_equals_one_filled_from_its_scenes(make, kind, direct, plain, batch_size):
    steps = -(-len(plain) // (batch_size or 1))
    expected = _epoch(make("inline", plain, batch_size), steps)
    for one, other in zip(_epoch(make(kind, direct, batch_size), steps), expected, strict=True):
        _assert_same(one, other)


class Counting(OneArray):
    """Counts the calls of both methods."""

    def __init__(self):
        self.read, self.written = [], []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)

    def read_into(self, index, out):
        self.written.append(index)
        super().read_into(index, out)


def test_getitem_is_called_for_the_spec_and_once_for_comparison(make):
    sequence = Counting()
    loader = make("inline", sequence, 4)
    _ = loader.spec
    probed = len(sequence.read)
    _epoch(loader, 3)
    assert sorted(sequence.written) == list(range(11))
    assert sequence.read[probed:] == [sequence.written[0]]


def test_read_into_writes_directly_into_the_slot(make):
    seen = []

    class Looking(OneArray):
        def read_into(self, index, out):
            seen.append(out.ctypes.data)
            super().read_into(index, out)

    batch = make("inline", Looking(), 4).submit(0, 0).result()
    assert seen == [batch[row].ctypes.data for row in range(4)]


class Worded(OneArray):
    """Text is not stored in a slot, so `read_into` must not be used."""

    def __getitem__(self, index):
        return super().__getitem__(index), f"scene {index}"

    def read_into(self, index, out):
        raise AssertionError("not to be called")


class Growing(Worded):
    def __getitem__(self, index):
        return np.arange(index + 1)


class Other(scenes.Clouds):
    """A `read_into` with another meaning."""

    def read_into(self, index):
        raise AssertionError("not to be called")


@pytest.mark.parametrize("sequence", [Worded(), Other()])
def test_read_into_is_not_called_if_it_does_not_apply(make, sequence):
    assert len(_epoch(make("thread", sequence, 4), 3)) == 3


def test_read_into_is_not_called_if_shapes_vary(make):
    assert [len(batch[0]) for batch in _epoch(make("inline", Growing(), 1), 11)] == [
        index + 1 for index in Plan(11, 1, Shuffled(), 3).order.indices(0, 11, length=11, seed=3, epoch=0)
    ]


def test_get_batch_receives_no_out_argument_if_a_field_is_text(make):
    class Sentences(scenes.Clouds):
        def __getitem__(self, index):
            return f"scene {index}"

        def get_batch(self, indices, out=None):
            assert out is None
            return np.array([f"scene {index}" for index in indices], object)

    batch = make("inline", Sentences(), 4).submit(0, 0).result()
    assert batch[0].startswith("scene ")


class Differing(OneArray):
    """Writes something else than `__getitem__` returns."""

    def read_into(self, index, out):
        out[...] = 7 * index + 1


class DifferingTogether(Together):
    def get_batch(self, indices, out=None):
        out[0][...] = 0
        out[1][...] = indices


@pytest.mark.light(where=lambda kind, sequence: kind != "process" or type(sequence) is Differing)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (
            Differing(),
            r"scene \d+, field 'scene': read_into wrote \[\d+.*\], __getitem__ returns \[.*\]. Both must give the same",
        ),
        (DifferingTogether(), r"scene \d+, field '0': get_batch wrote \[0\., .*, \.\.\.\], __getitem__ returns"),
    ],
)
def test_read_into_must_write_the_bits_of_getitem(make, kind, sequence, message):
    with pytest.raises(SpecError, match=message):
        make(kind, sequence, 4).submit(0, 0).result(timeout=60)


class Zeros(kf.SceneSequence):
    """Scenes of zeros, as new slots are."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.zeros(3, np.float32), np.zeros(2, bool)

    def read_into(self, index, out):
        out[0][:2] = 0
        out[1][...] = 0


class ZerosTogether(Zeros):
    def get_batch(self, indices, out=None):
        self.read_into(indices[0], [out[0].T, out[1]])


@pytest.mark.light(where=lambda kind, sequence: kind != "process" or type(sequence) is Zeros)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sequence", [Zeros(), ZerosTogether()])
def test_unwritten_elements_are_detected_in_scenes_of_zeros(make, kind, sequence):
    with pytest.raises(SpecError, match=r"field '0': .* write every element of `out`"):
        _epoch(make(kind, sequence), 1)


class Raising(OneArray):
    def read_into(self, index, out):
        if index == 5:
            raise OSError("no such scene")
        super().read_into(index, out)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_read_into_names_the_scene(make, kind):
    loader = make(kind, Raising(), 11)
    with pytest.raises(OSError, match="no such scene") as caught:
        loader.submit(0, 0).result(timeout=60)
    assert any("scene 5, epoch 0, step 0" in note for note in caught.value.__notes__)


class Announced(scenes.Clouds):
    """Logs in a file which scenes were announced and which loaded."""

    def __init__(self, path):
        super().__init__()
        self.path = str(path)

    def _note(self, line):
        with open(self.path, "a") as file:  # noqa: PTH123 - appended to in one write
            file.write(line + "\n")

    def read_ahead(self, indices):
        assert indices.dtype == np.int64
        self._note("ahead " + " ".join(map(str, indices.tolist())))
        indices[:] = -1  # its own copy

    def __getitem__(self, index):
        self._note(f"load {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", KINDS)
def test_read_ahead_precedes_loading_and_does_not_change_batches(make, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(SceneTiming, "add", lambda *_: None)  # a batch is one task, even on a busy machine
    sequence = Announced(tmp_path / "calls")
    loader = make(kind, sequence, 8, workers=1)
    _ = loader.spec
    (tmp_path / "calls").write_text("")
    batches = _epoch(loader, 5)
    announced = []
    for line in (tmp_path / "calls").read_text().splitlines():
        kind_of_line, *numbers = line.split()
        if kind_of_line == "ahead":
            announced += map(int, numbers)
        else:
            assert int(numbers[0]) in announced
    assert sorted(announced) == list(range(37))
    for one, other in zip(batches, _epoch(make("inline", scenes.Clouds(), 8), 5), strict=True):
        _assert_same(one, other)


def test_threads_call_read_ahead_several_batches_ahead(make, tmp_path):
    sequence = Announced(tmp_path / "calls")
    with kf.Feed(sequence, 4, workers=1, worker_type="thread", max_queue_size=5) as feed:
        _ = feed.element_spec
        (tmp_path / "calls").write_text("")
        next(iter(feed))
        assert (tmp_path / "calls").read_text().count("ahead") == 5


class FailingAhead(scenes.Clouds):
    def read_ahead(self, indices):
        raise OSError("the disk is on fire")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_read_ahead_is_raised_by_its_batch(make, kind, monkeypatch):
    monkeypatch.setattr(SceneTiming, "add", lambda *_: None)  # a batch is one task, even on a busy machine
    future = make(kind, FailingAhead(), 8, workers=1).submit(2, 1)
    with pytest.raises(OSError, match="the disk is on fire") as caught:
        future.result(timeout=60)
    notes = "\n".join(caught.value.__notes__)
    assert "(read_ahead), epoch 2, step 1" in notes


class DrawingAhead(scenes.Clouds):
    def read_ahead(self, indices):
        self.rng.random()


@pytest.mark.parametrize("kind", KINDS)
def test_read_ahead_cannot_draw_from_the_generator_of_a_scene(make, kind, monkeypatch):
    monkeypatch.setattr(SceneTiming, "add", lambda *_: None)  # a batch is one task, even on a busy machine
    future = make(kind, DrawingAhead(), 8, workers=1).submit(0, 0)
    with pytest.raises(kf.KerasfeedError, match=r"get_batch and read_ahead get many: use self.rng_for\(index\)"):
        future.result(timeout=60)


def test_reads_count_for_the_loading_feed(make):
    class Paying(OneArray):
        def read_ahead(self, indices):
            meters.add(read_cost.current())

        def read_into(self, index, out):
            meters.add(read_cost.current())
            super().read_into(index, out)

    meters = set()
    one, other = make("thread", Paying(), 4), make("inline", Paying(), 4)
    _epoch(one, 3)
    assert len(meters) == 1
    assert None not in meters
    _epoch(other, 3)
    assert len(meters) == 2
    assert read_cost.current() is None


class Aligned(kf.SceneSequence):
    """Records with padding, which the assignment of a member leaves as it was."""

    dtype = np.dtype([("kind", "u1"), ("energy", "f8")], align=True)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        scene = np.zeros(3, self.dtype)
        self.read_into(index, scene)
        return scene

    def read_into(self, index, out):
        out["kind"], out["energy"] = index, index / 2


def test_padding_of_records_is_not_compared():
    with kf.Feed(Aligned(), 3, workers=0) as feed:
        assert [batch["energy"][:, 0].tolist() for batch in feed] == [[0, 0.5, 1], [1.5, 2, 2.5]]


@pytest.mark.heavy
def test_check_sequence_ignores_padding_of_records():
    report = kf.check_sequence(Aligned(), seconds=10)
    assert not report.of("failed"), report
