"""The hosts of a pool: started where there is a place for one, and started again where one is lost.

Invariant: called by the supervisor alone, but for `share`. A host that does not start is tried again after longer
and longer pauses, and is no reason to fail as long as another one works.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any

from kerasfeed.errors import FeedWarning, HostLostError, WorkerStartError
from kerasfeed.pool.base import LOGGER, PoolOptions
from kerasfeed.pool.environment import search_path
from kerasfeed.pool.hosts.agent import versions
from kerasfeed.pool.hosts.dispatch import Dispatcher, Host, TaskGroup
from kerasfeed.pool.hosts.engine import Engine, Hosts, Parcel, pack
from kerasfeed.pool.hosts.messages import Setup, Started
from kerasfeed.pool.processes.crash_policy import CrashPolicy
from kerasfeed.pool.task import Crash
from kerasfeed.util.error_notes import wrapped

_MOST_SECONDS = 30.0  # from one try to start a host to the next


class Fleet:
    """Starts hosts, and starts those again that are lost.

    Attributes:
        places: Where there should be hosts.
        lost: Hosts that were lost.
        respawns: Worker processes that they had replaced.
    """

    def __init__(
        self, hosts: Hosts, options: PoolOptions, engine: Engine, dispatcher: Dispatcher, lock: Any, deaths: CrashPolicy
    ) -> None:
        """Have none yet; `lock` guards the dispatcher."""
        self._hosts, self._options, self._engine = hosts, options, engine
        self._dispatcher, self._lock, self._deaths = dispatcher, lock, deaths
        self._keys = itertools.count(1)
        self._failed_starts: dict[str, tuple[int, float]] = {}  # by place: how many in a row, and when to try again
        self._shared: dict[str, Any] = {}
        self._versions = {"runner": 0, "posted": 0}
        self._well = self._had_host = time.monotonic()
        self.places: tuple[str, ...] = ()
        self.lost = self.respawns = 0

    # ---- what all hosts are to know

    def share(self, what: str, parcel: Parcel) -> None:
        """Have hosts know `parcel` as the "runner", or as what is "posted", from the next work on."""
        shared = self._engine.share(parcel)
        with self._lock:
            self._shared[what] = shared
            self._versions[what] += 1

    def news_for(self, host: Host) -> tuple[dict[str, int], dict[str, Any]]:
        """The versions of all that a host is to know, and what of it must be sent, which it then has been."""
        with self._lock:
            found, shared = dict(self._versions), dict(self._shared)
        if host.runner_version >= found["runner"]:
            shared.pop("runner")
        if host.posted_version >= found["posted"]:
            shared.pop("posted", None)
        host.runner_version, host.posted_version = found["runner"], found["posted"]
        return found, shared

    # ---- hosts

    @property
    def _has_ready(self) -> bool:
        return any(host.ready for host in self._dispatcher.hosts.values())

    def set_places(self, places: Sequence[str]) -> None:
        """There should be hosts at these places."""
        self._well = time.monotonic()
        if self.places == (found := tuple(places)):
            return
        self.places = found
        for host in list(self._dispatcher.hosts.values()):
            if host.place not in found and not host.ready:  # it will never be; one that is ready tells when it ends
                self._engine.kill(host.key)
                with self._lock:
                    self._dispatcher.lose(host)
        self._fill()

    def _fill(self) -> None:
        now, taken = time.monotonic(), {host.place for host in self._dispatcher.hosts.values()}
        for place in self.places:
            if place not in taken and now >= self._failed_starts.get(place, (0, 0.0))[1]:
                self._start(place)

    def _start(self, place: str) -> None:
        key, options = next(self._keys), self._options
        numbers = {host.number for host in self._dispatcher.hosts.values()}
        number = next(number for number in itertools.count() if number not in numbers)
        with self._lock:
            version, runner = self._versions["runner"], self._shared["runner"]
            self._dispatcher.hosts[key] = Host(key, number, place, f"host {number}", runner_version=version)
        setup = Setup(
            options.who, None if options.every_core else options.workers, number, len(self.places), options.seed,
            options.timeout, search_path(), options.environment.directory,
            options.environment.environment.get("PYTHONHASHSEED", ""), version,
        )  # fmt: skip
        self._engine.start(key, place, versions(), pack(setup), runner)

    def started(self, key: int, parcel: Parcel) -> None:
        """A host has answered for the first time.

        Raises:
            WorkerStartError: It can take no work, and no other one does.
        """
        host, started = self._dispatcher.hosts.get(key), parcel.unpack()
        if host is None:
            return
        assert isinstance(started, Started)
        host.name = f"host {host.number} ({started.name})"
        error = _refusal(host, started)
        if error is not None:
            if not self._has_ready:
                raise error
            self.lose(key, f"can take no work: {error}")
            return
        host.workers, host.ready, host.news = started.workers, True, time.monotonic()
        LOGGER.info("%s: %s started", self._options.who, host)
        self._deaths.started()
        self._failed_starts.pop(host.place, None)

    def lose(self, key: int, how: str) -> tuple[list[TaskGroup], str]:
        """A host is lost: the groups that it had, and how it was lost in words.

        Raises:
            WorkerStartError: Hosts end before they can take work, one after the other.
        """
        host = self._dispatcher.hosts.get(key)
        if host is None:
            return [], ""
        self._engine.kill(key)
        crash = Crash(str(host), how, started=host.ready)
        with self._lock:
            groups = self._dispatcher.lose(host)
            self.lost += 1
            self.respawns += host.respawns
        if not host.ready:
            times = self._failed_starts.get(host.place, (0, 0.0))[0] + 1
            self._failed_starts[host.place] = times, time.monotonic() + min(2.0**times, _MOST_SECONDS)
            if self._deaths.at_start(crash) and not self._has_ready:
                raise WorkerStartError(f"{host} {how} before it could take work, as did others before it")
        LOGGER.warning("%s: lost a host: %s", self._options.who, crash)
        self._options.deferred_warnings.defer(
            "host", f"{host} {how}. Its batches are asked of other hosts, or of the one in its place: no batch is "
            "lost, none changes. feed.stats().hosts counts the hosts lost; this is said once", FeedWarning,
        )  # fmt: skip
        self._fill()
        return groups, str(crash)

    def look(self, now: float, *, answered: bool) -> None:
        """Look after hosts that are to be started, once a tick; `answered`: whether any ever has.

        Raises:
            WorkerStartError: None has started in time.
            HostLostError: There are none any more.
        """
        self._fill()
        if self._has_ready:
            self._had_host = now
        who, timeout, well_for = self._options.who, self._hosts.start_timeout, self._engine.well_for
        if now - self._had_host > timeout:
            kind = HostLostError if answered else WorkerStartError
            raise kind(f"{who} has had no host for start_timeout={timeout:g} s: {self._engine.missing()}")
        heard = max([self._well, *(host.news for host in self._dispatcher.hosts.values())])
        if well_for is not None and self._dispatcher.groups and now - heard > well_for:
            raise HostLostError(f"{who} has no hosts any more: the cluster has not answered for {well_for:g} s")


def _refusal(host: Host, started: Started) -> BaseException | None:
    """Why a host takes no work; None where it does."""
    if started.version != versions():
        return WorkerStartError(
            f"{host} has {started.version}, and this process {versions()}: batches might differ. Install the same on "
            "all hosts"
        )
    if started.module:
        package = started.module.split(".")[0]
        return WorkerStartError(
            f"{host} has no module {started.module!r}, which the sequence needs. A module of yours can be sent along: "
            f"kf.RayHosts(ship=({package},)); others are installed on the hosts, or with "
            f"kf.RayHosts(runtime_env={{'pip': [{package!r}]}})"
        )
    if started.error is not None:
        return wrapped(started.error.arrived(), f"on {host}: ", WorkerStartError)
    return None
