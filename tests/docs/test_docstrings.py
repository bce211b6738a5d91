"""Every public name has an example in its docstring, and the examples run."""

import doctest
import inspect
import operator
import pkgutil
import types
from functools import cached_property

import numpy as np
import pytest

import kerasfeed as kf

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
ERRORS = [
    f"errors.{name}" for name in vars(kf.errors) if name.endswith(("Error", "Warning")) and name != "WorkerStartError"
]
NAMES = [*(name for name in kf.__all__ if name not in ("__version__", "errors")), *ERRORS]
# Classes of objects that public calls return or hooks receive; users never write these names.
RETURNED = [
    "kerasfeed.adapters.keras.evaluate:MetricDistribution",
    "kerasfeed.adapters.keras.input_monitor:EpochTiming",
    "kerasfeed.explore.describe.describe:Description",
    "kerasfeed.explore.describe.describe:FieldDescription",
    "kerasfeed.feeds.batch_loop:BatchLoop",
    "kerasfeed.feeds.sharding:Shard",
    "kerasfeed.loaders.base:LoaderStats",
    "kerasfeed.loaders.failures.table:FailureTable",
    "kerasfeed.orders.blocks:BlockReport",
    "kerasfeed.orders.bucketed:PaddingReport",
    "kerasfeed.readers.files.sequence:FileStats",
    "kerasfeed.readers.hdf5.dataset:HDF5Dataset",
    "kerasfeed.readers.hdf5.stats:ReadStats",
    "kerasfeed.sequences.context:Worker",
]
# Examples that train a model or start worker processes.
SLOW = {"BackupAndRestore", "FeedCheckpoint", "WorkerDiedError"}


def members_of(name):
    """Public methods and properties of a class, inherited ones too, that kerasfeed defines and that have an example."""
    kind = pkgutil.resolve_name(name)
    for member in dir(kind) if inspect.isclass(kind) else ():
        found = inspect.getattr_static(kind, member, None)
        found = getattr(found, "fget", None) or getattr(found, "func", None) or getattr(found, "__func__", found)
        ours = isinstance(found, types.FunctionType) and found.__module__.startswith("kerasfeed.")
        if ours and (not member.startswith("_") or member in ("__getitem__", "__iter__")):
            yield f"{name}.{member}"


def places():
    """A name and each of its members; inherited ones come once."""
    seen = set()
    for name in [*(f"kerasfeed:{name}" for name in NAMES), *RETURNED]:
        yield name
        for member in members_of(name):
            function = getattr_static(member)
            if function not in seen and ">>>" in (inspect.getdoc(function) or ""):
                seen.add(function)
                yield member


def getattr_static(name):
    kind, _, member = name.rpartition(".")
    found = inspect.getattr_static(pkgutil.resolve_name(kind), member)
    if isinstance(found, property):
        return found.fget
    return found.func if isinstance(found, cached_property) else getattr(found, "__func__", found)


def weight(name):
    return [pytest.mark.heavy] if name.split(":")[1].split(".")[0] in SLOW else []


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    assert "    >>> " in (operator.attrgetter(name)(kf).__doc__ or ""), f"kf.{name} has no example"


PLACES = [pytest.param(name, marks=weight(name), id=name.split(":")[1]) for name in places()]


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras's own, under NumPy 2.4
@pytest.mark.parametrize("name", PLACES)
def test_an_example_does_what_it_says(name, tmp_path, monkeypatch):
    thing = getattr_static(name) if "." in name.split(":")[1] else pkgutil.resolve_name(name)
    text = inspect.getdoc(thing) or ""
    if ".to_torch()" in text:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.chdir(tmp_path)
    space = {"kf": kf, "np": np, "__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(text, space, name.split(":")[1], None, 0)
    told = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.append)
    assert result.failed == 0, "".join(told)
