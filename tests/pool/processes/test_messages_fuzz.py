"""Broken messages between parent and workers are errors: no process crashes, hangs, or delivers rows never written."""

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_kinds import ProcessLoader

from kerasfeed.errors import KerasfeedError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import DESCRIBE, LOAD, BatchRunner
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.processes.protocol import (
    PIPE_BUF,
    RESULT_BYTES,
    STOP,
    TASK_BYTES,
    Pipes,
    Result,
    Status,
    WorkerStart,
    decode_results,
    decode_task,
    encode_task,
)
from kerasfeed.pool.processes.shared_objects import SharedObjects, Topic
from kerasfeed.pool.processes.stack_dumps import StackDumps
from kerasfeed.pool.processes.worker_process import end_workers, start_worker
from kerasfeed.spec.inference import describe, merge

EXAMPLES = int(100 * float(os.environ.get("KERASFEED_TEST_EXAMPLES", "1")))
integers = st.integers(-(1 << 63), (1 << 63) - 1)


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=3 * TASK_BYTES))
def test_any_bytes_decode_to_a_task_or_raise_value_error(record):
    with suppress(ValueError):
        assert encode_task(*decode_task(record)) == record


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=5 * RESULT_BYTES))
def test_any_bytes_decode_to_results_or_raise_value_error(data):
    with suppress(ValueError):
        assert len(decode_results(data)) * RESULT_BYTES == len(data)


def test_a_record_is_written_whole_by_the_kernel():
    assert max(TASK_BYTES, RESULT_BYTES) <= PIPE_BUF


# ---- to the parent

NUMBER = -7  # replaced by the number of a task in flight
BROKEN_RESULTS = {
    "truncated": b"x" * (RESULT_BYTES - 1),
    "one byte": b"\0",
    "an unknown worker": Result(Status.DONE, NUMBER, 99, 0, 0.1),
    "a worker of negative number": Result(Status.DONE, NUMBER, -1, 0, 0.1),
    "an unknown status": Result(77, NUMBER, 0, 0, 0.1),
    "a failure without a payload": Result(Status.FAILED, NUMBER, 0, 0, 0.0),
    "cancelled though nobody cancelled": Result(Status.CANCELLED, NUMBER, 0, 0, 0.0),
    "a payload that never came": Result(Status.DONE, NUMBER, 0, 1 << 20, 0.1),
    "a payload of negative size": Result(Status.DONE, NUMBER, 0, -5, 0.1),
    "a worker that says it did not start": Result(Status.NOT_STARTED, -1, 0, 0, 0.0),
}
PAYLOADS = {
    "a payload that is no pickle": b"not a pickle",
    "a payload cut short": b"\x80\x05\x95",
    "a payload of another kind": b"\x80\x05K\x07.",  # the integer 7
}


def _loader():
    return ProcessLoader(Job(scenes.Slow(37, 0.03), Plan(37, 8), 1, 1 << 30, 4))


def _await_error_then_continue(loader, futures):
    """Every future ends with the right batch or an error, at least one with an error; then the loader continues."""
    errors = 0
    for step, future in enumerate(futures):
        try:
            points, labels = future.result(timeout=20)
        except KerasfeedError:
            errors += 1
        else:
            expected = np.arange(8 * step, min(37, 8 * step + 8))
            assert labels.tolist() == expected.tolist()
            assert (points[:, 0, 0] == 100 * expected).all()
    assert errors
    with suppress(KerasfeedError):  # the pool may notice its failure only now
        loader.submit(0, 0).result(timeout=20)
    assert loader.submit(0, 2).result(timeout=20)[1].tolist() == list(range(16, 24))
    loader.close()


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", BROKEN_RESULTS)
def test_a_broken_result_is_an_error_and_the_loader_continues(name):
    record = BROKEN_RESULTS[name]
    loader = _loader()
    try:
        pool = loader._ready_session().pool
        futures = [loader.submit(0, step) for step in range(5)]
        if isinstance(record, Result):
            number = max(pool.tasks) if record.number == NUMBER else record.number
            record = record._replace(number=number).encode()
        os.write(pool.pipes.result_in, record)
        _await_error_then_continue(loader, futures)
    finally:
        loader.close()


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_broken_payload_is_an_error_and_the_loader_continues(name):
    loader = _loader()
    pool = loader._ready_session().pool
    futures = [loader.submit(0, step) for step in range(5)]
    payload = PAYLOADS[name]
    pool.workers[0].inbox.extend(payload)
    os.write(pool.pipes.result_in, Result(Status.DONE, max(pool.tasks), 0, len(payload), 0.1).encode())
    _await_error_then_continue(loader, futures)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_random_records_neither_hang_nor_crash_the_parent():
    chance = random.Random(6)
    for _ in range(3):
        loader = _loader()
        pool = loader._ready_session().pool
        futures = [loader.submit(0, step) for step in range(5)]
        for _ in range(20):
            with suppress(OSError):  # the pool has failed and closed it
                os.write(pool.pipes.result_in, chance.randbytes(chance.choice([7, RESULT_BYTES, 3 * RESULT_BYTES])))
        for future in futures:
            with suppress(KerasfeedError):
                future.result(timeout=20)
        loader.close()


