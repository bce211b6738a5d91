"""Runs cases in their own processes, one at a time, and watches their memory.

Invariant: all processes of a case end with it, and a case that hangs or fails is an
outcome like any other.
"""

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import memory
from benchmarks.catalog import PEERS, Case
from benchmarks.events import MARK

READINGS_PER_SECOND = 5
IMPORT_TIMEOUT = 180.0
"""Seconds until a case must have imported its framework."""
EXIT_TIMEOUT = 3.0
"""Seconds until a case must have ended by itself after its figures."""
HUNG_LIMIT = 2
"""A case that hung this often is not started again."""


@dataclass(frozen=True)
class Settings:
    """How long and how often.

    Attributes:
        seconds: Minimum length of a steady state, in seconds.
        repeats: Times each case runs, at least 1.
        timeout: Seconds after which a measurement counts as hung.
        program: Module that is the process of a case.
    """

    seconds: float = 1.0
    repeats: int = 5
    timeout: float = 60.0
    program: str = "benchmarks.case"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run of one case.

    Attributes:
        case: The case.
        repeat: Which repeat, from 0.
        status: "ok", "hung", "failed" or "skipped".
        reason: Why it is not ok; empty if it is.
        figures: The figures of the case, by name.
        peak_mb: Largest memory of the process tree during the measurement, in megabytes.
        growth_mb: Growth of that memory over the steady state, in megabytes; None if the state was too short.
    """

    case: Case
    repeat: int
    status: str
    reason: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    peak_mb: float | None = None
    growth_mb: float | None = None


class Child:
    """The process of one case, from its start to the end of all its descendants.

    Args:
        case: The case.
        settings: How long, and its program.
    """

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case = case
        self.seen: set[psutil.Process] = set()
        self.readings: list[tuple[float, int]] = []
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed in `end`)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", settings.program, case.name, str(settings.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            start_new_session=True,
        )
        self._root = psutil.Process(self._popen.pid)
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._popen.stdout or ():
            if line.startswith(MARK):
                self._events.put(json.loads(line.removeprefix(MARK)))
        self._events.put({"event": "end"})

    def next_event(self, deadline: float, watch: bool = False) -> dict[str, Any]:
        """The next event, or `{"event": "hung"}` at `deadline` (monotonic seconds); `watch` the memory."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                return self._events.get(timeout=min(left, 1 / READINGS_PER_SECOND))
            except queue.Empty:
                if self._popen.poll() is not None and self._events.empty():
                    return {"event": "end"}
            if watch:
                self.read_memory()
        return {"event": "hung"}

    def read_memory(self) -> None:
        """Records the present memory of the process tree, and its processes."""
        processes = memory.tree(self._root)
        self.seen.update(processes)
        self.readings.append((time.monotonic(), memory.held_bytes(processes)))

    def go(self) -> None:
        """Starts the measurement of a prepared case."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write("go\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            pass  # its end is the next event

    def last_words(self) -> str:
        """The last line that the case wrote to standard error."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else "it ended without a word"

    def end(self, patience: float = 0.0) -> None:
        """Ends the whole tree, after `patience` seconds to end by itself and clean up."""
        self.seen.update(memory.tree(self._root))
        try:
            self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.seen.update(memory.tree(self._root))
        _, left = psutil.wait_procs(self.seen, patience / 6)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self._popen.wait()
        self._reader.join(1.0)
        for stream in (self._popen.stdin, self._popen.stdout, self._errors):
            if stream is not None:
                stream.close()


def missing(case: Case) -> str | None:
    """Why a case cannot run here, or None."""
    module = PEERS[case.peer].requires
    return None if importlib.util.find_spec(module) else f"{module} is not installed"


def measure(child: Child, repeat: int, timeout: float) -> Outcome:
    """Starts the measurement of a prepared case and collects its figures."""
    child.go()
    deadline = time.monotonic() + timeout
    steady = 0
    while True:
        child.read_memory()
        event = child.next_event(deadline, watch=True)
        if event["event"] == "steady":
            steady = len(child.readings)
            continue
        break
    if event["event"] == "hung":
        return Outcome(child.case, repeat, "hung", f"no figures within {timeout:g} s")
    if event["event"] != "figures":
        return Outcome(child.case, repeat, "failed", _short(event.get("error") or child.last_words()))
    return Outcome(
        child.case,
        repeat,
        "ok",
        figures=event["figures"],
        peak_mb=max(held for _, held in child.readings) / memory.MEGABYTE,
        growth_mb=memory.growth(child.readings[steady:]),
    )


def _short(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "no message"
    return line if len(line) <= 200 else line[:200] + "..."


def run_all(cases: list[Case], settings: Settings, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Runs every case `settings.repeats` times, all cases once before any case again.

    As many cases as cores, at most two, are prepared (their frameworks imported) at the same time.
    They are then measured one by one while the others wait.

    Args:
        cases: The cases, in order.
        settings: How long and how often.
        tell: Called with each outcome as it comes.

    Returns:
        One outcome per case and repeat, except the skipped repeats of a hanging case.
    """
    outcomes: list[Outcome] = []
    lanes = max(1, min(2, os.cpu_count() or 1))
    for repeat in range(settings.repeats):
        ready = [case for case in cases if _hung(outcomes, case) < HUNG_LIMIT and not missing(case)]
        skipped = [Outcome(case, repeat, "skipped", missing(case) or "") for case in cases if missing(case)]
        for outcome in skipped if repeat == 0 else []:
            outcomes.append(outcome)
            tell(outcome)
        for first in range(0, len(ready), lanes):
            for outcome in _run_together(ready[first : first + lanes], repeat, settings):
                outcomes.append(outcome)
                tell(outcome)
    return outcomes


def _hung(outcomes: list[Outcome], case: Case) -> int:
    return sum(outcome.case == case and outcome.status == "hung" for outcome in outcomes)


def _run_together(cases: list[Case], repeat: int, settings: Settings) -> Iterator[Outcome]:
    children = [Child(case, settings) for case in cases]
    try:
        deadline = time.monotonic() + IMPORT_TIMEOUT
        events = [child.next_event(deadline) for child in children]
        for child, event in zip(children, events, strict=True):
            if event["event"] == "ready":
                outcome = measure(child, repeat, settings.timeout)
            else:
                reason = event.get("error") or child.last_words()
                outcome = Outcome(child.case, repeat, "failed", _short(reason))
            child.end(EXIT_TIMEOUT if outcome.status == "ok" else 0.0)
            children = children[1:]
            yield outcome
    finally:
        for child in children:
            child.end()
