"""Only one module formats exceptions, because users' exceptions may fail when they are printed."""

import ast
from pathlib import Path

import pytest

import kerasfeed

PACKAGE = Path(kerasfeed.__file__).parent


def _names_of_exceptions(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, ast.arg) and node.annotation is not None:
            named = ast.unparse(node.annotation)
            if named.strip("'\"").split("[")[0].split(" ")[0].endswith(("Exception", "Error")):
                yield node.arg


def _unguarded(path):
    """Lines of a module that format an exception, or write to it: (line, source)."""
    tree = ast.parse(path.read_text())
    names = set(_names_of_exceptions(tree))

    def is_one(node):
        cause = isinstance(node, ast.Attribute) and node.attr in ("__cause__", "__context__")
        return cause or (isinstance(node, ast.Name) and node.id in names)

    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue):
            bad = is_one(node.value)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            formats = called in ("str", "repr", "print", "format", "bool", "hash", "vars", "dir") or "json" in called
            bad = formats and any(map(is_one, node.args))
            bad |= called.startswith(("traceback.format_exc", "traceback.print_exc", "traceback.TracebackException"))
            bad |= called.endswith(".exception") and called.split(".")[0] in ("logging", "logger", "log")
        elif isinstance(node, ast.Attribute):
            bad = is_one(node.value) and node.attr in ("args", "add_note", "__notes__", "__dict__")
        else:
            bad = isinstance(node, ast.BoolOp | ast.IfExp | ast.If) and any(
                map(is_one, node.values if isinstance(node, ast.BoolOp) else [node.test])
            )
        if bad:
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"


# For kerasfeed's own exceptions, which users cannot raise.
ALLOWED = {
    "readers/files/sequence.py": ["ended.args"],
    "util/deferred_warnings.py": ["{warning}", "f'{category.__name__}: {warning}'"],
}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_one_module_formats_exceptions(path):
    name = path.relative_to(PACKAGE).as_posix()
    if name == "util/error_text.py":
        return
    found = [each for each in _unguarded(path) if each.split(": ", 1)[1] not in ALLOWED.get(name, ())]
    assert not found, "use kerasfeed.util.error_text: " + "; ".join(found)