# ---- to a worker


class Worker:
    """A real worker process, and the ends of its pipes."""

    def __init__(self):
        self.memory, self.shared_objects, self.pipes = PoolMemory(shared=True), SharedObjects.create(1), Pipes()
        self.stacks = StackDumps()
        sequence = scenes.Clouds()
        layout = Layout(merge([(0, describe(sequence[0]))]), 8, True, (48, 8))
        self.shared_objects.post(Topic.START, WorkerStart(tuple(sys.path), 0, 1, {}))
        self.shared_objects.post(Topic.RUNNER, BatchRunner(Job(sequence, Plan(37, 8), 1, 1 << 30, 4)))
        self.shared_objects.post(Topic.POSTED, layout)
        self.segment_bytes = 2 * layout.nbytes
        _, self.offset = self.memory.grow(self.segment_bytes)
        fds = self.pipes.tasks_out[0], self.pipes.result_in, self.memory.fd, self.shared_objects.fd, self.stacks.fd
        self.handle = start_worker(0, PoolOptions(1, "the test"), fds)
        statuses = []
        while not statuses:
            statuses += [result.status for result in self.pipes.results()]
        assert statuses[-1] == Status.STARTED

    def task(self, kind=LOAD, segment_offset=None, segment_bytes=None, slot_offset=0, start=0, stop=8):
        segment_offset = self.offset if segment_offset is None else segment_offset
        segment_bytes = self.segment_bytes if segment_bytes is None else segment_bytes
        return encode_task(3, 1, (kind, 1, segment_offset, segment_bytes, slot_offset, 0, start, stop))

    def send(self, data):
        os.write(self.pipes.tasks_in[0], data)

    def close(self):
        self.pipes.close_tasks()
        end_workers([self.handle], grace=0.0)
        self.pipes.close()
        self.shared_objects.close()
        self.memory.close()
        self.stacks.close()


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.close()


def _exit_code(worker):
    try:
        return worker.handle.process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        return "it goes on"


BROKEN_TASKS = {
    "truncated": lambda worker: worker.task()[:-1],
    "one byte": lambda worker: b"x",
    "an unknown kind": lambda worker: worker.task(kind=9),
    "a slot beyond the file": lambda worker: worker.task(segment_offset=1 << 30),
    "a segment larger than the file": lambda worker: worker.task(segment_bytes=1 << 40),
    "a segment of negative size": lambda worker: worker.task(segment_bytes=-4096),
    "a segment off the page": lambda worker: worker.task(segment_offset=17),
    "a slot beyond its segment": lambda worker: worker.task(slot_offset=1 << 20),
    "a slot before its segment": lambda worker: worker.task(slot_offset=-8192),
    "random": lambda worker: random.Random(1).randbytes(TASK_BYTES),
}


@pytest.mark.light(where=lambda name: name in ("truncated", "an unknown kind", "a slot beyond its segment"))
@pytest.mark.parametrize("name", BROKEN_TASKS)
def test_a_broken_task_ends_the_worker_with_an_exception(worker, name):
    worker.send(BROKEN_TASKS[name](worker))
    assert _exit_code(worker) == 1


WRONG_TASKS = {
    "an index beyond the sequence": lambda worker: encode_task(3, 1, (DESCRIBE, 1 << 40)),
    "rows beyond the slot": lambda worker: worker.task(start=100, stop=900),
    "rows that end before they begin": lambda worker: worker.task(start=8, stop=2),
    "negative rows": lambda worker: worker.task(start=-5, stop=-1),
}


@pytest.mark.light(where=lambda name: name == "rows beyond the slot")
@pytest.mark.parametrize("name", WRONG_TASKS)
def test_a_wrong_task_is_answered_or_ends_the_worker_cleanly(worker, name):
    worker.send(WRONG_TASKS[name](worker))
    worker.send(encode_task(STOP, 0, ()))
    assert _exit_code(worker) in (0, 1)


def test_a_worker_ignores_data_on_its_link_and_ends_when_it_closes(worker):
    worker.handle.link.send(b"garbage" * 1000)
    worker.send(worker.task())
    assert worker.pipes.results()[0].status == Status.DONE
    worker.handle.link.shutdown(2)
    assert worker.handle.process.wait(timeout=60) == -signal.SIGKILL  # like its process group


def test_the_link_of_a_worker_is_an_anonymous_socket_pair(worker):
    assert worker.handle.link.getsockname() == worker.handle.link.getpeername() == ""
