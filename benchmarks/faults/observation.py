"""The observations of a case, and their words.

Invariant: pure functions. A library gets good words only for batches that came with the right values.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from benchmarks.faults.catalog import Fault

Ending = Literal["end", "raised", "hung", "died", "killed", "unavailable", "missing"]
SLOW_EXIT = 10.0
"""Seconds above which the time to close and end the program is mentioned."""


@dataclass(frozen=True)
class Observation:
    """The observations of one case.

    Attributes:
        ending: How it ended: all batches came ("end"), the consumer caught an exception ("raised"), no batch came for
            too long ("hung"), the program ended without either ("died"), the harness killed it as the fault requires
            ("killed"), the library lacks the feature ("unavailable") or is not installed ("missing").
        labels: Indices of the scenes that came, in order.
        wrong: Number of scenes with wrong values.
        damaged: Number of scenes that changed while the consumer kept them.
        error: Type of the exception, or how the program died, such as "SIGSEGV".
        message: First line of the exception's message.
        names_scene: Whether the exception or its traceback names the faulty scene.
        warned: Types of the warnings shown, in order; with "+" if they name the faulty scene.
        patience: Seconds without a batch after which the case counted as hung.
        exit: How the program ended afterwards: "" for a clean end, "hung", or how the program died, such as "SIGSEGV".
        exit_seconds: From the consumer's last batch or exception to the end of the program; None if it was killed.
        left: Number of its processes that lived 2 s after the program, or after the consumer's early stop.
        files: Files in /dev/shm that were left.
        kills: Workers killed from outside.
        grown_mb: Growth of the process tree's memory since its first batch in megabytes, if it was watched.
        last_words: Last line that the program wrote to standard error.
    """

    ending: Ending
    labels: tuple[int, ...] = ()
    wrong: int = 0
    damaged: int = 0
    error: str = ""
    message: str = ""
    names_scene: bool = False
    warned: tuple[str, ...] = ()
    patience: float = 0.0
    exit: str = ""
    exit_seconds: float | None = None
    left: int = 0
    files: int = 0
    kills: int = 0
    grown_mb: float | None = None
    last_words: str = ""


def words(seen: Observation, fault: Fault, replaces: bool = False) -> str:
    """The result of a case, in the few words of a table's cell.

    Args:
        seen: The observations.
        fault: The fault.
        replaces: Whether the library was asked to replace a failing scene by another scene.
    """
    parts = [_outcome(seen, fault, replaces), *_damage(seen)]
    if seen.ending not in ("unavailable", "missing"):
        parts += _aftermath(seen, fault)
    return ", ".join(part for part in parts if part)


def _outcome(seen: Observation, fault: Fault, replaces: bool) -> str:
    if seen.ending == "unavailable":
        return "not available"
    if seen.ending == "missing":
        return "not installed"
    if seen.ending == "killed":
        return "" if seen.left or seen.files else "nothing is left"
    if seen.ending == "died":
        return f"**the program dies** ({seen.error})"
    if seen.ending == "hung":
        return "**hangs**" + _warning(seen, fault)
    if seen.ending == "raised":
        return f"raises `{seen.error}`" + (_naming(seen.names_scene) if fault.names_scene else "")
    if fault.consumer == "breaks":
        return "" if seen.left or seen.exit or _slow(seen) else "nothing is left"
    return _count(seen, fault, replaces)


def _naming(names_scene: bool) -> str:
    return " naming the scene" if names_scene else ""


def _warning(seen: Observation, fault: Fault) -> str:
    if not seen.warned:
        return ""
    return ", warns" + (_naming(any(kind.endswith("+") for kind in seen.warned)) if fault.names_scene else "")


def _count(seen: Observation, fault: Fault, replaces: bool) -> str:
    lost, twice = tally(seen.labels, fault.length)
    if replaces and lost and lost == twice and not seen.wrong:
        return f"{lost} scene{'s' * (lost > 1)} replaced"
    parts = [f"**loses {lost} scene{'s' * (lost > 1)}**"] if lost else []
    parts += [f"**{twice} scene{'s' * (twice > 1)} twice**"] if twice else []
    if parts:
        return ", ".join(parts)
    if fault.strikes == "often":
        return f"all scenes once ({seen.kills} kills)"
    if seen.grown_mb is not None:
        return f"all scenes once, +{seen.grown_mb:.0f} MB"
    return "all scenes once"


def tally(labels: tuple[int, ...], length: int) -> tuple[int, int]:
    """Numbers of the scenes 0 to `length` - 1 that did not come, and of surplus deliveries."""
    counts = Counter(labels)
    return sum(index not in counts for index in range(length)), sum(count - 1 for count in counts.values())


def _damage(seen: Observation) -> list[str]:
    repeated = len(seen.labels) - len(set(seen.labels)) if seen.ending != "end" else 0
    return [
        *([f"**{repeated} scenes twice**"] if repeated else []),
        *([f"**{seen.wrong} scenes wrong**"] if seen.wrong else []),
        *([f"**{seen.damaged} scenes overwritten**"] if seen.damaged else []),
    ]


def _slow(seen: Observation) -> bool:
    return seen.exit_seconds is not None and seen.exit_seconds > SLOW_EXIT


def _aftermath(seen: Observation, fault: Fault) -> list[str]:
    parts = []
    if seen.ending != "hung" and seen.exit == "hung":
        parts.append("**hangs at exit**")
    elif seen.ending in ("end", "raised") and seen.exit:
        parts.append(f"**dies at exit** ({seen.exit})")
    elif _slow(seen):
        parts.append(f"ends after {seen.exit_seconds:.0f} s")
    if seen.left and fault.consumer == "breaks":
        parts.append(f"**{seen.left} worker{'s' * (seen.left > 1)} keep{'s' * (seen.left == 1)} running**")
    elif seen.left:
        parts.append(f"**leaves {seen.left} process{'es' * (seen.left > 1)}**")
    if seen.files:
        parts.append(f"**leaves {seen.files} file{'s' * (seen.files > 1)} in /dev/shm**")
    return parts
