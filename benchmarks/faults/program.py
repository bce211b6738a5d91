"""One case's program with all its processes: start, events, kills, counts and end.

Invariant: processes of the program are found by its session, even if their parent has died; `end`
leaves none of them.
"""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks import memory
from benchmarks.faults.case import MARK, Order

SHARED_MEMORY = "/dev/shm/"
TRACKER_SECONDS = 5.0
"""Seconds that Python's resource tracker gets to clean up after a killed program."""
_LOG_LINE = re.compile(r"(WARNING|[IWEF]\d{4} )")
_ROOT = Path(__file__).parents[2]


class Program:
    """The program of one case.

    Args:
        order: The task of the case.
    """

    def __init__(self, order: Order) -> None:
        self._folder = Path(order.folder)
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed in `end`)
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults.case", json.dumps(asdict(order))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
            cwd=_ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"},
            start_new_session=True,
        )
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith(MARK):
                self._events.put(json.loads(line.removeprefix(MARK)))

    def next_event(self, seconds: float) -> dict[str, Any] | None:
        """The next event, None after `seconds` without one; `{"event": "gone"}` when the program has ended."""
        gone = self.popen.poll() is not None
        try:
            return self._events.get(timeout=0.2 if gone else seconds)
        except queue.Empty:
            return {"event": "gone"} if gone else None

    def members(self) -> list[psutil.Process]:
        """The living processes of the program's session."""
        found = []
        for pid in psutil.pids():
            try:
                if os.getsid(pid) != self.popen.pid:
                    continue
                process = psutil.Process(pid)
                if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(process)
            except (ProcessLookupError, PermissionError, psutil.Error):
                continue
        return found

    def workers(self) -> list[psutil.Process]:
        """The living processes, other than the program itself, that have loaded a scene."""
        noted = {int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()} - {self.popen.pid}
        return [process for process in self.members() if process.pid in noted]

    def held_mb(self) -> float:
        """Memory that the program and all its processes hold, in megabytes."""
        return memory.held_bytes(self.members()) / memory.MEGABYTE

    def shared_files(self) -> set[Path]:
        """The files in /dev/shm that the processes have mapped."""
        found = set()
        for process in self.members():
            try:
                lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            except OSError:
                continue
            found.update(Path(line[line.index(SHARED_MEMORY) :]) for line in lines if SHARED_MEMORY in line)
        return {path for path in found if path.exists()}

    def last_words(self) -> str:
        """The last line that any of the processes wrote to standard error, except TensorFlow's log."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines()]
        told = [line for line in lines if line and not _LOG_LINE.match(line)]
        return told[-1][:300] if told else ""

    def end(self) -> None:
        """Kills the rest of the program; Python's resource tracker may first clean up /dev/shm."""
        members = self.members()
        trackers = [process for process in members if _is_tracker(process)]
        for process in members:
            if process not in trackers:
                kill(process)
        self.popen.wait()
        psutil.wait_procs(trackers, TRACKER_SECONDS)
        for process in self.members():
            kill(process)
        self._reader.join(2.0)
        if self.popen.stdout is not None:
            self.popen.stdout.close()
        self._errors.close()


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in part for part in process.cmdline())
    except psutil.Error:
        return False


def kill(process: psutil.Process) -> bool:
    """Kills a process at once; returns whether it was still alive."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def ending_words(code: int) -> str:
    """How a program ended that returned `code`, such as "SIGSEGV" or "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
