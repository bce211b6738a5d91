"""A user's script. Arguments: folder, and the batch of this run at which it kills itself (-1 for none)."""

import os
import signal
import sys
from pathlib import Path

import keras
from resumable import make_feed, make_model, result_of

import kerasfeed as kf

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])


class Kill(keras.callbacks.Callback):
    """Ends the process as `kill -9` does."""

    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


model = make_model()
feed = make_feed(length=60, workers=2, worker_type="process")
callbacks = [
    kf.BackupAndRestore(feed, folder / "backup", save_freq=4),
    Kill(),
]
history = model.fit(feed, epochs=3, callbacks=callbacks, verbose=0)
print(*result_of(model), "epochs", ",".join(map(str, history.epoch)))
