from __future__ import annotations

import tempfile
from pathlib import Path

from cuda_agent.workspace.sockets import bound_socket, listening_sockets


def test_listening_sockets_are_found_but_in_folders_that_are_passed_over() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here, there = Path(folder) / "here", Path(folder) / "there"
        here.mkdir()
        there.mkdir()
        with bound_socket(here / "a.sock"), bound_socket(there / "b.sock"):
            assert {here / "a.sock", there / "b.sock"} <= listening_sockets()
            found = listening_sockets(outside=(here,))
        assert there / "b.sock" in found and here / "a.sock" not in found
