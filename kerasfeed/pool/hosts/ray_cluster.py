"""Hosts of a Ray cluster: one actor a host, whose agent runs a pool of processes there.

Invariant: Ray repeats nothing of its own accord. It would try a scene that kills its process for ever, and start an
actor anew with what the first one was given. What runs on the cluster for us ends with `close`, or with this process;
a Ray session is ended only if it was begun here.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kerasfeed.errors import HostLostError
from kerasfeed.pool.hosts.agent import Agent
from kerasfeed.pool.hosts.engine import Engine, News, Parcel, Tell
from kerasfeed.pool.hosts.ray_session import Name, present, session
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.error_text import class_name, message_of

_LOOK_SECONDS = 1.0
_WELL_SECONDS = 15.0
_RELEASE_SECONDS = 10.0
_OVER = "ray.shutdown() was called"
_SMALL = 50_000  # bytes; Ray sends arguments of up to 100 KB as part of a call
_KINDS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}  # the rest are resources of the user's own


def join_cluster(
    address: str | None,
    count: int | None,
    resources: Mapping[str, float] | None,
    runtime_env: Mapping[str, Any] | None,
    tell: Tell,
    calls: int,
) -> Engine:
    """The engine; see `RayHosts` and `Hosts.start_engine`.

    Raises:
        ImportError: Ray is not installed.
        WorkerStartError: No cluster can be joined.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            'kf.RayHosts needs Ray, which is not installed: pip install ray (the extra "kerasfeed[ray]")'
        ) from error
    name = session.enter(ray, address)
    try:
        return RayEngine(ray, name, count, dict(resources or {"CPU": 1.0}), dict(runtime_env or {}), tell, calls)
    except BaseException:
        session.leave(ray, name)
        raise


