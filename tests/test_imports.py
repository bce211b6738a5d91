"""The structure of the package: allowed imports, and the cost of `import kerasfeed`."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from waits import PROGRAM_SECONDS

import kerasfeed

PACKAGE = Path(kerasfeed.__file__).parent
GUIDE = PACKAGE.parent / "docs" / "inside" / "index.md"
FRAMEWORKS = {"tensorflow", "jax", "torch", "keras", "h5py", "matplotlib", "ray"}
# Folders and files that may import each framework.
ALLOWED = {
    "tensorflow": ("adapters/tensorflow/",),
    "jax": ("adapters/jax/",),
    "torch": ("adapters/torch/",),
    "keras": ("adapters/keras/", "demo/"),
    "h5py": ("readers/hdf5/", "writers/hdf5/", "demo/"),
    "matplotlib": ("explore/show/scene_picture.py",),
    "ray": ("loaders/hosts/ray_hosts.py",),
}
MODULES = sorted(PACKAGE.rglob("*.py"))
PACKAGES = sorted(path.parent for path in MODULES if path.name == "__init__.py" and path.parent != PACKAGE)
TOP = [
    "errors", "util", "spec", "orders", "sequences", "pool", "readers", "loaders", "writers", "feeds", "adapters",
    "explore",
]  # fmt: skip
RIM = ["demo", "cli"]  # packages that use the others like users


def _where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _docstring(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""


def _may_import(package: Path) -> list[str] | None:
    """The packages that a package may import; None if its parent package lists them."""
    said = re.search(r"May import: ([^.]*)\.", _docstring(package))
    return None if said is None else [name.strip() for name in said[1].split(",")]


@cache
def _imports(path: Path, *, types: bool):
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in ast.walk(node):
                child.in_type_checking = True
        if getattr(node, "in_type_checking", False):
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


@pytest.mark.parametrize("path", MODULES, ids=_where)
def test_a_module_imports_only_allowed_packages(path):
    own = path.relative_to(PACKAGE).parts[0]
    if own in ("__init__.py", "__main__.py", *RIM):
        return  # the rim: users' actions
    if own == "errors.py":
        allowed = ["errors"]
    else:
        said = _may_import(PACKAGE / own)
        assert said is not None, f'the docstring of kerasfeed/{own}/__init__.py has no line "May import: ..."'
        allowed = [own, *said]
    for name in _imports(path, types=True):
        parts = name.split(".")
        if parts[0] == "kerasfeed" and len(parts) > 1 and (PACKAGE / parts[1]).with_suffix("").name in TOP:
            assert parts[1] in allowed, f"{_where(path)} imports {name}"


def test_the_allowed_imports_of_packages_have_no_cycle():
    said = {package: _may_import(PACKAGE / package) or [] for package in TOP if package != "errors"}
    for package, names in said.items():
        assert set(names) <= set(TOP[: TOP.index(package)]), f"{package} may import what stands above it: {names}"
    assert {path.name for path in PACKAGES if path.parent == PACKAGE} == {*said, *RIM}


@pytest.mark.parametrize("package", PACKAGES, ids=_where)
def test_an_init_file_contains_only_a_docstring(package):
    parsed = ast.parse((package / "__init__.py").read_text())
    assert len(_docstring(package)) > 10
    assert len(parsed.body) == 1, "its modules are imported where they are"


@pytest.mark.parametrize("path", MODULES, ids=_where)
def test_a_framework_is_imported_only_in_its_allowed_modules(path):
    for name in _imports(path, types=False):
        framework = name.split(".")[0]
        if framework in FRAMEWORKS:
            assert _where(path).startswith(ALLOWED[framework]), f"{_where(path)} imports {framework}"


def test_modules_have_no_import_cycle_even_for_types():
    graph = {}
    for path in MODULES:
        name = "kerasfeed." + path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        name = name.removesuffix(".__init__")
        graph[name] = {found for found in _imports(path, types=True) if found.startswith("kerasfeed.")}
    reached = {name: set(targets) & graph.keys() for name, targets in graph.items()}
    for _ in graph:
        for targets in reached.values():
            targets |= set().union(*(reached[target] for target in targets))
    assert not [name for name, targets in reached.items() if name in targets]


def test_the_package_table_in_the_guide_matches_the_docstrings():
    rows = ["| package | content | may import |", "|---|---|---|"]
    for package in sorted(PACKAGES, key=lambda path: ([*TOP, *RIM].index(path.relative_to(PACKAGE).parts[0]), path)):
        text = " ".join(re.sub(r"May import: [^.]*\.", "", _docstring(package)).split())
        names = _may_import(package)
        rows.append(f"| `{_where(package)}/` | {text} | {'' if names is None else ', '.join(names)} |")
    expected = "\n".join(rows)
    assert expected in GUIDE.read_text(), f"docs/inside/index.md lacks this table:\n{expected}"


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PROGRAM_SECONDS
    )
    return set(output.stdout.split())


def test_importing_kerasfeed_loads_no_framework_and_not_even_numpy():
    loaded = _loaded_by("import kerasfeed")
    assert not loaded & (FRAMEWORKS | {"numpy", "optree"})


def test_the_imports_of_a_worker_load_no_framework():
    loaded = _loaded_by(
        "import kerasfeed.pool.processes.worker, kerasfeed.sequences.split; from kerasfeed import SceneSequence"
    )
    assert not loaded & FRAMEWORKS


LOADS = """
import sys, numpy as np, kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
is_there_anyway = "numpy.ma" in sys.modules

class Rooms(kf.SceneSequence):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return np.zeros(3), [1.0, 2.0], np.float32(index), "text", "numpy.ma" in sys.modules

with BaseFeed(Rooms(), 4, workers=1, worker_type="process") as feed:
    print([bool(loaded.any()) > is_there_anyway for *_, loaded in feed])
"""


def test_a_worker_does_not_import_masked_arrays_for_scenes_without_masks():
    done = subprocess.run(
        [sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
    )
    assert (done.stdout, done.stderr) == ("[False, False]\n", "")


WITHOUT_KERAS = """
import sys, tempfile, numpy as np, kerasfeed as kf
from pathlib import Path
from kerasfeed.feeds.base import BaseFeed
folder = Path(tempfile.mkdtemp())
scenes = [(np.full(3, n, np.float32), np.int32(n % 2)) for n in range(8)]
with BaseFeed(kf.Cached(scenes), 4, workers=2, worker_type="thread") as feed:
    assert [len(y) for _, y in feed] == [4, 4] and len(feed[1][0]) == 4
    assert feed.get_state()["epoch"] == 1
    assert kf.load(feed, epoch=0, step=1)[0].tolist() == feed[1][0].tolist()
assert kf.labels_of(scenes, 1, workers=1, progress=False).tolist() == [0, 1] * 4
kf.write_hdf5(scenes, folder / "a.h5", workers=1, progress=False)
assert len(kf.HDF5Scenes(folder / "a.h5")) == 8
kf.write_tfrecords(scenes, folder / "{shard}.tfrecord", num_shards=2, workers=1, progress=False)
assert len(kf.TFRecordSequence(folder / "*.tfrecord")) == 8
print(sorted({"keras", "tensorflow", "jax", "torch"} & set(sys.modules)))
"""


def test_features_that_work_without_keras_do_not_import_it():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS], capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_public_name_resolves():
    for name in kerasfeed.__all__:
        assert getattr(kerasfeed, name) is not None
    assert set(kerasfeed.__all__) <= set(dir(kerasfeed))


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Fed'"):
        _ = kerasfeed.Fed
