"""Runs cases, causes faults from outside, and records observations.

Invariant: every case gives an observation within its time, and all its processes end with it.
"""

import contextlib
import importlib.util
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from benchmarks.faults.case import Order
from benchmarks.faults.catalog import BATCH_SIZE, WORKERS, Case
from benchmarks.faults.observation import Observation
from benchmarks.faults.program import Program, ending_words, kill

IMPORT_TIMEOUT = 180.0
"""Seconds until a program must have imported its framework and opened the library."""
START_PATIENCE = 60.0
"""Seconds without a first batch after which a case counts as hung: on a busy machine workers are slow to start."""
LONGEST = 180.0
"""Seconds after which a case is over even if batches still come."""
EXIT_PATIENCE = 20.0
"""Seconds until a program must have closed the library and ended, after its consumer."""
STRIKE_AFTER = 3
"""Batches before the first kill."""
BEAT = 0.2
"""Seconds between two kills."""
GRACE = 2.0
"""Seconds until processes must be gone after their program."""
_TICK = 0.05


@dataclass
class _Record:
    """Observations of a running case; the fields are those of `Observation`."""

    labels: list[int] = field(default_factory=list)
    wrong: int = 0
    batches: int = 0
    damaged: int = 0
    error: str = ""
    message: str = ""
    names_scene: bool = False
    warned: list[str] = field(default_factory=list)
    kills: int = 0
    first_mb: float | None = None
    grown_mb: float | None = None


class _Watch:
    """One run of one case.

    Args:
        case: The case.
        folder: Folder for the marks of its scenes.
    """

    def __init__(self, case: Case, folder: str) -> None:
        peer, fault = case.peer, case.fault
        self.fault = fault
        self.record = _Record()
        self.program = Program(
            Order(
                peer.module,
                peer.function,
                fault.name,
                case.consumer,
                fault.consumer,
                folder,
                fault.length,
                fault.seconds,
                fault.values,
                BATCH_SIZE,
                WORKERS,
            )
        )
        self._random = random.Random(0)
        self._next_beat = 0.0

    def observe(self) -> Observation:
        """Waits for the end of the case, whatever the reason."""
        ending = self._consume()
        through = time.monotonic()
        seen = Observation(
            ending,
            tuple(self.record.labels),
            self.record.wrong,
            self.record.damaged,
            self.record.error,
            self.record.message,
            self.record.names_scene,
            tuple(self.record.warned),
            self.fault.patience,
            kills=self.record.kills,
            grown_mb=self.record.grown_mb,
        )
        if ending in ("end", "raised"):
            seen = self._exit(seen, through)
        elif ending == "died":
            code = self.program.popen.wait()
            seen = replace(seen, error=ending_words(code), left=self._left())
        elif ending == "killed":
            seen = self._kill(seen)
        return replace(seen, last_words=self.program.last_words())

    def _consume(self) -> str:
        begin = last = time.monotonic()
        patience = IMPORT_TIMEOUT
        while True:
            now = time.monotonic()
            if now - last > patience or now - begin > IMPORT_TIMEOUT + LONGEST:
                return "hung"
            self._interfere()
            if self.fault.strikes == "program" and self.record.batches >= STRIKE_AFTER:
                return "killed"
            event = self.program.next_event(_TICK)
            if event is None:
                continue
            kind = event["event"]
            if kind == "warning":
                self.record.warned.append(event["type"] + "+" * event["names_scene"])
                continue
            last = time.monotonic()
            if kind == "ready":
                patience = START_PATIENCE
            elif kind == "batch":
                patience = self.fault.patience
                self.record.batches += 1
                self.record.labels += event["labels"]
                self.record.wrong += event["wrong"]
            elif kind == "end":
                self.record.damaged = event["damaged"]
                return "end"
            elif kind == "raised":
                self.record.error, self.record.message = event["type"], event["message"]
                self.record.names_scene = event["names_scene"]
                return "raised"
            elif kind in ("gone", "unavailable"):
                self.record.message = event.get("message", "")
                return "died" if kind == "gone" else "unavailable"

    def _interfere(self) -> None:
        """Kills a worker if it is time, and measures the memory of a consumer that hoards."""
        if self.fault.consumer == "hoards" and self.record.batches and time.monotonic() > self._next_beat:
            self._next_beat = time.monotonic() + BEAT
            held = self.program.held_mb()
            if self.record.first_mb is None:
                self.record.first_mb = held
            self.record.grown_mb = max(self.record.grown_mb or 0.0, held - self.record.first_mb)
        if self.fault.strikes == "worker" and not self.record.kills and self.record.batches >= STRIKE_AFTER:
            self.record.kills += self._strike()
        if self.fault.strikes == "often" and self.record.batches and time.monotonic() > self._next_beat:
            self._next_beat = time.monotonic() + BEAT
            self.record.kills += self._strike()

    def _strike(self) -> bool:
        workers = self.program.workers()
        return bool(workers) and kill(self._random.choice(workers))

    def _exit(self, seen: Observation, through: float) -> Observation:
        """Waits for the end of the program; counts processes that outlive it, or its consumer's early stop."""
        lingering = 0
        while time.monotonic() - through < EXIT_PATIENCE:
            event = self.program.next_event(_TICK)
            if event is None:
                continue
            if event["event"] == "lingered":
                lingering = len(self.program.workers())
                through += GRACE
            elif event["event"] == "gone":
                seconds = time.monotonic() - through
                code = self.program.popen.wait()
                left = lingering + self._left()
                return replace(seen, exit=ending_words(code) if code else "", exit_seconds=seconds, left=left)
        return replace(seen, exit="hung", left=lingering)

    def _kill(self, seen: Observation) -> Observation:
        """Kills the program; counts its processes that remain after `GRACE` seconds."""
        files = self.program.shared_files()
        self.program.popen.kill()
        self.program.popen.wait()
        time.sleep(GRACE)
        left = [path for path in files if path.exists()]
        return replace(seen, left=len(self.program.members()), files=len(left))

    def _left(self) -> int:
        deadline = time.monotonic() + GRACE
        while members := self.program.members():
            if time.monotonic() > deadline:
                break
            time.sleep(_TICK)
        return len(members)


def run_case(case: Case) -> Observation:
    """Runs one case to its end."""
    if importlib.util.find_spec(case.peer.package) is None:
        return Observation("missing")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, contextlib.ExitStack() as stack:
        watch = _Watch(case, folder)
        stack.callback(watch.program.end)
        return watch.observe()


def run_all(cases: list[Case], lanes: int, tell: Callable[[Case, Observation], None]) -> dict[str, Observation]:
    """Runs every case once, `lanes` at a time.

    Args:
        cases: The cases.
        lanes: Cases at a time, at least 1; most of them wait.
        tell: Called with each observation as it comes.

    Returns:
        Observations by the names of their cases.
    """
    results: dict[str, Observation] = {}
    with ThreadPoolExecutor(lanes) as pool:
        pending = {pool.submit(run_case, case): case for case in cases}
        for done in as_completed(pending):
            case = pending[done]
            results[case.name] = done.result()
            tell(case, results[case.name])
    return results
