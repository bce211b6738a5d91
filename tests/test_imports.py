"""The house: who may import whom, and what `import kerasfeed` costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from waits import PROGRAM_SECONDS

import kerasfeed

PACKAGE = Path(kerasfeed.__file__).parent
# Rooms by layer, lowest first; a room may import rooms of its own layer or below.
LAYERS = [
    {"_version", "atomic", "costs", "error_text", "errors", "evaluation", "exact_text", "failures", "html", "identity"}
    | {"integers", "lists", "machine", "notices", "opened", "patience", "spec", "taking"},
    {"context", "cut", "field_of", "gather", "global_random", "parts", "permute", "picks", "scene"}
    | {"order", "order_blocks", "order_bucketed", "order_custom", "order_drawn", "order_named", "order_tables"}
    | {"forward", "frames", "views", "mixture", "splitting", "cached", "cache_files", "cache_key", "cache_state"},
    {"plan", "collate", "forms"},
    {"loaders"},
    {"adapters", "arguments", "files", "inspect", "readers", "records", "streams"},
    {"batch_stream", "callbacks", "checkpoint", "epochs", "feed", "feed_text", "keras_side", "labels"}
    | {"feed_run", "keras_adapter", "keras_dataset", "keras_run", "keras_steps", "lookahead"}
    | {"evaluating", "reproduce", "shards", "shared_taking", "shuffle_cost", "state", "stream", "summary", "trainer"}
    | {"feed_taking", "indexable", "queue_feed", "stream_feed", "stream_side", "stream_taking"}
    | {"training_records", "backup"},
    {"demo", "cli", "__main__"},
]
FRAMEWORKS = {"tensorflow", "jax", "torch", "keras", "h5py", "matplotlib"}
# Where each framework may be imported at all.
ALLOWED = {
    "tensorflow": {
        "adapters/events.py",
        "adapters/tf_data.py",
        "adapters/tf_dataset.py",
        "adapters/tf_records.py",
    },
    "jax": {"adapters/jax.py"},
    "torch": {"adapters/torch.py"},
    "keras": {
        "keras_adapter.py",
        "feed.py",
        "callbacks.py",
        "checkpoint.py",
        "evaluating.py",
        "summary.py",
        "demo/model.py",
        "demo/run.py",
    },
    "h5py": {
        "readers/hdf5.py",
        "readers/rechunk.py",
        "readers/h5copy.py",
        "readers/h5filters.py",
        "readers/layout.py",
        "readers/registry.py",
        "readers/small.py",
        "readers/describe.py",
        "records/columns.py",
        "records/write_hdf5.py",
        "demo/data.py",
        "demo/shapes.py",
    },
    "matplotlib": {"inspect/picture.py"},
}


def _layer(room: str) -> int:
    return next(number for number, rooms in enumerate(LAYERS) if room in rooms)


def _imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in ast.walk(node):
                child.in_type_checking = True
        if getattr(node, "in_type_checking", False):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_of_its_layer_or_below(path):
    own = _layer(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "kerasfeed" and len(parts) > 1:
            room = parts[1]
            if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file():
                below = _layer(room) <= own or (path.name == "feed.py" and room == "adapters")
                assert below, f"{path.name} (layer {own}) imports {name} (layer {_layer(room)})"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_framework_is_imported_only_in_its_own_room(path):
    where = path.relative_to(PACKAGE).as_posix()
    for name in _imports(path):
        framework = name.split(".")[0]
        if framework in FRAMEWORKS:
            assert where in ALLOWED[framework], f"{where} imports {framework}"


def test_no_two_modules_import_each_other():
    graph = {}
    for path in MODULES:
        name = "kerasfeed." + path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        name = name.removesuffix(".__init__")
        graph[name] = {found for found in _imports(path) if found.startswith("kerasfeed.")}
    reached = {name: set(targets) & graph.keys() for name, targets in graph.items()}
    for _ in graph:
        for targets in reached.values():
            targets |= set().union(*(reached[target] for target in targets))
    assert not [name for name, targets in reached.items() if name in targets]


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PROGRAM_SECONDS
    )
    return set(output.stdout.split())


def test_importing_kerasfeed_loads_no_framework_and_not_even_numpy():
    loaded = _loaded_by("import kerasfeed")
    assert not loaded & (FRAMEWORKS | {"numpy", "optree"})


def test_what_a_worker_imports_loads_no_framework():
    loaded = _loaded_by("import kerasfeed.loaders.worker, kerasfeed.field_of; from kerasfeed import SceneSequence")
    assert not loaded & FRAMEWORKS


def test_every_public_name_resolves():
    for name in kerasfeed.__all__:
        assert getattr(kerasfeed, name) is not None
    assert set(kerasfeed.__all__) <= set(dir(kerasfeed))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Fed'"):
        _ = kerasfeed.Fed
