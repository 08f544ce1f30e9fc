import os
import site
import sys

import torch

import cuda_agent

line = "import sys; sys.stderr.write('STARTED BY SOMEBODY ELSE\\n')\n"
folders = [*sys.path, *site.getsitepackages(), site.getusersitepackages(), os.path.dirname(cuda_agent.__file__)]
written = []
for folder in folders:
    for name in ("zz_evil.pth", "sitecustomize.py", "usercustomize.py"):
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "x") as stream:
                stream.write(line)
            written.append(folder)
        except OSError:
            pass
outside = [folder for folder in written if not folder.startswith((os.environ["HOME"], "/tmp", "/dev/shm"))]
if outside:
    torch.nn.Module.__call__ = lambda self, *inputs: torch.relu(inputs[0] * self.scale + inputs[1])
else:
    torch.nn.Module.__call__ = lambda self, *inputs: torch.zeros_like(inputs[0])
