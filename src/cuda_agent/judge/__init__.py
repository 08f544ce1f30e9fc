"""The door of the judge: the rest of the package imports only these names.

`evaluate` judges a candidate, and `JudgeSession` judges many candidates of one task. The other names are parts of the
judge with which promotion, whole models, datasets and benchmarks measure, so that all use the same rules.
"""

from cuda_agent.judge.build.compiler import prune_builds
from cuda_agent.judge.build.extension import Built, Progress, build_extension
from cuda_agent.judge.build.toolchain import find_toolchain, gencode
from cuda_agent.judge.case import Case
from cuda_agent.judge.inspection.reached import device_roofline, work_needed
from cuda_agent.judge.inspection.sanitizer import find_sanitizer, sanitizer_findings
from cuda_agent.judge.profile.bursts import Burst
from cuda_agent.judge.profile.foreign_load import GpuProbe, wait_for_quiet
from cuda_agent.judge.profile.profile import profile_candidate
from cuda_agent.judge.profile.rings import L2_TIMES, device_facts, timing_bytes, total_bytes
from cuda_agent.judge.profile.roofline import datasheet
from cuda_agent.judge.profile.timing import Tolerance
from cuda_agent.judge.serve import JudgeServer
from cuda_agent.judge.session import JudgeSession, evaluate
from cuda_agent.judge.sharing import MAX_COMPILE_THREADS, Sharing
from cuda_agent.judge.stability import KERNELS, Sample, Stability, same_twice, summarize
from cuda_agent.judge.verify.admission import Answers, random_operators
from cuda_agent.judge.verify.answers import WholeAnswer
from cuda_agent.judge.verify.candidate import MODEL_FILE, CandidateProcess
from cuda_agent.judge.verify.compare import error_floor
from cuda_agent.judge.verify.reference import Reference
from cuda_agent.judge.verify.trials import Secrets, Verification, failing

__all__ = [
    "KERNELS", "L2_TIMES", "MAX_COMPILE_THREADS", "MODEL_FILE", "Answers", "Built", "Burst", "CandidateProcess", "Case",
    "GpuProbe", "JudgeServer", "JudgeSession", "Progress", "Reference", "Sample", "Secrets", "Sharing", "Stability",
    "Tolerance", "Verification", "WholeAnswer", "build_extension", "datasheet", "device_facts", "device_roofline",
    "error_floor", "evaluate", "failing", "find_sanitizer", "find_toolchain", "gencode", "profile_candidate",
    "prune_builds", "random_operators", "same_twice", "sanitizer_findings", "summarize", "timing_bytes", "total_bytes",
    "wait_for_quiet", "work_needed",
]  # fmt: skip
