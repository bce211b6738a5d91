"""The demo and the command line."""

import re
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import pytest
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.cli.main import main
from kerasfeed.demo.data import DataError, PointClouds, hold_out, sibling_for_validation, summarize
from kerasfeed.demo.shapes import SHAPES, write_shapes


def _write(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file.create_dataset(name, data=data)
    return path


@pytest.fixture
def shapes(tmp_path):
    """A file of 40 shapes of 64 points."""
    write_shapes(tmp_path / "shapes.h5", 40, points=64)
    return tmp_path / "shapes.h5"


# ---- data


def test_the_shapes_are_a_function_of_the_seed(tmp_path):
    clouds = []
    for name, seed in [("a.h5", 0), ("b.h5", 0), ("c.h5", 1)]:
        write_shapes(tmp_path / name, 20, points=32, seed=seed)
        with kf.HDF5File(tmp_path / name) as file:
            clouds.append(file["data"][:])
    assert np.array_equal(clouds[0], clouds[1])
    assert not np.array_equal(clouds[0], clouds[2])


def test_the_shapes_are_of_ten_classes_in_equal_numbers_within_the_unit_cube(shapes):
    with h5py.File(shapes) as file:
        assert file["data"].shape == (40, 64, 3)
        assert file["data"].dtype == np.float32
        assert np.abs(file["data"][:]).max() <= 1
        assert np.bincount(file["label"][:]).tolist() == [4] * 10
        assert list(file["label"].attrs["names"]) == list(SHAPES)


def test_a_scene_is_points_and_a_label(shapes):
    scenes = PointClouds(shapes, points=16)
    points, label = scenes[3]
    assert points.shape == (16, 3)
    assert points.dtype == np.float32
    assert np.linalg.norm(points, axis=1).max() <= 1
    assert label == scenes.file["label"][3]
    scenes.close()


def test_augmentation_does_not_depend_on_the_workers(shapes):
    scenes = PointClouds(shapes, points=16, augment=True)
    epochs = []
    for options in [{"workers": 0}, {"workers": 2, "worker_type": "process"}]:
        with kf.Feed(scenes, 8, shuffle=True, seed=3, **options) as feed:
            epochs.append([[np.array(points) for points, _ in feed] for _ in range(2)])
    assert np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[0][0], epochs[0][1])
    scenes.close()


def test_a_fifth_of_the_scenes_is_held_out_and_never_trained_on():
    def held_out(seed):
        return [part.indices.tolist() for part in hold_out(range(50), seed)]

    kept, held = held_out(1)
    assert len(held) == 10
    assert sorted(kept + held) == list(range(50))
    assert held_out(1) == [kept, held]
    assert held_out(2) != [kept, held]


def test_one_of_few_scenes_is_held_out_and_fewer_than_two_are_refused():
    assert [[len(part) for part in hold_out(range(count), 0)] for count in range(2, 8)] == [
        [1, 1], [2, 1], [3, 1], [4, 1], [5, 1], [6, 1]
    ]  # fmt: skip
    for count, scenes in ((0, "0 scenes are"), (1, "1 scene is")):
        with pytest.raises(DataError, match=f"^{scenes} too few to hold some out; name a file with --validation$"):
            hold_out(range(count), 0)


def test_validation_uses_the_sibling_file_named_test_instead_of_train(tmp_path):
    assert sibling_for_validation(tmp_path / "rooms_train.h5") is None
    (tmp_path / "rooms_test.h5").touch()
    assert sibling_for_validation(tmp_path / "rooms_train.h5") == tmp_path / "rooms_test.h5"
    assert sibling_for_validation(tmp_path / "rooms_test.h5") is None


def test_the_sequence_is_importable_without_any_framework():
    code = "import sys, kerasfeed.demo.data; print(sorted({'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PROGRAM_SECONDS
    )
    assert output.stdout == "[]\n"


# ---- mistakes


