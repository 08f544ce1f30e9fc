// Stands in for the header that torch's build generates when CUDA is on; only for compile checks with a CPU build of torch.
#pragma once
#define C10_CUDA_BUILD_SHARED_LIBS
