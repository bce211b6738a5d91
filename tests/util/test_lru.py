"""Values kept by key: the least recently used leaves first, and each is loaded once."""

from kerasfeed.util.lru import Lru


def test_a_recursive_load_of_the_same_key_does_not_deadlock():
    cache = Lru(2, lambda _: 1)

    def outer():
        return 1 + cache.get_or_load("key", lambda: 1)[0]

    assert cache.get_or_load("key", outer) == (2, False)
    assert cache.get_or_load("key", outer) == (2, True)


def test_the_least_recently_used_value_is_evicted_first():
    cache = Lru(2, lambda _: 1)
    for key in (1, 2, 1, 3):
        cache.get_or_load(key, lambda: 9)
    assert [cache.get(key) for key in (1, 2, 3)] == [9, None, 9]
