"""Which host is asked for what.

Invariant: decides, and does nothing else; a group of tasks is settled once, by whichever host answers first. Time is an
argument, so that tests simulate hundreds of hosts that are lost. The caller holds a lock around every call.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kerasfeed.pool.task import Task

MOST_GROUPS = 32  # that a host has at once
_FEWEST = 2  # one that it works on, and one on its way


@dataclass(eq=False)
class TaskGroup:
    """Tasks that were submitted together, a batch as a rule, and are done by one host.

    Attributes:
        number: Of the group.
        tasks: What is to be done.
        lost: Hosts that were lost with it.
        asked: When it was sent to each host that has it, s, by the host's key.
        waiting: Whether it is to be sent to a host.
    """

    number: int
    tasks: Sequence[Task]
    lost: int = 0
    asked: dict[int, float] = field(default_factory=dict)
    waiting: bool = True


@dataclass(eq=False)
class Host:
    """One host.

    Attributes:
        key: Unique among all that ever were.
        number: The lowest that no other one has.
        place: Where it is, as the engine knows it.
        name: As messages name it.
        workers: Worker processes.
        ready: Whether it has answered once.
        news: When it was heard last, s.
        groups: Tasks of each group that it has, by the group's number, in the order in which they were sent.
        load: Tasks of all of them.
        runner_version: The newest runner that it was sent.
        posted_version: Likewise what was posted.
        respawns: Worker processes that it has replaced.
        alone: Whether it has a group that has lost a host before, and is given nothing beside that.
    """

    key: int
    number: int
    place: str
    name: str
    workers: int = 1
    ready: bool = False
    news: float = 0.0
    groups: dict[int, int] = field(default_factory=dict)
    load: int = 0
    runner_version: int = 1
    posted_version: int = 0
    respawns: int = 0
    alone: bool = False

    @property
    def has_room(self) -> bool:
        """Whether it may be given more, so that no worker of it waits while the next batch is on its way."""
        count = len(self.groups)
        return (
            self.ready
            and not self.alone
            and (count < _FEWEST or (self.load < 2 * self.workers and count < MOST_GROUPS))
        )

    def is_silent(self, now: float, silence: float) -> bool:
        """Whether it has something to do, and was not heard for so long."""
        return bool(self.groups) and now - self.news > silence

    def __str__(self) -> str:
        return self.name


class Dispatcher:
    """Groups, and the hosts that have them.

    Attributes:
        groups: Those that are not settled, by number.
        hosts: Those that live, by key.
        hedged: See `HostStats`.
        resent: See `HostStats`.
        late: See `HostStats`.
    """

    def __init__(self, silence: float) -> None:
        """`silence`: see `Hosts`."""
        self._silence = silence
        self.groups: dict[int, TaskGroup] = {}
        self.hosts: dict[int, Host] = {}
        self._waiting: deque[int] = deque()
        self._last = 0
        self.hedged = self.resent = self.late = 0

    def add(self, tasks: Sequence[Task], *, first: bool = False, lost: int = 0) -> None:
        """Take a group; it comes before those that wait, or after them."""
        self._last += 1
        self.groups[self._last] = TaskGroup(self._last, tasks, lost)
        (self._waiting.appendleft if first else self._waiting.append)(self._last)

    def clear(self) -> list[Task]:
        """Forget all groups; returns their tasks."""
        tasks = [task for group in self.groups.values() for task in group.tasks]
        self.groups.clear()
        self._waiting.clear()
        return tasks

    def sendings(self, now: float) -> Iterator[tuple[TaskGroup, Host]]:
        """What is to be sent to whom, now.

        A group that has lost its host is tried alone: where it is what ends hosts, the others need not pay for it.
        """
        kept = []
        free = [host for host in self.hosts.values() if host.has_room and not host.is_silent(now, self._silence)]
        while self._waiting and free:
            group = self.groups.get(self._waiting.popleft())
            if group is None:  # answered meanwhile
                continue
            host = min((host for host in free if host.key not in group.asked), key=_load, default=None)
            if host is None or (group.lost and host.groups):  # all that are free have it; or one is to finish first
                kept.append(group.number)
                if host is not None:
                    free.remove(host)
                continue
            host.alone = group.lost > 0
            self.hedged += bool(group.asked)
            group.waiting = False
            group.asked[host.key] = now
            if not host.groups:
                host.news = now  # it had nothing to tell
            host.groups[group.number] = len(group.tasks)
            host.load += len(group.tasks)
            if not host.has_room:
                free.remove(host)
            yield group, host
        self._waiting.extendleft(reversed(kept))

    def answered(self, key: int, number: int, now: float) -> tuple[Host | None, TaskGroup | None]:
        """A host has answered: the host, None where it is known no more, and the group, None where that is settled."""
        host = self.hosts.get(key)
        if host is not None:
            host.news = now
            host.load -= host.groups.pop(number, 0)
            host.alone = host.alone and bool(host.groups)
        group = self.groups.get(number)
        self.late += group is None
        return host, group

    def lose(self, host: Host) -> list[TaskGroup]:
        """A host is lost; the groups that it had. Those that no other host has wait again."""
        del self.hosts[host.key]
        lost = []
        for number in reversed(host.groups):
            group = self.groups.get(number)
            if group is None:
                continue
            del group.asked[host.key]
            group.lost += 1
            if not group.asked and not group.waiting:
                self._wait_again(group)
                self.resent += 1
            lost.append(group)
        return lost

    def settle(self, group: TaskGroup) -> None:
        """Forget a group, all of whose tasks know what became of them."""
        self.groups.pop(group.number, None)

    def hedge(self, now: float) -> None:
        """Have groups that are out for long asked of one more host.

        Of a slow host only where another has nothing to do, or a batch that merely takes long would be loaded twice as
        a rule; of one that is silent altogether in any case.
        """
        idle = any(host.ready and not host.groups for host in self.hosts.values()) and not self._waiting
        for group in list(self.groups.values()):
            if group.waiting or now - max(group.asked.values()) <= self._silence:
                continue
            if idle or all(self.hosts[key].is_silent(now, self._silence) for key in group.asked):
                self._wait_again(group)

    def _wait_again(self, group: TaskGroup) -> None:
        group.waiting = True
        self._waiting.appendleft(group.number)


def _load(host: Host) -> float:
    return host.load / host.workers
