"""`torch.compile` that tries several kernels for each operator, replayed as CUDA graphs."""

from cuda_agent.core.baselines import Form

FORM = Form("autotune", "torch.compile max-autotune", {"mode": "max-autotune"}, captured=True, on_request=True)
