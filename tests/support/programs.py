"""Run programs as a user does, and find processes and memory that they leave."""

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import places
import psutil
from waits import PROGRAM_SECONDS, wait_until

ROOT = str(places.ROOT)
TESTS = str(places.SUPPORT)


def launch(folder, code, **options):
    """Start a program from a file in `folder`; its temporary files go to `folder/tmp`."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(code))
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT}:{TESTS}", "KERAS_BACKEND": "jax", "TMPDIR": str(folder / "tmp"),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder, **options,
    )  # fmt: skip


def finish(program):
    """Wait for a program; return its stdout. It must end by itself, successfully, without output on stderr."""
    try:
        stdout, stderr = program.communicate(timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        raise AssertionError(f"hung after {PROGRAM_SECONDS:g} s, or left a process that holds its stdout") from None
    assert program.returncode == 0, stderr
    assert "Traceback" not in stderr, stderr
    return stdout


def alive(pid):
    """Whether a process is running."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_gone(pids):
    """Fail unless the processes end."""
    wait_until(lambda: not any(map(alive, pids)))


def memory_files(pid):
    """(device, inode) of the memory files of kerasfeed that a process holds open or mapped."""
    found = set()
    for kind in ("fd", "map_files"):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/{kind}").iterdir():
                with contextlib.suppress(OSError):
                    if "memfd:kerasfeed" in str(link.readlink()):
                        status = link.stat()
                        found.add((status.st_dev, status.st_ino))
    return found


def holders(files):
    """Process ids that hold one of these memory files."""
    return [pid for pid in psutil.pids() if memory_files(pid) & files]
