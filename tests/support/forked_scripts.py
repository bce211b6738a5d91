"""Runs scripts as `python -X faulthandler script.py` would, but that Keras and TensorFlow are imported already.

A process of its own imports both once, which takes 4 s, and forks for each script; neither has a thread of Python or a
session by then. Nothing of kerasfeed is imported in it, and a script's folder is the only one that it has of its own.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a script ended: its exit status (negative: the signal), and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class ForkedScripts:
    """The process that forks. `close` ends it.

    Args:
        environment: Of every script.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", __file__], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def run(self, script: Path, seconds: float) -> Ended:
        """Run a script in its folder; what takes longer than `seconds` is killed, and a `TimeoutError`."""
        output, errors = script.with_suffix(".stdout"), script.with_suffix(".stderr")
        self._process.stdin.write(json.dumps([str(script), str(output), str(errors)]) + "\n")
        pid = int(self._process.stdout.readline())
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"{script.name} runs for more than {seconds:g} s:\n{errors.read_text()[-4000:]}")
        status = int(self._process.stdout.readline())
        return Ended(status, output.read_text(), errors.read_text())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _become(script, output, errors):
    """Make of this process one that begins to run a script; what it runs then."""
    for stream, path in enumerate((os.devnull, output, errors)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(Path(script).parent)
    sys.argv[:], sys.path[0] = [Path(script).name], str(Path(script).parent)
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    return compile(Path(script).read_text(), script, "exec"), vars(main)


def _serve():
    """Fork for each line of standard input; what the child, to which alone this returns, is to run."""
    while line := sys.stdin.readline():
        if (pid := os.fork()) == 0:
            return _become(*json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    gc.collect()
    gc.freeze()  # no script's collector has to look at the million objects of the frameworks, and copy their pages
    served = _serve()
    if served is not None:
        exec(*served)
