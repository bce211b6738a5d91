"""What was seen of a case, and the words for it.

Invariant: pure. A library gets good words only for batches that came and held what they ought to.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from benchmarks.faults.catalog import Fault

Ending = Literal["end", "raised", "hung", "died", "killed", "unavailable", "missing"]
SLOW_EXIT = 10.0
"""Seconds for closing and ending the program above which they are worth a word."""


@dataclass(frozen=True)
class Observation:
    """What was seen of one case.

    Attributes:
        ending: How it ended: all batches came ("end"), the consumer caught an exception ("raised"), no batch came for
            too long ("hung"), the program was gone without either ("died"), the harness killed it as the fault wants
            ("killed"), the library lacks what was asked for ("unavailable") or is not installed ("missing").
        labels: Indices of the scenes that came, in order.
        wrong: Scenes that did not hold what they ought to.
        damaged: Scenes that changed after they had come, as the consumer kept them.
        error: Type of the exception, or how the program died, such as "SIGSEGV".
        message: First line of the exception's message.
        names_scene: Whether the exception or its traceback names the scene at fault.
        warned: Types of the warnings that were shown, in order; with "+" where they name the scene at fault.
        patience: Seconds without a batch after which the case counted as hung.
        exit: How the program ended after that: "" for well, "hung", or as `error`.
        exit_seconds: From the consumer's last batch or exception to the end of the program; None where it was killed.
        left: Processes of it that lived 2 s after the program, or after the consumer had broken off.
        files: Files in /dev/shm that were left.
        kills: Workers killed from outside.
        grown_mb: Growth of the process tree's memory since its first batch in megabytes, where it was watched.
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
    """What came of a case, in the few words of a table's cell.

    Args:
        seen: What was seen.
        fault: What went wrong.
        replaces: Whether the library was asked to put another scene in the place of one that fails.
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
        return "" if seen.left or seen.exit or _slow(seen) else "ends well"
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
    """How many of the scenes 0 to `length` - 1 did not come, and how many deliveries were one too many."""
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
        parts.append(f"**{seen.left} worker{'s' * (seen.left > 1)} stay{'s' * (seen.left == 1)} on**")
    elif seen.left:
        parts.append(f"**leaves {seen.left} process{'es' * (seen.left > 1)}**")
    if seen.files:
        parts.append(f"**leaves {seen.files} file{'s' * (seen.files > 1)} in /dev/shm**")
    return parts