class RayEngine(Engine):
    """Hosts that are actors of Ray."""

    well_for = _WELL_SECONDS

    def __init__(
        self, ray: Any, name: Name, count: int | None, wanted: dict[str, float], env: dict[str, Any], tell: Tell,
        calls: int,
    ) -> None:  # fmt: skip
        """Hosts of the session that `ray` has begun, `count` of them, with `wanted` resources each."""
        self._ray, self._name, self._count, self._wanted, self._tell = ray, name, count, wanted, tell
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": calls}
        options |= {_KINDS[name]: value for name, value in self._wanted.items() if name in _KINDS}
        options["resources"] = {name: value for name, value in self._wanted.items() if name not in _KINDS}
        if env:
            options["runtime_env"] = env
        self._actor_class, self._options = ray.remote(RayAgent), options
        self._actors: dict[int, Any] = {}
        self._group: Any = None
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._call_thread = threading.Thread(target=self._call, name="kerasfeed-ray-calls", daemon=True)
        start_thread(self._call_thread, "kf.RayHosts", 2)
        self._closed = threading.Event()
        self._watch_thread = threading.Thread(target=self._watch_nodes, name="kerasfeed-ray-nodes", daemon=True)
        start_thread(self._watch_thread, "kf.RayHosts", 2)

    @property
    def _is_up(self) -> bool:
        """Whether our session is there yet: where there is none, Ray's functions begin another."""
        return present(self._ray) == self._name

    def _refuse_if_over(self) -> None:
        if not self._is_up:
            raise HostLostError(f"there are no hosts any more: {_OVER}")

    def _watch_nodes(self) -> None:
        """Tell where hosts may be; it may hang where the cluster is gone, and then tells no more."""
        while not self._closed.is_set():
            if not self._is_up:
                self._tell(News.FAILED, _OVER)
                return
            with suppress(Exception):
                self._tell(News.PLACES, self._places(self._ray.nodes()))
            self._closed.wait(_LOOK_SECONDS)

    def _places(self, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
        if self._count is not None:
            return [str(number) for number in range(self._count)]
        return [
            node["NodeID"]
            for node in nodes
            if node["Alive"] and all(node["Resources"].get(name, 0) >= most for name, most in self._wanted.items())
        ]

    def share(self, parcel: Parcel) -> Any:
        """See `Engine.share`.

        What is small travels with each message: an object of Ray may be fetched from a node that is frozen, and whoever
        fetches it then waits until Ray finds that out.
        """
        self._refuse_if_over()
        return parcel if parcel.nbytes < _SMALL else self._ray.put(parcel)

    def start(self, key: int, place: str, version: str, setup: Parcel, runner: Any) -> None:
        """See `Engine.start`."""
        self._refuse_if_over()
        self._calls.put(partial(self._start, key, place, version, setup, runner))

    def _start(self, key: int, place: str, version: str, setup: Parcel, runner: Any) -> None:
        try:
            actor = self._actor_class.options(**self._options, scheduling_strategy=self._strategy(place)).remote()
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no host
            self._tell(News.GONE, key, _loss(error))
            return
        self._actors[key] = actor
        # In a list: Ray would resolve a reference that stands alone, each time.
        self._await(actor.start.remote(version, setup, [runner]), News.STARTED, key)
        self._await(actor.live.remote(), None, key)

    def _strategy(self, place: str) -> Any:
        """Ray's name for a place."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        if self._count is None:
            return NodeAffinitySchedulingStrategy(place, soft=False)
        if self._group is None:
            self._group = self._ray.util.placement_group([self._wanted] * self._count, strategy="STRICT_SPREAD")
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=int(place))

    def send(self, key: int, number: int, work: Parcel, shared: dict[str, Any]) -> None:
        """See `Engine.send`."""
        self._refuse_if_over()
        self._await(self._actors[key].run.remote(work, shared), News.ANSWER, key, number)

    def stop(self, key: int) -> None:
        """See `Engine.stop`."""
        with suppress(Exception):
            if self._is_up:
                self._await(self._actors[key].stop.remote(), News.STOPPED, key)

    def _await(self, reference: Any, kind: News | None, *told: int) -> None:
        reference.future().add_done_callback(partial(self._note, kind, told))

    def _note(self, kind: News | None, told: tuple[int, ...], future: Any) -> None:
        """Called by a thread of Ray's."""
        error = future.exception()
        if error is not None:
            self._tell(News.GONE, told[0], _loss(error))
        elif kind is not None:
            self._tell(kind, *told, future.result())

    def kill(self, key: int) -> None:
        """See `Engine.kill`."""
        self._calls.put(partial(self._kill, key))

    def _kill(self, key: int) -> None:
        if key in self._actors:
            self._ray.kill(self._actors.pop(key))

    def _call(self) -> None:
        """Body of a thread that starts and ends actors, for which Ray waits for the head, though it be gone."""
        while (call := self._calls.get()) is not None:
            with suppress(Exception):
                if self._is_up:
                    call()

    def close(self) -> None:
        """See `Engine.close`."""
        self._closed.set()
        self._calls.put(self._release)
        self._calls.put(None)
        self._call_thread.join(_RELEASE_SECONDS)  # where the head is gone, Ray ends the program after 60 s
        self._watch_thread.join(2 * _LOOK_SECONDS)
        session.leave(self._ray, self._name)

    def _release(self) -> None:
        for key in list(self._actors):
            with suppress(Exception):
                self._kill(key)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)

    def missing(self) -> str:
        """See `Engine.missing`."""
        count, wanted = self._count, ", ".join(f"{name} {most:g}" for name, most in self._wanted.items())
        asked = f"count={count}, each on a node of its own" if count else "every node"
        try:
            self._refuse_if_over()
            nodes = [_node_text(node) for node in self._ray.nodes() if node["Alive"]]
        except Exception as error:  # noqa: BLE001 - the cluster may be gone
            return f"asked for {asked} with {wanted}; the cluster does not answer ({message_of(error)})"
        return (
            f"asked for {asked} with {wanted}; the cluster has {len(nodes)}: {'; '.join(nodes) or 'none'}. Others may "
            "use them (`ray status` tells). Ask for fewer hosts or resources, start more nodes, or raise start_timeout"
        )


def _node_text(node: Mapping[str, Any]) -> str:
    found = {name: most for name, most in node["Resources"].items() if ":" not in name and "memory" not in name}
    return f"{node['NodeName']} ({', '.join(f'{name} {most:g}' for name, most in found.items()) or 'no CPU'})"


def _loss(error: BaseException) -> str:
    text = message_of(error)
    if "No module named 'kerasfeed'" in text:
        return "has no kerasfeed: install it there, or with kf.RayHosts(runtime_env={'pip': ['kerasfeed']}), and"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"was lost ({class_name(error)}: {' '.join(lines)[:300]})"


class RayAgent:
    """The agent as an actor."""

    def __init__(self) -> None:
        import ray

        self._agent = Agent(lambda shared: shared if isinstance(shared, Parcel) else ray.get(shared))
        self._over = threading.Event()

    def start(self, version: str, setup: Parcel, runner: list[Any]) -> Parcel:
        """See `Agent.start`."""
        return self._agent.start(version, setup, runner[0])

    def live(self) -> None:
        """Return when the host is to end: where it ends before, whoever waits is told."""
        self._over.wait()

    def run(self, work: Parcel, shared: dict[str, Any]) -> Parcel:
        """See `Agent.run`."""
        return self._agent.run(work, shared)

    def stop(self) -> Parcel:
        """See `Agent.stop`."""
        found = self._agent.stop()
        self._over.set()
        return found
