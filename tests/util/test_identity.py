"""Digests of functions and values: equal in every process, different for any relevant change."""

import copy
import functools
import re
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from programs import ROOT, TESTS
from waits import PROGRAM_SECONDS

from kerasfeed.util.fingerprint import digest, name_of


class Caller:
    def __init__(self, step):
        self.step = step

    def __call__(self, length, seed, epoch):
        return range(0, length, self.step)

    def method(self, length, seed, epoch):
        return {"some", "words", "in", "a", "set"}, self.step


class Text(str):
    """Text with room for attributes."""


class Deque(deque):
    """A C object with room for attributes."""


PROGRAM = """
import test_identity as t
print(t.digest({t.Caller(1), t.Caller(2), t.Caller(3)}))
print(t.digest(t.Caller(2), t.Caller(3).method, {"a", "b", "c"}, lambda x: x in {"p", "q", "r"}, t.np.arange(3)))
"""


def test_a_digest_is_the_same_in_another_process():
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=PROGRAM_SECONDS,
            env={"PYTHONPATH": f"{ROOT}:{TESTS}:{Path(__file__).parent}", "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_values_that_differ_have_digests_that_differ():
    values = [
        None, 0, False, 0.0, "0", b"0", [0], (0, 0), {0: 0}, {0}, np.zeros(1), np.zeros(1, np.int8), np.zeros((1, 1)),
        np.array(["0"], object), np.float32(0), Caller(1), Caller(2), Caller(1).method, Caller(2).method, Caller, len,
        lambda: 0, lambda: 1, lambda x=0: 0, functools.partial(max, 1), functools.partial(max, 2), np,
        Text("0"), Text("1"), Deque([0]), Deque([1]),
    ]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)
    assert [digest(value) for value in values] == [digest(value) for value in values]
    assert digest("a", "b") != digest("ab")


Pair = namedtuple("Pair", "one other")


@dataclass(slots=True)
class Slotted:
    value: int


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (range(3), range(5)), (Pair(1, 2), Pair(1, 3)), (Slotted(1), Slotted(2)), (Path("a"), Path("b")),
        (date(2020, 1, 1), date(2021, 1, 1)), (Fraction(1, 2), Fraction(1, 3)), (re.compile("a"), re.compile("b")),
        (defaultdict(int, a=1), defaultdict(int, a=2)), (OrderedDict(a=1), OrderedDict(a=2)),
        (deque([1]), deque([2])), (slice(1), slice(2)), (bytearray(b"a"), bytearray(b"b")),
    ],
)  # fmt: skip
def test_objects_without_attributes_differ_by_their_content(one, other):
    assert digest(one) == digest(copy.deepcopy(one)) != digest(other)
    enclosing = [lambda each=each: each for each in (one, other)]
    assert digest(enclosing[0]) != digest(enclosing[1])


def test_equal_values_have_equal_digests_shared_or_not():
    part = [Caller(1), {"a": (1, 2)}]
    assert digest([part, part]) == digest([part, [Caller(1), {"a": (1, 2)}]])
    deep = part
    for _ in range(60):  # as many paths as 2**60
        deep = [deep, deep]
    assert digest(deep) == digest(deep)


def test_unpicklable_objects_have_a_digest():
    assert digest(Caller(each for each in "ab")) == digest(Caller(each for each in "ab")) != digest(Caller(1))


def test_padding_bytes_do_not_affect_a_digest():
    padded = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    for dtype in (padded, np.dtype(np.longdouble), np.dtype(np.clongdouble)):
        one, other = np.zeros(3, dtype), np.frombuffer(bytearray(b"\xff" * 3 * dtype.itemsize), dtype).copy()
        for name in dtype.names or ():
            other[name] = 0
        if dtype.names is None:
            other[...] = 0
        assert digest(one) == digest(other)


def test_self_referencing_objects_have_a_digest():
    loop = []
    loop.append(loop)
    assert digest(loop) == digest(loop)

    def recursive(depth):
        return depth and recursive(depth - 1)

    assert digest(recursive) == digest(recursive)


def test_name_of_returns_the_name_of_a_callable_or_of_its_class():
    assert name_of(len) == "len"
    assert name_of(Caller(1)) == "Caller"
    assert name_of(functools.partial(len)) == "len"


def test_tables_and_tensors_in_memory_differ_by_their_values():
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")

    def digests(first):
        table = pandas.DataFrame({"a": [first, 2]})
        tensor = torch.tensor([first, 2.0])
        values = table, table.rename(columns={"a": "b"}), table["a"], tensor, lambda: (table, tensor)
        return [digest(value) for value in values]

    assert digests(1) == digests(1)
    assert len({*digests(1), *digests(3)}) == 10
    assert digest(torch.ones(2, requires_grad=True)) == digest(torch.ones(2, requires_grad=True))
