"""Run the tests that meet other libraries with other versions of Python, Keras, TensorFlow, NumPy and h5py.

    python .ci/versions.py             # every environment
    python .ci/versions.py lowest newest
    python .ci/versions.py --list
    python .ci/versions.py --table     # for docs/understand/versions.md

uv (`pip install uv`) makes each environment in a temporary folder, with an interpreter that uv or pyenv has. If there
is none of the wanted Python version, the environment is skipped, and a line reports it.
"""

import argparse
import configparser
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The tests that call Keras, TensorFlow, NumPy and h5py. The others do not depend on the versions of these.
RIM = [
    "-m", "not heavy or versions", "tests/adapters", "tests/feeds/test_labels.py", "tests/loaders/test_zero_copy.py",
    "tests/readers/hdf5/test_hdf5_direct.py", "tests/readers/hdf5/test_hdf5_file.py",
    "tests/readers/hdf5/test_hdf5_indexes.py", "tests/readers/hdf5/test_hdf5_refusals.py", "tests/spec/test_spec.py",
    "--ignore=tests/adapters/keras/test_on_jax.py", "--ignore=tests/adapters/keras/test_on_torch.py",
    "--ignore=tests/adapters/test_without_tensorflow.py",
    "--ignore=tests/adapters/keras/test_keras_versions.py",  # needs the newest Keras
]  # fmt: skip
# Without TensorFlow: training and loops on JAX, and HDF5 with an h5py that TensorFlow's requirements exclude.
WITHOUT_TENSORFLOW = [
    "-m", "heavy or not heavy", "tests/adapters/test_without_tensorflow.py", "tests/adapters/keras/test_keras_fit.py",
    "tests/adapters/jax", "tests/readers/hdf5/test_hdf5_direct.py", "tests/readers/hdf5/test_hdf5_file.py",
    "tests/readers/hdf5/test_hdf5_indexes.py", "tests/readers/hdf5/test_hdf5_refusals.py",
]  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """One set of versions.

    Attributes:
        name: Its name on the command line.
        python: Version of Python, "3.11".
        pins: Requirements that are not in setup.cfg.
        floors: Whether to install the lower bounds of `install_requires` and of TensorFlow in setup.cfg.
        tensorflow: Whether TensorFlow is installed; without it, Keras runs on JAX.
        nightly: Whether Keras is `keras-nightly`, and not a release.
    """

    name: str
    python: str
    pins: tuple[str, ...] = ()
    floors: bool = False
    tensorflow: bool = True
    nightly: bool = False

    def versions(self) -> list[str]:
        """The versions, such as "keras==3.10.*"; the newest of each package that is not named."""
        return [*self.pins, *(_floors() if self.floors else []), *(["keras-nightly"] if self.nightly else [])]

    def requirements(self) -> list[str]:
        """The requirements of the tests, and the versions."""
        tests = [each for each in _required("test") if self.tensorflow or not each.startswith("tensorflow")]
        return [*tests, *self.pins, *(_floors() if self.floors else [])]


ENVIRONMENTS = [
    Environment("lowest", "3.11", floors=True),
    Environment("keras-3.10", "3.11", ("keras==3.10.*", "tensorflow==2.18.*", "numpy==1.26.*", "h5py==3.11.*")),
    Environment("keras-3.11", "3.11", ("keras==3.11.*", "tensorflow==2.19.*")),
    Environment("keras-3.12", "3.12", ("keras==3.12.*", "tensorflow==2.20.*")),
    Environment("keras-3.13", "3.12", ("keras==3.13.*",)),
    Environment("keras-3.14", "3.12", ("keras==3.14.*",)),
    Environment("newest", "3.13"),
    Environment("tensorflow-rc", "3.13", ("tensorflow==2.22.0rc0",)),
    Environment("keras-nightly", "3.11", nightly=True),
    Environment("no-tensorflow", "3.11", ("h5py==3.16.*",), tensorflow=False),
]


