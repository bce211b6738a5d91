"""What a scene costs, and how many scenes a second workers would load for that.

Invariant: a value, and arithmetic on it; it is measured in `kerasfeed.explore.profile`.
"""

from dataclasses import dataclass

_TASK_COST = {"thread": 80e-6, "process": 60e-6}  # of a batch of tiny scenes, beside what its scenes cost, s
_RESOLVED = 1.2  # times the least that could be: then scenes do not overlap freely


@dataclass(frozen=True)
class SceneCost:
    """What one scene costs, on average over those that were read.

    Attributes:
        seconds: Time to read it in one thread, s.
        cpu_seconds: Of these, time that a processor was busy, s; more than `seconds` where the scene uses threads.
        collate_seconds: Time to write it into its row of a batch, s; 0 where the sequence writes it itself.
        threads: Threads that then loaded scenes at once; 1 where several may not.
        apart_seconds: Time from scene to scene meanwhile, s; None likewise.
        nbytes: Bytes of a scene in a batch; 0 where its place is not fixed.
        scenes: Scenes that were read in one thread.
        cores: Cores at that time.
    """

    seconds: float
    cpu_seconds: float
    collate_seconds: float
    threads: int
    apart_seconds: float | None
    nbytes: int
    scenes: int
    cores: int

    @property
    def total_seconds(self) -> float:
        """Time that one worker takes for a scene, s: reading and collation."""
        return self.seconds + self.collate_seconds

    @property
    def busy_seconds(self) -> float:
        """Processor time of a scene, s, collation included."""
        return self.cpu_seconds + self.collate_seconds

    @property
    def waiting_seconds(self) -> float:
        """Part of `seconds` in which no processor was needed, s: for a disk, a server, a lock."""
        return max(0.0, self.seconds - self.cpu_seconds)

    @property
    def gil_seconds(self) -> float:
        """Part of `seconds` in which no other thread could read, s: with Python, what holds the GIL."""
        if self.apart_seconds is None:
            return min(self.seconds, self.cpu_seconds)
        least = self._least_apart
        held = min(1.0, max(0.0, (self.apart_seconds / least - 1) / 0.3)) * self.apart_seconds
        return min(held, self.seconds, self.cpu_seconds)

    @property
    def free_seconds(self) -> float:
        """Part of `seconds` that computes without the GIL, s: decompression, large NumPy operations."""
        return max(0.0, self.seconds - self.waiting_seconds - self.gil_seconds)

    @property
    def _least_apart(self) -> float:
        return max(self.total_seconds / self.threads, self.busy_seconds / self.cores, 1e-9)

    @property
    def bound_seconds(self) -> float:
        """Least time from scene to scene with any number of threads, s."""
        if self.apart_seconds is None:
            return max(self.busy_seconds, 1e-9)
        if self.apart_seconds > _RESOLVED * self._least_apart:  # threads were seen to wait for each other
            return self.apart_seconds
        return max(min(self.busy_seconds, self.apart_seconds), 1e-9)

    def predict(self, workers: int, worker_type: str, batch_size: int = 1) -> float:
        """Scenes/s that so many workers are expected to load.

        Args:
            workers: Number of workers; 0 loads in the calling thread.
            worker_type: "thread" or "process".
            batch_size: Scenes in a batch, at least 1.
        """
        if not workers:
            return 1 / max(self.total_seconds, 1e-9)
        least = self.bound_seconds if worker_type == "thread" else self.busy_seconds / min(workers, self.cores)
        apart = max(self.total_seconds / workers, least, _TASK_COST[worker_type] / batch_size, 1e-9)
        return 1 / apart
