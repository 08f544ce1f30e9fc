"""A helper process: answers, what its role tells on the way, its death."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from counting_role import Counting

from cuda_agent.core.errors import UsageError, WorkerError
from cuda_agent.workers.helper import HelperProcess, tell

pytestmark = pytest.mark.integration


@pytest.fixture
def helper() -> Iterator[HelperProcess]:
    found = HelperProcess(Counting, name="counting")
    yield found
    found.close()


def test_what_a_role_tells_comes_before_its_answer(helper: HelperProcess) -> None:
    heard: list[object] = []
    assert helper.call("count", 3, told=heard.append) == 3 and heard == [0, 1, 2]
    assert helper.call("count", 2) == 2, "nobody need listen"
    with pytest.raises(UsageError, match="no"):
        helper.call("refuse", told=heard.append)
    with pytest.raises(WorkerError, match="ended while at work"):
        helper.call("die", told=heard.append)
    assert heard == [0, 1, 2, "nothing", "last words"]
    assert helper.call("count", 1, told=heard.append) == 1, "started again"


def test_telling_outside_of_a_helper_reaches_nobody() -> None:
    tell("anything")
