"""A training process that is killed (SIGKILL), started again and killed again, ends as if it had not been.

On TensorFlow alone: what is on the disk then is what `test_resume_fit.py` finds there on every backend.
"""

import signal
import subprocess
import sys

import pytest
from places import SUPPORT
from resumable import chain_of, make_feed, stream
from scenes_frameworks import environment_of
from waits import PROGRAM_SECONDS

SCRIPT = SUPPORT / "resumable_script.py"
STEPS, EPOCHS = 10, 3  # of a feed of 60 scenes


@pytest.mark.heavy
def test_a_training_process_that_was_killed_twice_saw_the_batches_of_an_undisturbed_one(tmp_path):
    environment = environment_of(KERAS_BACKEND="tensorflow")
    for kill_at in (13, 6):
        command = [sys.executable, str(SCRIPT), str(tmp_path), str(kill_at)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
        assert done.returncode == -signal.SIGKILL, done.stderr[-4000:]
    assert {path.name for path in tmp_path.iterdir()} == {"backup"}
    command = [sys.executable, str(SCRIPT), str(tmp_path), "-1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    with make_feed(length=60) as feed:
        expected = chain_of(stream(feed, STEPS * EPOCHS))
    assert done.stdout.split()[-4:] == [str(expected), str(STEPS * EPOCHS), "epochs", "1,2"]
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["replayed", "steps"])
def test_a_training_process_on_a_stream_that_was_killed_twice_ends_as_an_undisturbed_one(tmp_path, kind):
    def run(folder, kill_at):
        command = [sys.executable, str(SUPPORT / "stream_script.py"), str(tmp_path / folder), str(kill_at), kind]
        environment = environment_of(KERAS_BACKEND="tensorflow")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
        assert done.returncode == (0 if kill_at < 0 else -signal.SIGKILL), done.stderr[-4000:]
        return done.stdout.split()[-4:]

    undisturbed = run("undisturbed", -1)
    for kill_at in (13, 6):  # the second time in another epoch than the first
        run("killed", kill_at)
    killed = run("killed", -1)
    assert killed[:2] == undisturbed[:2]
    assert (undisturbed[3], killed[3]) == ("0,1,2", "1,2")
    assert not list((tmp_path / "killed").iterdir())
