"""The pool as Ray actors: builders on CPUs, a device host on each GPU, one evaluation per GPU at a time.

Pools of the same name share their actors, which end with the cluster or with the job that made them. Compiled libraries
are sent as bytes, so the machines need no common folder. This process holds them until their candidate is judged, and a
machine that judges removes the oldest as one that builds does.
"""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, DeviceError, WorkerError
from cuda_agent.judge import Case, prune_builds
from cuda_agent.pool.host import DeviceHost
from cuda_agent.pool.pool import SESSIONS, Pool
from cuda_agent.pool.server import Address
from cuda_agent.workers.helper import HelperProcess, Role

#: The path of a file that a builder wrote -> its bytes.
Parcel = dict[str, bytes]


class ClusterPool(Pool):
    """A `Pool` on a cluster: `judges` GPUs, and `builders` CPU actors of `compiler_jobs` cores each."""

    def __init__(
        self, options: JudgeOptions, *, judges: int, builders: int, sessions: int = SESSIONS, name: str = "cuda-agent"
    ) -> None:
        """Raises DeviceError where ray isn't installed or the process belongs to no cluster."""
        try:
            import ray
        except ImportError:
            raise DeviceError("ray isn't installed", "make train-env, or pip install ray") from None
        if not ray.is_initialized():
            raise DeviceError("This process belongs to no Ray cluster", "ray.init(address=…) first")
        self._name = name
        self._parcels: WeakKeyDictionary[Case, Parcel] = WeakKeyDictionary()
        gpus = tuple(str(number) for number in range(judges)) if options.device is Device.CUDA else ()
        super().__init__(options, gpus=gpus, builders=builders, sessions=sessions)

    def _open_device(self, number: int, gpu: str | None, count: int, kept: frozenset[int]) -> Address | None:
        """Adds one host for several tasks. The cluster chooses its machine, so the host has its own queue."""
        make = partial(DeviceHost, self._options, None, keep=self._sessions)
        self._add_host(make, f"device host {number + 1}", number)
        return None

    def _keep_cores(self, number: int, count: int) -> frozenset[int]:
        """Returns no cores, because they are another machine's."""
        return frozenset()

    def _kept_tasks(self) -> int:
        return self._sessions

    def _helper(self, make: Callable[[], Role], name: str, *, device: bool) -> HelperProcess:
        """Returns an actor. Ray assigns its GPU; the number in its name only tells actors apart."""
        on_gpu = device and self._options.device is Device.CUDA
        cpus = 2.0 if on_gpu else float(self._options.compiler_jobs)
        resources = {"num_cpus": cpus} | ({"num_gpus": 1.0} if on_gpu else {})
        return RemoteHelper(make, f"{self._name}: {name}", resources, self._parcels)


class RemoteHelper(HelperProcess):
    """A Ray actor in place of a process of this machine. It does one job after the other."""

    def __init__(
        self,
        make: Callable[[], Role],
        name: str,
        resources: dict[str, float],
        parcels: WeakKeyDictionary[Case, Parcel],
    ) -> None:
        super().__init__(make, name=name)
        self._resources, self._parcels = resources, parcels
        self._actor: Any = None
        self._making = threading.Lock()

    def call(self, job: str, *arguments: Any, told: Callable[[Any], None] = lambda value: None) -> Any:
        """Calls the role like `HelperProcess.call`, but reports nothing before the result."""
        import ray
        from ray.exceptions import RayActorError

        parcel = next((self._parcels.get(one, {}) for one in arguments if isinstance(one, Case)), {})
        try:
            kind, value, made = ray.get(self._get().call.remote(job, arguments, parcel))
        except RayActorError:
            self._actor = None
            raise WorkerError(f"The cluster's {self._name} ended during a call", "Try again") from None
        if kind == "failed":
            error, cause, remedy, detail = value
            raise error(cause, remedy, detail=detail)
        if made:
            self._parcels[value] = made
        return value

    def terminate(self) -> None:
        """Leaves the actor alive, because other pools may use it."""

    def close(self) -> None:
        self._actor = None

    def _get(self) -> Any:
        import ray

        with self._making:
            if self._actor is None:
                options = {"name": self._name, "get_if_exists": True, "max_concurrency": 1, **self._resources}
                self._actor = ray.remote(RoleActor).options(**options).remote(self._make)
            return self._actor


class RoleActor:
    """The actor: it has a role and writes the files of other machines for it."""

    def __init__(self, make: Callable[[], Role]) -> None:
        self._role = make()

    def call(self, job: str, arguments: tuple[Any, ...], parcel: Parcel) -> tuple[str, Any, Parcel]:
        """Returns ("done", the method's result, files that it wrote) or ("failed", the error's parts, no files)."""
        try:
            _unpack(parcel)
            value = getattr(self._role, job)(*arguments)
            return "done", value, _files(value.library) if isinstance(value, Case) else {}
        except CudaAgentError as error:
            return "failed", (type(error), error.cause, error.remedy, error.detail), {}


def _files(library: Path | None) -> Parcel:
    if library is None:
        return {}
    return {str(path): path.read_bytes() for path in library.parent.rglob("*") if path.is_file()}


def _unpack(parcel: Parcel) -> None:
    """Writes the files that are missing into the cache of builds. Folders are named by their content, so existing files
    are the same."""
    missing = [path for path in map(Path, parcel) if not path.exists()]
    for path in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(parcel[str(path)])
        temporary.chmod(0o644)
        temporary.replace(path)
    if missing:
        prune_builds(missing[0])
