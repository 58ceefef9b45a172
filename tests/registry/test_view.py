"""One request sees one state of a provider; the next one sees what became of it since."""

import threading

import pytest

from provider_registry.registry import Registry, Unknown
from tests.registry.builders import a_provider
from tests.registry.memory import MemoryRepository


class Counting(MemoryRepository):
    reads = 0

    def get(self, key):
        self.reads += 1
        return super().get(key)


def test_within_a_view_a_provider_is_read_once_and_stays_as_it_was():
    kept = Counting()
    registry = Registry(kept)
    provider = a_provider()
    registry.register(provider)
    (name,) = provider.components

    def found():
        return registry.find(provider.name, provider.version, name)[0]

    kept.reads = 0
    with registry.one_view():
        before = found()
        work = threading.Thread(target=registry.retire, args=(provider.key,))  # another request
        work.start()
        work.join()
        reads = kept.reads
        with registry.one_view():
            assert found() is before
        assert found() is before
        assert kept.reads == reads
    with pytest.raises(Unknown, match="retired"):
        found()
