// What bindings include, compiled once (see compiler.py). Order and content are part of the cache key.
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#if defined(CUDA_AGENT_DEVICE_CUDA)
#include <cuda_runtime.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif
