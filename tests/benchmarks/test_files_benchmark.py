"""The benchmark of files: its peers deliver the same scenes."""

import pytest

import kerasfeed as kf
from benchmarks import files


@pytest.mark.filterwarnings("ignore::kerasfeed.errors.ReadCostWarning")
def test_peers_of_the_file_benchmark_deliver_the_same_scenes_and_a_rate(tmp_path):
    files.write(tmp_path, 10, 16)
    paths = sorted(map(str, tmp_path.iterdir()))
    ours, theirs = kf.FileSequence(paths, files.read_file), files.NaiveRows(paths, 16)
    assert len(ours) == len(theirs) == 160
    for index in (0, 17, 159):
        assert ours[index][0].tobytes() == theirs[index][0].tobytes()
        assert ours[index][1] == theirs[index][1]
    assert files.measure("kerasfeed FileSequence, 2 threads", paths, 16, 0.1) > 100
