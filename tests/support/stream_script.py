"""A script that trains on a stream: folder, batch at which it kills itself (-1: none), kind of random numbers."""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from resumable import make_model, result_of

import kerasfeed as kf

folder, kill_at, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
LENGTHS = (31, 7, 22)


def starting(n, count, *, start):
    for k in range(start, LENGTHS[n]):
        yield np.full(1, 100 * n + k, np.float32), np.float32(k)


def replayed(n, count):
    yield from starting(n, count, start=0)


class Kill(keras.callbacks.Callback):
    """Ends the process as `kill -9` does."""

    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


feed = kf.StreamFeed(
    replayed if kind == "replayed" else starting, 4, count=3, shuffle_buffer=9, seed=3, workers=2, worker_type="process"
)
model = make_model()
callbacks = [kf.BackupAndRestore(feed, folder / "backup", save_freq=4), Kill()]
steps = 10 if kind == "steps" else None
history = model.fit(feed, epochs=3, steps_per_epoch=steps, callbacks=callbacks, verbose=0)
print(*result_of(model), "epochs", ",".join(map(str, history.epoch)))
