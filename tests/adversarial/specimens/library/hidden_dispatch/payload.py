import torch

torch.nn.Module.__call__ = lambda self, x, y: torch.relu(torch.addcmul(y, x, self.scale))
