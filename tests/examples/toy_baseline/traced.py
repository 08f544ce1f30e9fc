"""`torch.compile` without a compiler: TorchDynamo's graph, run operator by operator."""

from cuda_agent.core.baselines import Form

FORM = Form("traced", "torch.compile, graph only", {"backend": "eager"})
