"""Classes of scenes with one fault each, which shows in other threads, processes or folders. For the checks."""

import os
import threading
import time

import numpy as np
from scenes_bad import Sound


class NotForThreads(Sound):
    """Keeps the index in the object while it reads."""

    def scene(self, index):
        self.current = index
        time.sleep(1e-4)
        return super().scene(self.current)

    def __getstate__(self):
        return {"length": self.length}


class OneThread(Sound):
    """Holds an object that only its thread may use, like a connection to SQLite."""

    def __init__(self):
        super().__init__()
        self.thread = threading.get_ident()

    def scene(self, index):
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        return super().scene(index)

    def __reduce__(self):
        return OneThread, ()


class Locked(Sound):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Forgetful(Sound):
    def __init__(self):
        super().__init__()
        self.offset = 5

    def scene(self, index):
        return super().scene(index)[0] + np.float32(self.offset), index

    def __getstate__(self):
        return {"length": self.length, "offset": 0}


OFFSET = 0


class ReadsAGlobal(Sound):
    """Uses a global that its constructor sets, only in this process."""

    def __init__(self):
        global OFFSET
        super().__init__()
        OFFSET = 4

    def scene(self, index):
        return super().scene(index)[0], index + OFFSET


NUMBERS = {}


class NumbersForAll(Sound):
    """Numbers its labels in the order of reads, in a table of its module."""

    def scene(self, index):
        return super().scene(index)[0], NUMBERS.setdefault(f"room {index % 5}", len(NUMBERS))


class LockedButSafe(Sound):
    """Cannot be pickled, and says that threads may share it."""

    thread_safe = True

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class ReadsTheProcessId(Sound):
    def scene(self, index):
        return super().scene(index)[0], index + os.getpid()


class Hashing(Sound):
    def scene(self, index):
        return super().scene(index)[0], hash(f"room {index}") % 100_000


class DiesElsewhere(Sound):
    """Scene 4 ends every process except the one that made the sequence."""

    def __init__(self):
        super().__init__()
        self.pid = os.getpid()

    def scene(self, index):
        if index == 4 and os.getpid() != self.pid:
            os._exit(3)
        return super().scene(index)


class HangsElsewhere(DiesElsewhere):
    """Scene 4 hangs in these processes."""

    def scene(self, index):
        if index == 4 and os.getpid() != self.pid:
            time.sleep(1000)
        return Sound.scene(self, index)


class SlowElsewhere(DiesElsewhere):
    """Takes a third of a second in these processes, as on a busy machine."""

    def scene(self, index):
        if os.getpid() != self.pid:
            time.sleep(0.3)
        return Sound.scene(self, index)
