"""The task itself."""

from cuda_agent.core.baselines import Form

FORM = Form("eager", "eager", None, at_defaults=True)