def test_the_error_for_an_unusable_file_gives_the_reason(tmp_path):
    cloud, label = np.zeros((4, 8, 3), np.float32), np.zeros(4, np.uint8)
    (tmp_path / "text.h5").write_text("hello")
    _write(tmp_path / "other.h5", data=cloud, answer=label)
    _write(tmp_path / "flat.h5", data=cloud[0], label=label)
    _write(tmp_path / "short.h5", data=cloud, label=label[:3])
    _write(tmp_path / "real.h5", data=cloud, label=label.astype(np.float32))
    _write(tmp_path / "empty.h5", data=cloud[:0], label=label[:0])
    _write(tmp_path / "minus.h5", data=cloud, label=label.astype(np.int8) - 1)
    _write(tmp_path / "few.h5", data=cloud, label=label)
    wanted = {
        "none.h5": "there is no file '.*none.h5'",
        "text.h5": r"'.*text.h5' cannot be read as HDF5 \(.*file signature not found.*\)",
        "other.h5": "'.*other.h5' has no dataset 'label'; its datasets: answer, data",
        "flat.h5": r"'data' of '.*flat.h5' must be numbers \[M, N, 3\], received float32\[8, 3\]",
        "short.h5": r"'label' of '.*short.h5' must be integers \[4\], received uint8\[3\]",
        "real.h5": r"'label' of '.*real.h5' must be integers \[4\], received float32\[4\]",
        "empty.h5": r"'data' of '.*empty.h5' is empty: float32\[0, 8, 3\]",
        "minus.h5": "'label' of '.*minus.h5' must be 0 or more, but the smallest is -1",
        "few.h5": "'.*few.h5' has 8 points per scene, fewer than --points 9",
    }
    for name, message in wanted.items():
        with pytest.raises(DataError, match=f"^{message}$"):
            summarize(tmp_path / name, points=9)


def test_a_bad_file_gives_a_one_line_error_before_keras_is_imported(tmp_path):
    code = (
        "import sys; from kerasfeed.cli.main import main; "
        f"status = main(['demo', '--data', {str(tmp_path / 'none.h5')!r}]); "
        "print(status, 'keras' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PROGRAM_SECONDS
    )
    assert done.stdout == "2 False\n"
    assert done.stderr == f"kerasfeed demo: there is no file {str(tmp_path / 'none.h5')!r}\n"


def test_the_command_refuses_a_bad_validation_file(shapes, tmp_path, capsys):
    bad = _write(tmp_path / "bad.h5", points=np.zeros(3))
    assert main(["demo", "--data", str(shapes), "--points", "16", "--validation", str(bad)]) == 2
    assert capsys.readouterr().err == f"kerasfeed demo: {str(bad)!r} has no dataset 'data'; its datasets: points\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--epochs", "0"], "must be an integer of at least 1, received '0'"),
        (["--workers", "many"], "must be an integer of at least 0 or \"auto\", received 'many'"),
        (["--seed", "-1"], "must be an integer of at least 0, received '-1'"),
        (["--worker-type", "fork"], "invalid choice: 'fork'"),
    ],
)
def test_the_command_refuses_bad_arguments(option, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["demo", *option])
    assert message in capsys.readouterr().err


def test_the_command_prints_its_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"kerasfeed {kf.__version__}\n"


# ---- training


def _figures(output):
    """Validation accuracy, majority rate and number of epochs in the command's output."""
    found = re.search(r"validation scenes is ([\d.]+)%. .* would give ([\d.]+)%", output)
    assert re.search(r"Training processed [\d,]+ scenes/s and waited for input [\d.]+% of the time", output)
    return float(found[1]) / 100, float(found[2]) / 100


def test_the_demo_learns_the_shapes_it_wrote_and_removes_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo", "--epochs", "6", "--points", "128", "--workers", "2"]) == 0
    output = capsys.readouterr().out
    accuracy, majority = _figures(output)
    assert majority == pytest.approx(0.1)
    assert accuracy > 0.4
    assert re.findall(r"Epoch (\d)/6\n15/15 - .* - scenes_per_second: [\d.]+ - input_wait_share: [\d.]+", output) == [
        "1", "2", "3", "4", "5", "6",
    ]  # fmt: skip
    assert "chunk" not in output
    assert not [path for path in tmp_path.iterdir() if "demo" in path.name]


def test_the_demo_prints_its_purpose_before_it_imports_keras():
    code = """
import builtins, os, sys
from kerasfeed.cli.main import main
original = builtins.__import__
def importing(name, *more, **named):
    if name.split(".")[0] == "keras":
        os._exit(7)
    return original(name, *more, **named)
builtins.__import__ = importing
main(["demo"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert "Training a small neural network" in done.stdout
    assert "Loading Keras" in done.stdout


@pytest.mark.heavy
def test_without_a_validation_file_the_demo_holds_scenes_out(shapes, capsys):
    command = ["demo", "--data", str(shapes), "--epochs", "1", "--points", "16", "--worker-type", "thread"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "shapes.h5: 40 scenes of 64 points, 8 of them held out for validation" in output
    assert "Feed(Subset: 32 scenes, batch_size=16, 2 steps" in output


@pytest.mark.heavy
def test_the_demo_clearly_beats_the_majority_rate_on_real_data(real_data, capsys):
    assert main(["demo", "--data", str(real_data / "bimnet10_train.h5"), "--epochs", "8", "--points", "256"]) == 0
    output = capsys.readouterr().out
    accuracy, majority = _figures(output)
    assert "bimnet10_test.h5: 51 scenes of 2,048 points, for validation" in output
    assert majority == pytest.approx(0.157, abs=5e-4)
    assert accuracy > 2 * majority
