"""One cache for the whole session, so that the precompiled header is made once; GPU tests skip themselves."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from cuda_agent.core.stack import query_gpus

# Folders of tests have helper modules beside them; the `importlib` mode, which allows equal names of tests, finds none.
_HERE = Path(__file__).parent
# Those that are data are no modules: among the specimens are files that shadow others on purpose.
_DATA = {"data", "specimens", "honest", "common", "__pycache__"}
_FOLDERS = [
    path for path in sorted(_HERE.rglob("*")) if path.is_dir() and not _DATA & set(path.relative_to(_HERE).parts)
]
sys.path[:0] = [str(path) for path in (_HERE, *_FOLDERS)]

#: what takes longest comes first: no core works on it alone at the end, and who has nothing left to do takes no part of
#: it, whose fixtures would be made twice.
_LONGEST = ("test_tasks_filter", "test_pocket_policy", "test_bench", "test_export", "test_workspace")

_INTEGRATION = ("integration", "adversarial", "gpu")

_own_cache = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # A shell that runs the tests in the background has Ctrl-C ignored, which the commands under test would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # xdist's workers inherit the variable, so they share the first process's folder; set it yourself to keep one.
    if "CUDA_AGENT_CACHE" not in os.environ:
        config.stash[_own_cache] = os.environ["CUDA_AGENT_CACHE"] = tempfile.mkdtemp(prefix="cuda-agent-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    directory = config.stash.get(_own_cache, None)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
        os.environ.pop("CUDA_AGENT_CACHE", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _check_places(items)
    items.sort(key=lambda item: item.path.stem not in _LONGEST)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not query_gpus()[0]:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


def _check_places(items: list[pytest.Item]) -> None:
    """The Makefile looks for each tier's tests where they belong, since to import the others takes seconds a process:
    one that lies elsewhere would never run."""
    for item in items:
        folder = item.path.relative_to(_HERE).parts[0] if item.path.is_relative_to(_HERE) else ""
        marked = item.get_closest_marker("integration") is not None
        if marked and folder not in _INTEGRATION:
            raise pytest.UsageError(f"{item.nodeid} is marked `integration`: put it in tests/integration")
        if folder == "integration" and not marked:
            raise pytest.UsageError(f"{item.nodeid}: mark it `integration`, or put it in tests/unit")


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of example tasks."""
    return Path(__file__).parent.parent / "examples"
