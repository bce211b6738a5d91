"""An engine whose hosts are plain processes of this machine, which tests may kill, freeze and add.

Messages are pickles behind their length, over the standard streams of the hosts.
"""

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from kerasfeed.pool.hosts.agent import Agent
from kerasfeed.pool.hosts.engine import Engine, Hosts, News, Parcel

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
    tasks, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what scenes print is no message
    agent, lock = Agent(lambda parcel: parcel), threading.Lock()

    def answer(kind, method, number, *arguments):
        message = _frame((kind, number, method(*arguments)))
        with lock:
            results.write(message)

    executor = ThreadPoolExecutor(64)
    while (message := _read(tasks)) is not None:
        kind, number, *arguments = message
        executor.submit(answer, *{
            "start": (News.STARTED, agent.start), "run": (News.ANSWER, agent.run), "stop": (News.STOPPED, agent.stop)
        }[kind], number, *arguments)  # fmt: skip
    agent.stop()
    os._exit(0)


@dataclass(frozen=True)
class SubprocessHosts(Hosts):
    """So many hosts; with `joinable`, as many as `engine.places` are told of."""

    count: int = 2
    silence: float = 30.0
    start_timeout: float = 60.0
    ship: tuple = ()
    engines: list = field(default_factory=list, compare=False)

    def start_engine(self, tell, calls):
        self.engines.append(SubprocessEngine(tell, self.count))
        return self.engines[-1]

    def __reduce__(self):
        return type(self), (self.count, self.silence, self.start_timeout, self.ship)


class SubprocessEngine(Engine):
    """See the module."""

    def __init__(self, tell, count):
        self.tell = tell
        self.processes = {}
        self._readers = {}
        self.join(count)

    def join(self, count):
        """Have so many places."""
        self.tell(News.PLACES, [str(number) for number in range(count)])

    def share(self, parcel):
        return parcel

    def start(self, key, place, version, setup, runner):
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.processes[key] = process
        self._readers[key] = threading.Thread(target=self._listen, args=(key, process), name="kerasfeed-test-host")
        self._readers[key].start()
        self._tell(key, "start", 0, version, setup, runner)

    def _listen(self, key, process):
        with suppress(OSError, ValueError, EOFError, pickle.UnpicklingError), process.stdout as stream:
            buffered = os.fdopen(os.dup(stream.fileno()), "rb")
            with buffered:
                while (message := _read(buffered)) is not None:
                    kind, number, parcel = message
                    self.tell(kind, key, *((number,) if kind is News.ANSWER else ()), parcel)
        code = process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.tell(News.GONE, key, how)

    def _tell(self, key, *message):
        with suppress(OSError):  # it is gone, as will be told
            self.processes[key].stdin.write(_frame(message))

    def send(self, key, number, work, shared):
        self._tell(key, "run", number, work, shared)

    def stop(self, key):
        self._tell(key, "stop", 0)

    def kill(self, key):
        self.processes[key].kill()

    def close(self):
        for key, process in self.processes.items():
            process.kill()
            process.stdin.close()
            self._readers[key].join()

    def missing(self):
        return f"{len(self.processes)} were started"

    def pids(self):
        return tuple(process.pid for process in self.processes.values() if process.poll() is None)


def host_pool(runner, options):
    """A pool of hosts of one worker each."""
    from dataclasses import replace

    from kerasfeed.pool.hosts.pool import HostPool

    hosts = SubprocessHosts(options.workers)
    return HostPool(runner, replace(options, workers=1, hosts=hosts))


__all__ = ["Parcel", "SubprocessEngine", "SubprocessHosts", "host_pool", "serve"]
