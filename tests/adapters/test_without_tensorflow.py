"""A machine without TensorFlow, simulated by refusing its import."""

import importlib.util

import pytest
from programs import finish, launch

BEGIN = """
    import os, sys
    os.environ["KERAS_BACKEND"] = {backend!r}
    sys.modules["tensorflow"] = None
    import numpy as np
    import kerasfeed as kf

    class Pairs(kf.SceneSequence):
        def __len__(self):
            return 10
        def __getitem__(self, index):
            return np.full(3, index, np.float32), np.float32(index)
"""
WITHOUT_BACKEND = """
    with kf.Feed(Pairs(), 5, workers=1, worker_type="process") as feed:
        print([labels.tolist() for _, labels in feed])
        print([type(labels).__name__ for _, labels in feed.to_jax()])
        state = feed.get_state()
        feed.set_state(state)
        print(repr(feed))
    with kf.StreamFeed(lambda: iter([1.0, 2.0]), 2, workers=0) as stream:
        print([batch.tolist() for batch in stream], "for loops only: Keras could not be imported" in repr(stream))
    assert "keras" not in sys.modules
"""
ERRORS = """
    import lean_keras
    calls = [
        lambda: feed.to_tf_dataset(), lambda: stream.to_tf_dataset(), lambda: kf.from_indexable(Pairs()),
        lambda: kf.parse_record, lambda: kf.feature_description,
    ]
    with kf.Feed(Pairs(), 5, workers=0) as feed, kf.StreamFeed(lambda: iter([1.0]), 1, workers=0) as stream:
        for call in calls:
            try:
                call()
            except ImportError as error:
                print("pip install tensorflow" in str(error), "kerasfeed[tensorflow]" in str(error))
"""
WITHOUT_KERAS = """
    for name in ("BackupAndRestore", "FeedCheckpoint", "InputMonitor"):
        try:
            getattr(kf, name)
        except ImportError as error:
            print("pip install tensorflow" in str(error), "kerasfeed[tensorflow]" in str(error))
"""
FIT = """
    import lean_keras
    import keras
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with kf.Feed(Pairs(), 5, workers=1, worker_type="process") as feed:
        model.fit(feed, epochs=2, verbose=0, callbacks=[kf.InputMonitor(feed)])
        print(model.evaluate(feed, verbose=0) >= 0, model.predict(feed, verbose=0).shape)
    paths = kf.write_tfrecords(Pairs(), "r-{shard}.tfrecord", num_shards=1, workers=1)
    print(len(kf.TFRecordSequence(paths)))
    assert not any(name.startswith("tensorflow.") for name in sys.modules)
"""


def printed(tmp_path, backend, code):
    return finish(launch(tmp_path, BEGIN.format(backend=backend) + code)).splitlines()


def test_without_a_keras_backend_a_feed_still_loops_and_its_repr_says_why(tmp_path):
    labels, arrays, text, stream = printed(tmp_path, "tensorflow", WITHOUT_BACKEND)
    assert labels == "[[0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0]]"
    assert arrays == "['ArrayImpl', 'ArrayImpl']"
    assert text.startswith("Feed(Pairs: 10 scenes, ")
    assert "for loops only: Keras could not be imported (ModuleNotFoundError: " in text
    assert "see KERAS_BACKEND" in text
    assert stream == "[[1.0, 2.0]] True"


@pytest.mark.heavy
def test_without_a_keras_backend_to_torch_works(tmp_path):
    pytest.importorskip("torch")
    code = """
    with kf.Feed(Pairs(), 5, workers=0) as feed:
        print([type(labels).__name__ for _, labels in feed.to_torch()])
    """
    assert printed(tmp_path, "tensorflow", code) == ["['Tensor', 'Tensor']"]


@pytest.mark.heavy
def test_the_error_for_missing_tensorflow_names_package_and_extra(tmp_path):
    assert printed(tmp_path, "jax", ERRORS) == 5 * ["True True"]


@pytest.mark.heavy
def test_the_error_for_a_missing_keras_backend_names_package_and_extra(tmp_path):
    assert printed(tmp_path, "tensorflow", WITHOUT_KERAS) == 3 * ["True True"]


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_training_on_other_backends_and_tfrecords_work_without_tensorflow(tmp_path, backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    assert printed(tmp_path, backend, FIT) == ["True (10, 1)", "10"]
