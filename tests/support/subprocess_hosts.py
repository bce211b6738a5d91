"""A cluster whose hosts are plain processes of this machine, which tests may kill and freeze. It restarts them.

Messages are pickles after their length, over the standard streams of the hosts.
"""

import itertools
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from kerasfeed import __version__
from kerasfeed.loaders.hosts.host import FeedHost
from kerasfeed.loaders.hosts.ray_hosts import RayHosts
from kerasfeed.pool.environment import search_path

_COMMAND = "import sys; sys.path[:] = {!r}; import subprocess_hosts; subprocess_hosts.serve(*{!r})"
_LENGTH = struct.Struct("=q")


def _frame(message):
    # Buffers in band, because they may be views of memory that is free again afterwards.
    data = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(data)) + data


def _read(stream):
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data = stream.read(_LENGTH.unpack(head)[0])
    return pickle.loads(data)


def serve(*arguments):
    """Body of a host."""
    exec(os.environ.get("KERASFEED_TEST_HOST", ""), globals())  # changes that a test makes on hosts
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of scenes must not mix with messages
    host, lock = FeedHost(*arguments), threading.Lock()

    def answer(number, method, arguments):
        try:
            message = _frame((number, getattr(host, method)(*arguments), None))
        except Exception as error:
            message = _frame((number, None, RuntimeError(str(error))))
        with lock:
            answers.write(message)

    executor = ThreadPoolExecutor(64)
    while (message := _read(calls)) is not None:
        executor.submit(answer, *message)
    host.stop()
    os._exit(0)


class SubprocessHosts(RayHosts):
    """Hosts; `clusters` are the clusters that feeds have joined."""

    def __init__(self, count=2, start_timeout=60.0, ship=()):
        super().__init__(count, start_timeout=start_timeout, ship=ship)
        object.__setattr__(self, "clusters", [])

    def join(self):
        self.clusters.append(SubprocessCluster(self.count))
        return self.clusters[-1]

    def __reduce__(self):
        return type(self), (self.count, self.start_timeout, self.ship)


class SubprocessCluster:
    """See `RayCluster`.

    Attributes:
        over: Why there can no longer be hosts.
    """

    def __init__(self, count):
        self.over, self.hosts = None, [SubprocessHost(number, count) for number in range(count)]
        self.asked = f"asked for {count} processes"

    @property
    def processes(self):
        return [host.process for host in self.hosts]

    def check(self):
        if self.over is not None:
            raise self.over

    def share(self, packed):
        return packed

    def call(self, host, method, *arguments):
        self.check()
        return host.call(method, *arguments)

    def close(self):
        for host in self.hosts:
            host.close()


class SubprocessHost:
    """One process at a time.

    Attributes:
        process: The present process.
        restarts: Number of restarts before it counts as lost.
    """

    def __init__(self, number, count):
        self.restarts = float("inf")
        self._arguments = number, count, __version__, search_path()
        self._numbers, self._calls, self._lock, self._closed = itertools.count(), {}, threading.RLock(), False
        self._how = None
        self._start()
        self._thread = threading.Thread(target=self._listen, name="kerasfeed-test-host")
        self._thread.start()

    def _start(self):
        command = _COMMAND.format(sys.path, self._arguments)
        self.process = subprocess.Popen(
            [sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def call(self, method, *arguments):
        future = Future()
        with self._lock:
            if self._how is None:
                self._send(method, arguments, future)
                return future
        future.set_exception(RuntimeError(self._how))
        return future

    def _send(self, method, arguments, future):
        number = next(self._numbers)
        self._calls[number] = method, arguments, future
        with suppress(OSError):  # it has ended, and its thread will notice
            self.process.stdin.write(_frame((number, method, arguments)))

    def _listen(self):
        while True:
            self._take_answers()
            code = self.process.wait()
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            with self._lock:
                self.process.stdin.close()
                calls, self._calls = self._calls, {}
                if self._closed or self.restarts < 1:
                    self._how = how
                else:
                    self.restarts -= 1
                    self._start()
                    for call in calls.values():  # calls of "start" last until it has started
                        if call[0] == "start":
                            self._send(*call)
            for method, _, future in calls.values():
                if method != "start" or self._how is not None:
                    future.set_exception(RuntimeError(how))
            if self._how is not None:
                return

    def _take_answers(self):
        with suppress(OSError, ValueError, EOFError, pickle.UnpicklingError), self.process.stdout as stream:
            buffered = os.fdopen(os.dup(stream.fileno()), "rb")
            with buffered:
                while (message := _read(buffered)) is not None:
                    number, answer, error = message
                    future = self._calls.pop(number)[2]
                    if error is None:
                        future.set_result(answer)
                    else:
                        future.set_exception(error)

    def close(self):
        with self._lock:
            self._closed = True
            self.process.kill()
        self._thread.join()


__all__ = ["SubprocessCluster", "SubprocessHost", "SubprocessHosts", "serve"]
