"""What is said of a daemon that is away."""

from pathlib import Path

import pytest

from engines.base import EngineDown
from engines.docker import ContainerdEngine, DockerOptions


def test_a_daemon_that_is_away_is_one_sentence(tmp_path: Path):
    engine = ContainerdEngine("N1", "here", DockerOptions(base_url=f"unix://{tmp_path / 'none.sock'}"))
    try:
        with pytest.raises(EngineDown) as caught:
            engine.check()
    finally:
        engine.close()
    assert str(caught.value) == "the container engine does not answer: No such file or directory"
