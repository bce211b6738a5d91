"""`kf.shared`: lists and dicts whose memory worker processes share."""

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import kerasfeed as kf
from benchmarks.cow import private_bytes
from kerasfeed.feeds.base import BaseFeed


@dataclass
class Room:
    """A user's class, whose module workers cannot import."""

    name: str
    floor: int = 2


class Names(kf.SceneSequence):
    """A list; a scene is the length of an item."""

    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return np.int64(len(self.names[index]))


ITEMS = {
    "text": ["", "a", "ä€𝄞", "nul\0", "\udcff", "line\n", "x" * 5000],
    "bytes": [b"", b"\0", b"abc\0"],
    "booleans": [True, False],
    "integers": [0, -1, 2**63 - 1],
    "huge integers": [0, 2**64, -(2**70)],
    "floats": [0.1, -0.0, float("inf")],
    "complex": [1j, 2.5],
    "NumPy numbers": [np.float32(0.1), np.float32(2)],
    "mixed numbers": [1, 2.5, True, None],
    "objects": [Room("a"), {"box": (1, 2), "path": Path("a.npy")}, [Room("b")], None, "text", np.int16(3)],
    "nothing": [],
}


@pytest.mark.parametrize("items", ITEMS.values(), ids=ITEMS)
@pytest.mark.parametrize("copy", [lambda made: made, lambda made: pickle.loads(pickle.dumps(made))], ids=["", "copy"])
def test_a_shared_list_has_the_items_of_the_list_and_their_types(items, copy):
    made = copy(kf.shared(items))
    assert len(made) == len(items)
    assert list(made) == items
    assert [type(item) for item in made] == [type(item) for item in items]
    assert [made[number] for number in range(-len(items), 0)] == items
    for part in (slice(1, 3), slice(None, None, -2), slice(5, 1)):
        assert made[part] == items[part]
    assert all(item in made for item in items)
    assert "missing" not in made


def test_arrays_are_items_too():
    arrays = [np.arange(count, dtype=np.float32) for count in range(5)]
    for made, wanted in zip(kf.shared(arrays), arrays, strict=True):
        assert made.dtype == wanted.dtype
        assert made.tolist() == wanted.tolist()


def test_any_iterable_with_an_order_is_a_list():
    assert list(kf.shared(str(number) for number in range(3))) == ["0", "1", "2"]
    assert list(kf.shared(np.array(["a", "b"], object))) == ["a", "b"]
    assert list(kf.shared(kf.shared(["a"]))) == ["a"]


@pytest.mark.parametrize("index", [3, -4, 2**70])
def test_an_index_out_of_range_is_an_index_error(index):
    with pytest.raises(IndexError, match=f"index {index} is out of range: the shared list has 3 items"):
        kf.shared(["a", "b", "c"])[index]


def test_a_shared_list_cannot_be_changed():
    made = kf.shared([[1], [2]])
    made[0].append(3)
    assert made[0] == [1]
    with pytest.raises(TypeError, match="does not support item assignment"):
        made[0] = [5]


MAPPINGS = {
    "text": {"b": 1, "a": 2, "": 3, "\udcff": 4},
    "integers": {3: "x", -1: "y", 2**80: "z"},
    "all kinds": {"1": "text", b"1": "bytes", 1: Room("a")},
    "nothing": {},
}


@pytest.mark.parametrize("items", MAPPINGS.values(), ids=MAPPINGS)
def test_a_shared_dict_has_the_keys_and_values_of_the_dict_in_its_order(items):
    for made in (kf.shared(items), pickle.loads(pickle.dumps(kf.shared(items)))):
        assert len(made) == len(items)
        assert list(made.items()) == list(items.items())
        assert {key: made[key] for key in items} == items
        for key in ("missing", b"missing", 77, None, 1.5, (1,)):
            assert key not in made
            assert made.get(key) is None
        with pytest.raises(KeyError, match="missing"):
            made["missing"]


def test_keys_of_numpy_find_the_same_value_as_in_a_dict():
    made = kf.shared({3: "three", "a": "text", np.int64(5): "five"})
    assert (made[np.int64(3)], made[np.str_("a")], made[5]) == ("three", "text", "five")


def test_many_keys_find_their_values():
    made = kf.shared({f"room-{number}": number for number in range(20_000)})
    for number in range(0, 20_000, 97):
        assert made[f"room-{number}"] == number
        assert f"hall-{number}" not in made


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (5, r"needs a list or dict, received int$"),
        ("text", r"received str$"),
        (b"bytes", r"received bytes$"),
        ({"a"}, r"received set: a set has no order .* Pass sorted"),
        (np.zeros(3), r"received ndarray of float64: worker processes share arrays already"),
        (np.array(["a"]), r"received ndarray of <U1"),
        ({1.5: "a"}, r"a key must be text, bytes or an integer, received 1.5 of type float"),
        ({(1, 2): "a"}, r"a key must be .* received \(1, 2\) of type tuple"),
        (["a", sys], r"item 1 \(module\) cannot be pickled: "),
        ({"a": 1, "b": sys}, r"the value of 'b' \(module\) cannot be pickled: "),
    ],
)
def test_wrong_input_is_named_with_the_remedy(items, message):
    with pytest.raises(TypeError, match=message):
        kf.shared(items)


def test_a_table_is_refused():
    class Table(list):
        """Iterates over the names of its columns, as tables of pandas do."""

        columns = ("path", "label")

    with pytest.raises(TypeError, match="received Table: pass one of its columns"):
        kf.shared(Table())


def test_the_representation_has_the_number_of_items_and_the_memory():
    assert repr(kf.shared(["x" * 1_000_000, "y"])) == "<shared list of 2 items, 1.0 MB>"
    assert repr(kf.shared({"x": bytes(2_000_000)})) == "<shared dict of 1 item, 2.0 MB>"


def test_its_pickle_is_small_and_its_arrays_are_beside_it():
    made = kf.shared({f"room-{number}": {"floor": number} for number in range(10_000)})
    buffers = []
    assert len(pickle.dumps(made, protocol=5, buffer_callback=buffers.append)) < 2000
    assert sum(buffer.raw().nbytes for buffer in buffers) > 300_000


def test_workers_read_items_whose_class_is_of_the_main_module():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        rooms = kf.shared([Room(f"room-{number}", number) for number in range(8)])
        floors = kf.Map(range(8), lambda index: np.int64(rooms[index].floor))
        with BaseFeed(floors, 8, workers=1, worker_type="process") as feed:
            assert feed[0].tolist() == list(range(8))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_the_memory_of_a_worker_does_not_grow_with_a_shared_list():
    def private(names):
        with BaseFeed(Names(names)[:64], 8, workers=2, worker_type="process") as feed:
            assert [batch.tolist() for batch in feed] == [[21] * 8] * 8
            return max(map(private_bytes, feed.stats().pids))

    names = [f"scan-{number:012d}.npy" for number in range(1_000_000)]
    few = private(names[:64])
    assert private(kf.shared(names)) < few + 10_000_000
    assert private(names) > few + 60_000_000


def test_a_sequence_of_over_100_mb_of_objects_is_named_with_the_remedy():
    names = [bytes([number]) * 26_000_000 for number in range(4)]
    message = r"Names: each worker .* copy of 104 MB .* 'names', list of 4 items.*kf\.shared"
    with BaseFeed(Names(names), 2, workers=1, worker_type="process") as feed:
        with pytest.warns(kf.FeedWarning, match=message):
            feed[0]
        assert feed[1].tolist() == [26_000_000] * 2  # without another warning
