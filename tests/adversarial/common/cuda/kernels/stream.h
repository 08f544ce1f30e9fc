#pragma once
#include <cuda_runtime.h>
// Only bindings, which may see torch, use CURRENT_STREAM.
using stream_t = cudaStream_t;
#ifndef __CUDACC__
#include <c10/cuda/CUDAStream.h>
#define CURRENT_STREAM c10::cuda::getCurrentCUDAStream().stream()
#endif
