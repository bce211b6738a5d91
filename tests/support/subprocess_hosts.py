"""A cluster whose hosts are plain processes of this machine, which tests may kill, freeze and add.

Messages are pickles behind their length, over the standard streams of the hosts.
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
from dataclasses import dataclass, field

from kerasfeed.loaders.hosts.calls import Cluster, Hosts
from kerasfeed.loaders.hosts.host import FeedHost

_COMMAND = "import sys; sys.path[:] = {!r}; import subprocess_hosts; subprocess_hosts.serve()"
_LENGTH = struct.Struct("=q")


def _frame(message):
    # Buffers in band: they may be views of memory that is free again afterwards.
    data = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(data)) + data


def _read(stream):
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data = stream.read(_LENGTH.unpack(head)[0])
    return pickle.loads(data)


def serve():
    """Body of a host."""
    exec(os.environ.get("KERASFEED_TEST_HOST", ""))  # what a test wants otherwise on hosts
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what scenes print is no message
    host, lock = FeedHost(), threading.Lock()

    def answer(number, method, arguments):
        message = _frame((number, getattr(host, method)(*arguments)))
        with lock:
            answers.write(message)

    executor = ThreadPoolExecutor(64)
    while (message := _read(calls)) is not None:
        executor.submit(answer, *message)
    host.stop()
    os._exit(0)


@dataclass(frozen=True)
class SubprocessHosts(Hosts):
    """So many hosts; more can `join` the cluster."""

    count: int = 2
    silence: float = 30.0
    start_timeout: float = 60.0
    ship: tuple = ()
    clusters: list = field(default_factory=list, compare=False)

    def join(self):
        self.clusters.append(SubprocessCluster(self.count))
        return self.clusters[-1]

    def __reduce__(self):
        return type(self), (self.count, self.silence, self.start_timeout, self.ship)


class SubprocessCluster(Cluster):
    """See the module.

    Attributes:
        count: Hosts that there should be.
        over: Why there can be none any more.
        hosts: All that were started.
    """

    def __init__(self, count):
        self.count, self.over, self.hosts = count, None, []

    @property
    def processes(self):
        return [host.process for host in self.hosts]

    def places(self):
        if self.over is not None:
            raise self.over
        return [str(number) for number in range(self.count)]

    def start(self, place):
        self.hosts.append(SubprocessHost())
        return self.hosts[-1]

    def call(self, host, method, *arguments):
        return host.call(method, *arguments)

    def keep(self, hosts):
        for host in self.hosts:
            if host not in hosts:
                host.process.kill()

    def close(self):
        for host in self.hosts:
            host.process.kill()
            host.process.stdin.close()
            host.thread.join()

    def missing(self):
        return f"{len(self.hosts)} were started"


class SubprocessHost:
    """One process."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._numbers, self._calls, self._lock = itertools.count(), {}, threading.Lock()
        self._how = None
        self.thread = threading.Thread(target=self._listen, name="kerasfeed-test-host")
        self.thread.start()

    def call(self, method, *arguments):
        future = Future()
        with self._lock:
            number, how = next(self._numbers), self._how
            if how is None:
                self._calls[number] = future
                with suppress(OSError):  # it is gone, as will be told
                    self.process.stdin.write(_frame((number, method, arguments)))
        if how is not None:
            future.set_exception(RuntimeError(how))
        return future

    def _listen(self):
        with suppress(OSError, ValueError, EOFError, pickle.UnpicklingError), self.process.stdout as stream:
            buffered = os.fdopen(os.dup(stream.fileno()), "rb")
            with buffered:
                while (message := _read(buffered)) is not None:
                    self._calls.pop(message[0]).set_result(message[1])
        code = self.process.wait()
        with self._lock:
            self._how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        for future in self._calls.values():
            future.set_exception(RuntimeError(self._how))


__all__ = ["SubprocessCluster", "SubprocessHost", "SubprocessHosts", "serve"]
