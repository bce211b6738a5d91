"""The package sets no attribute, method, class or module of another library."""

import ast
from pathlib import Path

import pytest

import kerasfeed

PACKAGE = Path(kerasfeed.__file__).parent
LIBRARIES = {"keras", "tf", "tensorflow", "jax", "torch", "h5py", "np", "numpy", "sys", "os", "threading", "subprocess"}
# Names under which objects of Keras and TensorFlow are known in the package.
OBJECTS = {"adapter", "data_adapter", "epoch_iterator", "iterator", "model", "optimizer", "trainer"}
# Attributes that libraries allow to set: Keras's switch that ends a training, attributes that `compile` sets and drops
# (both restored), and options of tf.data.
OFFERED = {"stop_training", "steps_per_execution", "test_function", "enabled", "auto_shard_policy"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def _chain(node):
    """The names of `a.b.c`, from the outermost; none if it is something else."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _written(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            for target in targets:
                for each in ast.walk(target):
                    if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store | ast.Del):
                        yield node.lineno, _chain(each)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield node.lineno, [*_chain(node.args[0]), ast.unparse(node.args[1])]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_attribute_of_another_library_is_set(path):
    found = []
    for line, names in _written(ast.parse(path.read_text())):
        of_a_library = names and names[0] in LIBRARIES
        of_an_object = any(name in OBJECTS for name in names[:-1])
        if (of_a_library or of_an_object) and names[-1] not in OFFERED:
            found.append((line, ".".join(names)))
    assert not found


def test_the_scan_detects_every_way_of_setting_an_attribute():
    text = "model._a = 1\nsetattr(iterator, 'b', 2)\nself.model.c.d += 1\ndel keras.x\nkeras.y: int = 1\na, tf.z = 1, 2"
    names = [".".join(names) for _, names in _written(ast.parse(text))]
    assert sorted(names) == sorted(["model._a", "iterator.'b'", "self.model.c.d", "keras.x", "keras.y", "tf.z"])
