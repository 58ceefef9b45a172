"""A component that nests its folders deeper than a path can say holds nothing up, and leaves nothing behind."""

import os
import tempfile
from pathlib import Path

import pytest

from engines.files import try_to_remove
from gateway.cli.check import Engines, _sandbox
from gateway.conformance.sandbox import Timeouts, files_in
from tests.contracts.test_folders import nest, put


def test_the_sandbox_is_taken_away_however_deep_its_folders_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with _sandbox(Engines.process, "tiny:1", "true", Timeouts()):
        (folder,) = tmp_path.iterdir()
        put(nest(folder, 5000), 100)
    assert not list(tmp_path.iterdir())


def test_files_beside_folders_that_are_too_deep_are_found(tmp_path: Path):
    log = tmp_path / "log"
    log.mkdir()
    (log / "a.log").write_text("a line\n")
    here = nest(log, 18, "d" * 220)
    for name in ("e" * 220, "f" * 220):
        os.symlink("/" + "x" * 200, name, dir_fd=here)
    os.close(here)
    (log / "link.log").symlink_to("a.log")
    try:
        assert files_in(log) == ("a.log", "link.log")
        assert files_in(tmp_path / "nowhere") == ()
    finally:
        try_to_remove(log)
