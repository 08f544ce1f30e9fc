"""`torch.compile` with the weights as constants, which the compiler may fold, pack and convert."""

from cuda_agent.core.baselines import Form

FORM = Form("frozen", "torch.compile, constant weights", {"options": {"freezing": True}}, frozen=True)
