"""`torch.compile` with its default settings."""

from cuda_agent.core.baselines import Form

FORM = Form("compile", "torch.compile", {}, at_defaults=True)
