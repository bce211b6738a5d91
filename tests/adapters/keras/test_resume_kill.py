"""A training process that is killed (SIGKILL), started again and killed again, ends like an uninterrupted one.

Only on TensorFlow: `test_resume_fit.py` tests the same files on every backend.
"""

import signal

import pytest
from places import SUPPORT
from resumable import chain_of, make_feed, stream
from waits import PROGRAM_SECONDS

SCRIPT = SUPPORT / "resumable_script.py"
STEPS, EPOCHS = 10, 3  # of a feed of 60 scenes


@pytest.fixture
def run(forked):
    """Run a script with arguments: first a folder and the batch at which it kills itself."""

    def run(script, folder, kill_at, *arguments):
        given = (str(folder), str(kill_at), *arguments)
        done = forked.run(SUPPORT / script, SUPPORT, *given, seconds=PROGRAM_SECONDS)
        assert done.returncode == (0 if kill_at < 0 else -signal.SIGKILL), done.stderr[-4000:]
        return done.stdout.split()[-4:]

    return run


@pytest.mark.heavy
def test_a_training_process_killed_twice_sees_every_batch_once(tmp_path, run):
    for kill_at in (13, 6):
        run("resumable_script.py", tmp_path, kill_at)
    assert {path.name for path in tmp_path.iterdir()} == {"backup"}
    resumed = run("resumable_script.py", tmp_path, -1)
    with make_feed(length=60) as feed:
        expected = chain_of(stream(feed, STEPS * EPOCHS))
    assert resumed == [str(expected), str(STEPS * EPOCHS), "epochs", "1,2"]
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["replayed", "steps"])
def test_a_training_process_on_a_stream_killed_twice_gives_the_same_result(tmp_path, run, kind):
    undisturbed = run("stream_script.py", tmp_path / "undisturbed", -1, kind)
    for kill_at in (13, 6):  # the second time in another epoch than the first
        run("stream_script.py", tmp_path / "killed", kill_at, kind)
    killed = run("stream_script.py", tmp_path / "killed", -1, kind)
    assert killed[:2] == undisturbed[:2]
    assert (undisturbed[3], killed[3]) == ("0,1,2", "1,2")
    assert not list((tmp_path / "killed").iterdir())
