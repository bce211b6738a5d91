"""The recipes for files of many scenes: each is run, on real files of its format."""

import io
import json
import re
import tarfile

import numpy as np
import pytest
from places import ROOT

import kerasfeed as kf

PAGE = ROOT / "docs" / "how-to" / "many-scenes-a-file.md"
COUNTS = (5, 3, 6)
SIDE = 4


def snippet(name):
    found = re.search(rf"<!-- tested: {name} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, f"{PAGE.name} has no snippet {name!r}"
    return found.group(1)


def scene(file, row):
    """Points and label of a scene."""
    return [[file + 0.5, row, k] for k in range(2)], 100 * file + row


def write_json(path, scenes):
    path.write_text(json.dumps([{"points": points, "label": label} for points, label in scenes]))


def write_avro(path, scenes):
    fastavro = pytest.importorskip("fastavro")
    point = {"type": "array", "items": {"type": "array", "items": "float"}}
    fields = [{"name": "points", "type": point}, {"name": "label", "type": "long"}]
    with path.open("wb") as file:
        records = [{"points": points, "label": label} for points, label in scenes]
        fastavro.writer(file, fastavro.parse_schema({"name": "Scene", "type": "record", "fields": fields}), records)


def write_csv(path, scenes):
    path.write_text("".join(f"{points[0][0]},{points[0][1]},{points[0][2]},{label}\n" for points, label in scenes))


def write_jsonl(path, scenes):
    path.write_text("".join(json.dumps({"points": points, "label": label}) + "\n" for points, label in scenes))


def write_webdataset(path, scenes):
    with tarfile.open(path, "w") as tar:
        for number, (points, label) in enumerate(scenes):
            array = io.BytesIO()
            np.save(array, np.array(points, np.float32))
            for field, content in (("npy", array.getvalue()), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{number:04d}.{field}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def write_parquet(path, scenes):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pyarrow.table({"points": [points for points, _ in scenes], "label": [label for _, label in scenes]})
    pq.write_table(table, path, row_group_size=2)


FORMATS = {
    "files": ("json", write_json),
    "avro": ("avro", write_avro),
    "csv": ("csv", write_csv),
    "parquet": ("parquet", write_parquet),
    "webdataset": ("tar", write_webdataset),
}


def run(name):
    """Run a snippet like a user, after the imports of the first one; return its names."""
    space = {"__name__": "__main__"}
    exec("import glob, json\nimport numpy as np\nimport kerasfeed as kf\n" + snippet(name), space)
    return space


def labels_by(files, **arguments):
    with kf.Feed(files, 4, **arguments) as feed:
        return [label for batch in feed for label in batch[1].tolist()]


def check(files, expected):
    """All scenes in order, with every kind of worker; with shuffled files, each once."""
    for workers, worker_type in ((0, "thread"), (2, "thread"), (1, "process")):
        assert labels_by(files, workers=workers, worker_type=worker_type) == expected
    shuffled = labels_by(files, workers=2, worker_type="thread", order=kf.BlockShuffled(files, window=2), seed=1)
    assert sorted(shuffled) == sorted(expected) != shuffled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    return tmp_path


@pytest.mark.heavy
@pytest.mark.parametrize("name", FORMATS)
def test_a_recipe_reads_every_scene_of_its_files(name, folder):
    suffix, write = FORMATS[name]
    expected = []
    for file, count in enumerate(COUNTS):
        scenes = [scene(file, row) for row in range(count)]
        expected += scenes
        write(folder / "scans" / f"{file}.{suffix}", scenes)
    space = run(name)
    files = space["files"]
    check(files, [label for _, label in expected])
    points = np.stack([files[index][0] for index in range(len(files))])
    wanted = np.array([points[0] if name == "csv" else points for points, _ in expected], np.float32)
    assert points.tobytes() == wanted.tobytes()
    if name == "files":
        with space["feed"] as feed:
            assert sorted(label for _, labels in feed for label in labels.tolist()) == sorted(
                label for _, label in expected
            )
    if name == "parquet":
        assert files.counts.tolist() == [2, 2, 1, 2, 1, 2, 2, 2]
        assert files.locate(4).path == ("scans/0.parquet", 2)


def test_files_larger_than_memory_are_streamed(folder):
    for file in range(2):
        write_jsonl(folder / "scans" / f"{file}.jsonl", [scene(file, row) for row in range(1000)])
    with run("lines")["feed"] as feed:
        found = [label for batch in feed for label in batch[1].tolist()]
    assert sorted(found) == sorted(100 * file + row for row in range(1000) for file in range(2))


def test_a_folder_of_images_is_a_file(folder):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((SIDE, SIDE, 3), 10 * number + len(name), np.uint8)
            image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")
    files = run("images")["files"]
    check(files, ["cat"] * 3 + ["dog"] * 3)
    assert files[4][0].tolist() == np.full((SIDE, SIDE, 3), 13).tolist()
    assert files[4][0].dtype == np.uint8


def test_the_page_has_no_recipe_that_no_test_runs():
    assert set(re.findall(r"<!-- tested: (\w+) -->", PAGE.read_text())) == {*FORMATS, "lines", "images"}
