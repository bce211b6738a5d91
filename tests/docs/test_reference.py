"""The reference lists every public name, and quotes messages and options exactly."""

import ast
import inspect
import re
from functools import cache

import pytest
from places import ROOT

import kerasfeed as kf
from benchmarks.harness import Settings
from kerasfeed.cli.main import main

REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "kerasfeed"
NAMES = [name for name in kf.__all__ if name not in ("__version__", "errors")]
PAGES = {page.name: page.read_text() for page in REFERENCE.glob("*.md")}


# ---- public names


def test_the_table_of_the_index_lists_every_public_name_once():
    listed = re.findall(r"^\| \[`kf\.(\w+)`\]\([\w.]*#kerasfeed\.(\w+)\) \|", PAGES["index.md"], re.MULTILINE)
    assert all(shown == target for shown, target in listed)
    assert sorted(shown for shown, _ in listed) == sorted(NAMES)


def test_every_public_name_has_one_place_in_the_reference():
    documented = [name for page in PAGES.values() for name in re.findall(r"^::: kerasfeed\.(\w+)$", page, re.MULTILINE)]
    assert sorted(documented) == sorted(NAMES)


def test_the_members_that_pages_list_exist():
    for page in PAGES.values():
        for name, options in re.findall(r"^::: (kerasfeed[.\w]+)\n((?: +.*\n)*)", page, re.MULTILINE):
            listed = re.search(r"members: \[([^]]*)\]", options)
            kind = resolved(name)
            for member in re.findall(r"\w+", listed[1]) if listed else ():
                assert inspect.getdoc(inspect.getattr_static(kind, member)), f"{name}.{member} has no docstring"


def resolved(name):
    parts, found = name.split("."), kf
    if len(parts) > 2:
        found = __import__(".".join(parts[:-1]), fromlist=[parts[-1]])
    return getattr(found, parts[-1])


# ---- messages


def strings_of(tree):
    """Every text that a module holds, docstrings left out; a replacement field of an f-string ends a text."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


@cache
def sources():
    """Every text of the package; not read while pytest only collects tests."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return "\0".join(text for path in paths for text in strings_of(ast.parse(path.read_text())))


MESSAGES = re.findall(r"^### (`+) ?(.+?) ?\1$", PAGES["errors.md"], re.MULTILINE)


def fragments(message):
    return [part for part in re.split(r"\.\.\.", message) if len(re.findall(r"\w", part)) > 3]


@pytest.mark.parametrize("message", [text for _, text in MESSAGES], ids=lambda text: text[:50])
def test_a_message_of_the_page_is_one_of_the_package(message):
    assert fragments(message), f"nothing of {message!r} is fixed"
    for part in fragments(message):
        assert part.strip(" :;.,()") in sources(), f"no message of the package holds {part!r}"


QUOTED = [
    (page.name, " ".join(quoted.split()))
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for block in re.findall(r"^```text\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for quoted in re.findall(r"^(?:Spec|Type)Error: (.*?)(?=^\w+Error: |\Z)", block, re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize(("page", "message"), QUOTED, ids=[f"{page}-{text[:40]}" for page, text in QUOTED])
def test_an_error_that_a_page_quotes_is_worded_by_the_package(page, message):
    texts = {" ".join(text.split()) for text in sources().split("\0")}
    rest = message
    for text in sorted((text for text in texts if len(text) > 8), key=len, reverse=True):
        rest = rest.replace(text, "")
    assert len(rest) < 0.6 * len(message), f"{page} quotes what no message of the package says: {rest!r}"


def test_the_page_of_errors_has_a_cause_and_a_remedy_for_every_message():
    page = PAGES["errors.md"]
    assert len(MESSAGES) >= 50
    assert page.count("**Cause:**") == page.count("**Remedy:**") == len(MESSAGES)


def test_every_class_of_exceptions_and_warnings_is_on_the_page_of_errors():
    kinds = [name for name in vars(kf.errors) if name.endswith(("Error", "Warning")) and name != "WorkerStartError"]
    assert len(kinds) == 11
    for name in kinds:
        full = f"kerasfeed.{name}" if name in NAMES else f"kerasfeed.errors.{name}"
        assert f"| [{name}](#{full}) |" in PAGES["errors.md"]
        assert f"::: {full}\n" in PAGES["errors.md"]


def test_the_built_in_classes_of_the_table_are_those_of_the_exceptions():
    listed = re.findall(r"^\| \[(\w+)\]\(\S+ \| `([\w.]+)`", PAGES["errors.md"], re.MULTILINE)
    assert len(listed) == 11
    for name, built_in in listed:
        bases = getattr(kf.errors, name).__mro__
        assert any(built_in in (base.__name__, f"{base.__module__}.{base.__name__}") for base in bases)


# ---- the command line


@pytest.fixture
def help_of(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # one line for each option

    def ask(*command):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        return capsys.readouterr().out

    return ask


def section(title):
    return PAGES["command-line.md"].split(f"## `{title}`\n", 1)[1].split("\n## ", 1)[0]


def listed(title):
    return re.findall(r"^\| `([\w.-]+)", section(title), re.MULTILINE)


def test_the_page_lists_the_commands(help_of):
    commands = re.findall(r"^ {4}(\w+) +\w", help_of(), re.MULTILINE)
    assert re.findall(r"^## `kerasfeed (\w+)`$", PAGES["command-line.md"], re.MULTILINE) == commands


@pytest.mark.parametrize("command", ["demo", "check", "describe", "show", "profile"])
def test_the_page_lists_the_options_of_a_command(command, help_of):
    text = help_of(command)
    lines = dict(re.findall(r"^  (--[\w-]+|[A-Z]+\.h5) (.*)$", text, re.MULTILINE))
    assert listed(f"kerasfeed {command}") == list(lines)
    for name, line in lines.items():
        row = re.search(rf"^\| `{re.escape(name)}\b.*$", section(f"kerasfeed {command}"), re.MULTILINE)[0]
        default = re.search(r"\(default: ([^)]+)\)", line)
        assert default is None or f"| `{default[1]}` |" in row, row


def test_the_page_lists_the_options_of_the_benchmarks():
    parser = (ROOT / "benchmarks" / "__main__.py").read_text()
    assert listed("python -m benchmarks") == re.findall(r'add_argument\(\s*"(--[\w-]+)"', parser)
    for name in ("repeats", "seconds", "timeout"):
        assert re.search(rf"^\| `--{name} \w` \| `{getattr(Settings, name)}` \|", section("python -m benchmarks"), re.M)


def test_links_to_the_reference_are_links_in_a_repository_browser_too():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    assert [str(page) for page in pages if "][kerasfeed" in page.read_text()] == []
