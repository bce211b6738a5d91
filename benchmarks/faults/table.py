"""The observations as Markdown and as JSON, and back.

Invariant: pure functions; nothing is run here.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.faults.catalog import FAULTS, LIBRARIES, Fault, Library, Workers, befalls
from benchmarks.faults.observation import Observation, words

BEGIN = "<!-- faults: written by `python -m benchmarks.faults --markdown docs/understand/faults.md` -->"
END = "<!-- end of faults -->"
_RAISED = re.compile(r"raises (?P<type>`\w+`)(?P<rest>.*)")
_TITLES: dict[Workers, str] = {"process": "worker processes", "thread": "worker threads"}


def markdown(results: Mapping[str, Observation], versions: Mapping[str, str]) -> str:
    """One table for worker processes and one for worker threads: one line per fault, one column per library.

    Args:
        results: Observations by the names of their cases.
        versions: Versions by the names of packages.
    """
    return "\n\n".join(filter(None, (_table(kind, results, versions) for kind in _TITLES)))


def _table(kind: Workers, results: Mapping[str, Observation], versions: Mapping[str, str]) -> str:
    libraries = [library for library in LIBRARIES.values() if library.workers == kind and _known(library, results)]
    if not libraries:
        return ""
    faults = [fault for fault in FAULTS.values() if any(_cell(fault, library, results) for library in libraries)]
    lines = [[_TITLES[kind], *(_title(library, versions) for library in libraries)]]
    lines += [[fault.title, *(_cell(fault, library, results) for library in libraries)] for fault in faults]
    texts = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([texts[0], "|" + " --- |" * len(lines[0]), *texts[1:]])


def _known(library: Library, results: Mapping[str, Observation]) -> bool:
    return any(name.startswith(library.name + "/") for name in results)


def _title(library: Library, versions: Mapping[str, str]) -> str:
    if library.package == "kerasfeed":
        return f"**{library.title}**"
    return f"{library.title} ({versions.get(library.package, 'not installed')})"


def _cell(fault: Fault, library: Library, results: Mapping[str, Observation]) -> str:
    texts = {}
    for consumer in library.consumers:
        seen = results.get(f"{library.name}/{fault.name}/{consumer}")
        if seen is not None and befalls(fault, library, consumer):
            texts[consumer] = words(seen, fault, library.replaces)
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    raised = [_RAISED.fullmatch(text) for text in texts.values()]
    if len(raised) == 2 and raised[0] and raised[1] and raised[0]["rest"] == raised[1]["rest"]:
        comma = "," * raised[0]["rest"].startswith(" ")
        return f"raises {raised[0]['type']}, in `fit` {raised[1]['type']}{comma}{raised[0]['rest']}"
    return "; ".join(f"in {'a loop' if consumer == 'loop' else '`fit`'}: {text}" for consumer, text in texts.items())


def spliced(text: str, table: str, mark: str = BEGIN, end_mark: str = END) -> str:
    """A document with everything between the two marks replaced by `table`.

    Raises:
        ValueError: The document lacks a mark.
    """
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        raise ValueError(f"the table goes between the lines {mark!r} and {end_mark!r}; add them there")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def dump(results: Mapping[str, Observation], versions: Mapping[str, str]) -> str:
    """Observations and versions as JSON."""
    values = {"versions": dict(versions), "cases": {name: asdict(seen) for name, seen in results.items()}}
    return json.dumps(values, indent=1) + "\n"


def load(texts: Iterable[str]) -> tuple[dict[str, Observation], dict[str, str]]:
    """Observations and versions from texts of `dump`; later ones count."""
    results: dict[str, Observation] = {}
    versions: dict[str, str] = {}
    for text in texts:
        values = json.loads(text)
        versions.update(values["versions"])
        results.update({name: _observation(fields) for name, fields in values["cases"].items()})
    return results, versions


def _observation(fields: dict[str, Any]) -> Observation:
    return Observation(**{**fields, "labels": tuple(fields["labels"]), "warned": tuple(fields["warned"])})
