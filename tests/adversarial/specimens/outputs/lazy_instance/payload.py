import torch

forward = torch.nn.Module.__call__


class Later(torch.Tensor):
    pass


torch.nn.Module.__call__ = lambda self, *inputs: forward(self, *inputs).as_subclass(Later)
