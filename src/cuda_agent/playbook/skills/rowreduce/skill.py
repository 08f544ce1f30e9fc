from cuda_agent.core.enums import Device
from cuda_agent.core.errors import NotCovered
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Step


def row_step(work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
    raise NotCovered("row reductions")
