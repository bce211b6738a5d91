"""Which host is asked for what, played in time that is an argument."""

import heapq
import itertools
import random

from kerasfeed.pool.hosts.dispatch import MOST_GROUPS, Dispatcher, Host
from kerasfeed.pool.task import FutureTask


def tasks(count=1):
    return [FutureTask(1, number) for number in range(count)]


def hosts_of(dispatcher, count, workers=2):
    for key in range(count):
        dispatcher.hosts[key] = Host(key, key, str(key), f"host {key}", workers, ready=True)


def sent(dispatcher, now=0.0):
    return [(group.number, host.key) for group, host in dispatcher.sendings(now)]


def test_a_host_has_two_groups_or_tasks_for_twice_its_workers_and_no_more_than_its_calls():
    for size, workers, expected in ((8, 2, 2), (1, 2, 4), (1, 1000, MOST_GROUPS)):
        dispatcher = Dispatcher(1.0)
        hosts_of(dispatcher, 1, workers)
        for _ in range(50):
            dispatcher.add(tasks(size))
        assert len(sent(dispatcher)) == expected


def test_groups_go_to_the_host_that_has_least_and_none_to_one_that_has_not_answered():
    dispatcher = Dispatcher(1.0)
    hosts_of(dispatcher, 3)
    dispatcher.hosts[1].ready = False
    for _ in range(4):
        dispatcher.add(tasks())
    assert sorted(host for _, host in sent(dispatcher)) == [0, 0, 2, 2]


def test_a_group_of_a_silent_host_is_asked_of_another_and_the_first_answer_counts():
    dispatcher = Dispatcher(1.0)
    hosts_of(dispatcher, 2)
    dispatcher.add(tasks())
    assert sent(dispatcher) == [(1, 0)]
    dispatcher.hedge(0.9)
    assert sent(dispatcher, 0.9) == []
    dispatcher.hedge(1.1)
    assert sent(dispatcher, 1.1) == [(1, 1)]
    assert dispatcher.hedged == 1
    _, group = dispatcher.answered(1, 1, 1.2)
    dispatcher.settle(group)
    assert dispatcher.answered(0, 1, 9.0)[1] is None
    assert dispatcher.late == 1


def test_a_group_whose_only_host_is_lost_waits_before_the_others():
    dispatcher = Dispatcher(1.0)
    hosts_of(dispatcher, 1)
    for _ in range(5):
        dispatcher.add(tasks(4))
    assert sent(dispatcher) == [(1, 0), (2, 0)]
    dispatcher.lose(dispatcher.hosts[0])
    assert dispatcher.resent == 2
    dispatcher.hosts[7] = Host(7, 0, "0", "host 0", 2, ready=True)
    order = []
    for _ in range(3):  # those that have lost a host alone
        found = sent(dispatcher)
        order.append([number for number, _ in found])
        for number, key in found:
            dispatcher.settle(dispatcher.answered(key, number, 0.0)[1])
    assert order == [[1], [2], [3, 4]]


def test_a_group_that_has_lost_its_host_waits_until_one_has_nothing_else():
    dispatcher = Dispatcher(100.0)
    hosts_of(dispatcher, 2)
    for _ in range(6):
        dispatcher.add(tasks(4))
    sent(dispatcher)
    dispatcher.lose(dispatcher.hosts[0])  # it had 1 and 3; the other one has 2 and 4
    assert sent(dispatcher) == []
    dispatcher.settle(dispatcher.answered(1, 2, 0.0)[1])
    assert sent(dispatcher) == []
    dispatcher.settle(dispatcher.answered(1, 4, 0.0)[1])
    assert sent(dispatcher) == [(1, 1)]


def test_slow_batches_are_not_loaded_twice_where_every_host_has_something_to_do():
    dispatcher = Dispatcher(1.0)
    hosts_of(dispatcher, 2)
    for _ in range(8):
        dispatcher.add(tasks(4))
    sent(dispatcher)
    for host in dispatcher.hosts.values():
        host.news = 4.9  # both were heard just now
    dispatcher.hedge(5.0)
    assert sent(dispatcher, 5.0) == []


def test_every_group_is_settled_once_whatever_hosts_do():
    rng = random.Random(5)
    dispatcher, keys = Dispatcher(1.0), itertools.count(100)
    hosts_of(dispatcher, 20)
    settled, events, now, added = [], [], 0.0, 0
    while len(settled) < 2000:
        while len(dispatcher.groups) < 100 and added < 2000:
            dispatcher.add(tasks(rng.choice([1, 4, 32])), first=rng.random() < 0.2)
            added += 1
        for number, key in sent(dispatcher, now):
            seconds = rng.choice([0.05, 0.1, 3.0, None])  # None: it never answers
            if seconds:
                heapq.heappush(events, (now + seconds, key, number))
        if rng.random() < 0.05 and dispatcher.hosts:
            dispatcher.lose(rng.choice(list(dispatcher.hosts.values())))
        if len(dispatcher.hosts) < 20:
            key = next(keys)
            dispatcher.hosts[key] = Host(key, key, str(key), "a new one", 2, ready=True, news=now)
        now += 0.05
        while events and events[0][0] <= now:
            _, key, number = heapq.heappop(events)
            _, group = dispatcher.answered(key, number, now)
            if group is not None:
                settled.append(number)
                dispatcher.settle(group)
        dispatcher.hedge(now)
    assert sorted(settled) == list(range(1, 2001))
    assert dispatcher.hedged
    assert dispatcher.late
    assert dispatcher.resent
