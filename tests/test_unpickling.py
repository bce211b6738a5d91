"""Only pickles of this program and of its workers are loaded, and no socket has a name."""

import ast
from pathlib import Path

import pytest

import kerasfeed

PACKAGE = Path(kerasfeed.__file__).parent
LOADS = {"load", "loads", "Unpickler"}
PICKLES = {"pickle", "cloudpickle", "_pickle", "dill", "joblib", "marshal", "shelve"}
# Functions that unpickle, and the source of their bytes.
ALLOWED = {
    "pool/processes/shared_objects.py": "what the parent put into a memory file that the worker has inherited, "
    "or this process has just pickled",
    "pool/exception_pickle.py": "exceptions that a worker has packed, over the socket pair that it inherited",
    "loaders/batch_runner.py": "the first batch, which this process itself has pickled and kept",
    "sequences/cache_store.py": "scenes that processes of this program have put into a memory file without a path, "
    "which is opened by whoever unpickles the kf.Cached, and known by its token",
    "explore/check/case.py": "a copy of the sequence that was pickled here",
    "orders/groups.py": "a user's function within a pickle that the user, or the program, is loading already",
    "pool/processes/pool.py": "payloads of a worker, over the socket pair that it inherited",
    "loaders/hosts/session.py": "calls of the driver and answers of the hosts that it has started, as Ray brings them",
    "loaders/generators.py": "scenes that a worker has packed, in memory that it inherited",
    "feeds/stream_loader.py": "the parent's items, in a memory file without a path, inherited by the worker",
}
NETWORK = {
    "bind", "listen", "accept", "connect", "connect_ex", "create_server", "create_connection", "sendto", "Client",
    "Listener",
}  # fmt: skip


def _calls(path):
    """(object, attribute) of every call, for example ("pickle", "loads"); the object is "" for a bare name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield ast.unparse(node.func.value), node.func.attr
            elif isinstance(node.func, ast.Name):
                yield "", node.func.id


def _imported_from(path, modules):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in modules:
            yield from (alias.name for alias in node.names)


def _rooms():
    return {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}


@pytest.mark.heavy
def test_pickles_are_loaded_only_from_memory_and_sockets_shared_with_workers():
    found = {
        room
        for room, path in _rooms().items()
        for where, name in _calls(path)
        if (where in PICKLES and name in LOADS) or (where, name) == ("", "unpickled")
    }
    assert found == set(ALLOWED)


@pytest.mark.heavy
def test_no_unpickling_function_is_imported_under_another_name():
    for room, path in _rooms().items():
        assert not set(_imported_from(path, PICKLES)) & LOADS, room
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not [a for a in node.names if a.name.split(".")[0] in PICKLES and a.asname], room
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", room


def test_numpy_and_hdf5_files_are_not_unpickled_either():
    for room, path in _rooms().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"np.load", "numpy.load"}:
                assert "allow_pickle=False" in ast.unparse(node), room


@pytest.mark.heavy
def test_no_socket_is_bound_connected_or_listened_to():
    calls = {room: [name for where, name in _calls(path) if where != "signature"] for room, path in _rooms().items()}
    found = {room for room, names in calls.items() if NETWORK.intersection(names)}
    assert found == set()


@pytest.mark.heavy
def test_every_socket_is_from_a_pair_or_inherited():
    made = {
        (room, f"{where}.{name}")
        for room, path in _rooms().items()
        for where, name in _calls(path)
        if where == "socket"
    }
    assert made == {
        ("pool/processes/worker_process.py", "socket.socketpair"),
        ("pool/processes/worker.py", "socket.socket"),
    }
    worker = (PACKAGE / "pool/processes/worker.py").read_text()
    assert "socket.socket(fileno=link_fd)" in worker
