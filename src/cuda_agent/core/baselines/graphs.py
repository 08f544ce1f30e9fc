"""The code of `compile`, replayed as CUDA graphs."""

from cuda_agent.core.baselines import Form
from cuda_agent.core.enums import Device

FORM = Form(
    "graphs",
    "torch.compile reduce-overhead",
    {"mode": "reduce-overhead"},
    captured=True,
    replays="compile",
    devices=(Device.CUDA,),
)