def _required(extra: str = "") -> list[str]:
    """The requirements in setup.cfg of kerasfeed itself, or of an extra."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return (setup["options.extras_require"][extra] if extra else setup["options"]["install_requires"]).split()


def _floors() -> list[str]:
    """Every `name>=version` that kerasfeed and its extras tfrecord and tensorflow require, as `name==version`."""
    required = [*_required(), *_required("tfrecord"), *_required("tensorflow")]
    found = [re.fullmatch(r"([\w.-]+)>=([\w.]+)", each) for each in required]
    return [f"{match[1]}=={match[2]}" for match in found if match is not None]


def _interpreter(python: str) -> str | None:
    """Path of an interpreter of this version that uv or pyenv has; None if there is none."""
    find = [sys.executable, "-m", "uv", "python", "find", "--no-python-downloads", python]
    found = subprocess.run(find, capture_output=True, text=True).stdout.strip()
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    return found or next(map(str, sorted(root.glob(f"versions/{python}.*/bin/python3"), reverse=True)), None)


def make(environment: Environment, folder: Path) -> str | None:
    """Make the environment.

    Returns:
        Its interpreter; None if there is none of its version.
    """
    interpreter = _interpreter(environment.python)
    if interpreter is None:
        return None
    home = folder / environment.name
    python = str(home / "bin" / "python")
    subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", interpreter, str(home)], check=True)
    # --refresh-package: uv compares only setup.cfg, and would install an earlier build.
    install = ["--refresh-package", "kerasfeed", "--index-strategy", "unsafe-best-match", "--quiet", str(ROOT)]
    if "PYTHONDONTWRITEBYTECODE" in os.environ:  # else every process of the tests compiles TensorFlow again
        install.append("--compile-bytecode")  # takes 27 s of a core
    install += environment.requirements()
    uv = [sys.executable, "-m", "uv", "pip"]
    subprocess.run([*uv, "install", "--python", python, *install], check=True)
    if environment.nightly:  # both packages install the folder `keras`
        subprocess.run([*uv, "uninstall", "--quiet", "--python", python, "keras"], check=True)
        nightly = ["--no-deps", "--prerelease", "allow", "--index-strategy", "unsafe-best-match", "keras-nightly"]
        subprocess.run([*uv, "install", "--quiet", "--python", python, *nightly], check=True)
    return python


def run(environment: Environment, python: str | None, processes: int) -> bool | None:
    """Run the tests in an environment that `make` has made.

    Returns:
        Whether they passed; None if there is no interpreter of its version.
    """
    if python is None:
        print(f"{environment.name}: skipped, no Python {environment.python} was found", flush=True)
        return None
    names = "keras, tensorflow, numpy, h5py" if environment.tensorflow else "keras, jax, numpy, h5py"
    shown = f"import sys, {names}; print(*('%s %s' % (m.__name__, m.__version__)"
    shown += f" for m in ({names})), 'python %d.%d.%d' % sys.version_info[:3], sep=', ')"
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    rim = RIM
    if not environment.tensorflow:
        rim, quiet["KERAS_BACKEND"] = WITHOUT_TENSORFLOW, "jax"
    print(f"{environment.name}: ", end="", flush=True)
    subprocess.run([python, "-c", shown], check=True, env=quiet)
    started = time.monotonic()
    tests = [python, "-m", "pytest", "-q", "-n", str(processes), "--dist", "loadfile", "-p", "no:cacheprovider", *rim]
    passed = subprocess.run(tests, cwd=ROOT, env=quiet).returncode == 0
    print(f"{environment.name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - started:.0f} s", flush=True)
    return passed


def _table() -> str:
    """The environments as a table of Markdown."""
    rows = ["| environment | Python | versions |", "|---|---|---|"]
    for each in ENVIRONMENTS:
        found = ", ".join(pin.replace("==", " ") for pin in each.versions()).replace(".*", "") or "the newest"
        rows.append(f"| `{each.name}` | {each.python} | {found}{'' if each.tensorflow else ', without TensorFlow'} |")
    return "\n".join(rows)


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [environment.name for environment in ENVIRONMENTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which environments: {', '.join(names)}")
    parser.add_argument("--list", action="store_true", help="print them and what they pin")
    parser.add_argument("--table", action="store_true", help="print them as a table of Markdown")
    parser.add_argument("-n", type=int, default=os.cpu_count() or 1, help="test processes")
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no environment is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    wanted = [environment for environment in ENVIRONMENTS if not given.names or environment.name in given.names]
    if given.list:
        for environment in wanted:
            print(f"{environment.name}: Python {environment.python}", *environment.versions())
        return 0
    if given.table:
        print(_table())
        return 0
    # Make the next environment while the tests run in one.
    with tempfile.TemporaryDirectory(prefix="kerasfeed-versions-") as folder, ThreadPoolExecutor(1) as maker:
        made = [maker.submit(make, environment, Path(folder)) for environment in wanted]
        outcomes = {one.name: run(one, at.result(), given.n) for one, at in zip(wanted, made, strict=True)}
    failed = [name for name, passed in outcomes.items() if passed is False]
    print("failed: " + ", ".join(failed) if failed else "all that ran passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
