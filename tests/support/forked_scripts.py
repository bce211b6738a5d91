"""Run scripts like `python -X faulthandler script.py`, but with Keras and TensorFlow imported already.

A separate process imports both once, which takes 3 s, and forks for each script. Neither has started a Python thread or
a session by then. It does not import kerasfeed. Each script has its own arguments, folder and `__main__`.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a script ended: its exit status (negative: the signal), and its output."""

    returncode: int
    stdout: str
    stderr: str


class ForkedScripts:
    """The process that forks. `close` ends it.

    Args:
        environment: Environment of every script.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._outputs = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", __file__], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def run(self, script: Path, folder: Path, *arguments: str, seconds: float) -> Ended:
        """Run a script in a folder. If it takes longer than `seconds`, kill it and raise TimeoutError."""
        output, errors = Path(self._outputs.name, "stdout"), Path(self._outputs.name, "stderr")
        request = [str(folder), [str(script), *arguments], [os.devnull, str(output), str(errors)]]
        self._process.stdin.write(json.dumps(request) + "\n")
        pid = int(self._process.stdout.readline())
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            os.kill(pid, signal.SIGKILL)
            self._process.stdout.readline()
            raise TimeoutError(f"{script.name} runs for more than {seconds:g} s:\n{errors.read_text()[-4000:]}")
        status = int(self._process.stdout.readline())
        return Ended(status, output.read_text(), errors.read_text())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._outputs.cleanup()


def _become(folder, command, files):
    """Turn this process into one that begins a script: in a folder, with its name, arguments and standard files.

    Returns:
        The code to run, and the namespace of `__main__`.
    """
    for stream, path in enumerate(files):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(folder)
    script = command[0]
    sys.argv[:], sys.path[0] = command, str(Path(script).parent)
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    return compile(Path(script).read_text(), script, "exec"), vars(main)


def _serve():
    """Fork for each line of standard input. Returns only in a child, with the script to run."""
    while line := sys.stdin.readline():
        if (pid := os.fork()) == 0:
            return _become(*json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    import lean_keras  # noqa: F401

    del sys.modules["lean_keras"]  # not a module of the script
    if "MPLBACKEND" in os.environ:  # scripts that set it draw
        import matplotlib.pyplot  # noqa: F401
    gc.collect()
    gc.freeze()  # the collector of a script must not visit the million objects of the frameworks, and copy their pages
    served = _serve()
    if served is not None:
        exec(*served)
