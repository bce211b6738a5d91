"""Digests of functions and values: equal in every process, different where it matters."""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
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


PROGRAM = """
import test_identity as t
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
    ]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)
    assert [digest(value) for value in values] == [digest(value) for value in values]
    assert digest("a", "b") != digest("ab")


def test_what_holds_itself_has_a_digest():
    loop = []
    loop.append(loop)
    assert digest(loop) == digest(loop)

    def recursive(depth):
        return depth and recursive(depth - 1)

    assert digest(recursive) == digest(recursive)


def test_a_callable_is_called_by_its_name_or_its_classs():
    assert name_of(len) == "len"
    assert name_of(Caller(1)) == "Caller"
    assert name_of(functools.partial(len)) == "len"
