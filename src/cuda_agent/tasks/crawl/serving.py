"""Answers the jobs of a crawl inside a sandboxed process, a fork of `zygote`."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from typing import Any

from cuda_agent.tasks.crawl.trials import CrawlJob, CrawlOutcome
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.requests import Operations


def serving(outcome: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Context], Operations]:
    """Returns the `create` of a module whose function `outcome` answers the jobs."""

    def create(_context: Context) -> Operations:
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        return {CrawlJob: lambda request: CrawlOutcome(outcome=json.dumps(outcome(json.loads(request.job))))}

    return create
