// Matrix products through cuBLASLt and cuBLAS: D = act(op(A) op(B) + bias), all row-major, batched twice.
//
// Everything that depends only on the shape (handles, descriptors, candidate algorithms, workspace) is made once and kept.
// Row-major D = A B is asked from the column-major libraries as Dt = Bt At, so "left" below is B and "right" is A.

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace {

enum Status { kOk = 0, kNotAvailable = -1, kLibrary = -2, kMemory = -3 };
enum Type { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
enum Math { kFull = 0, kTf32 = 1, kFastBf16 = 2, kFastF16 = 3 };
enum Activation { kNone = 0, kRelu = 1, kGeluTanh = 2 };

constexpr size_t kWorkspace = size_t(64) << 20;
constexpr int kAlgorithms = 16;
constexpr int kCublas = 1;  // the config that is cublasGemmEx; the others are cuBLASLt's candidates in order

struct Problem {
  int64_t m, n, k, batch;
  int64_t lda, ldb, ldd, stride_a, stride_b, stride_d;
  int transpose_a, transpose_b, type, math, activation, has_bias;
};

// Bytes to which a pointer is aligned, at most 256.
int alignment(const void* pointer) {
  const auto bits = reinterpret_cast<uintptr_t>(pointer) | 256;
  return static_cast<int>(bits & (~bits + 1));
}

cudaDataType_t data_type(int type) {
  return type == kFloat32 ? CUDA_R_32F : type == kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
}

cublasComputeType_t compute_type(const Problem& p) {
  if (p.type != kFloat32) return CUBLAS_COMPUTE_32F;
  switch (p.math) {
    case kTf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case kFastBf16: return CUBLAS_COMPUTE_32F_FAST_16BF;
    case kFastF16: return CUBLAS_COMPUTE_32F_FAST_16F;
    default: return CUBLAS_COMPUTE_32F;
  }
}

cublasLtEpilogue_t epilogue(const Problem& p) {
  switch (p.activation) {
    case kRelu: return p.has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case kGeluTanh: return p.has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default: return p.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// What one device needs, made at its first call. Workspaces are per stream, so that two streams never share one.
struct Context {
  cublasLtHandle_t lt = nullptr;
  cublasHandle_t blas = nullptr;
  std::map<cudaStream_t, void*> workspaces;
};

struct LtPlan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  // An array: nvcc 13.0 in C++20 mode dies on a vector of this C type.
  cublasLtMatmulHeuristicResult_t algorithms[kAlgorithms];
  int found = 0;
  ~LtPlan() {
    if (operation) cublasLtMatmulDescDestroy(operation);
    for (auto layout : {left, right, result})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
  }
};

std::mutex& lock() {
  static std::mutex instance;
  return instance;
}

int context(cudaStream_t stream, Context** result, void** workspace) {
  static std::map<int, Context> contexts;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return kLibrary;
  Context& c = contexts[device];
  if (!c.lt && cublasLtCreate(&c.lt) != CUBLAS_STATUS_SUCCESS) return kLibrary;
  if (!c.blas && cublasCreate(&c.blas) != CUBLAS_STATUS_SUCCESS) return kLibrary;
  void*& space = c.workspaces[stream];
  if (!space && cudaMalloc(&space, kWorkspace) != cudaSuccess) {
    cudaGetLastError();
    space = nullptr;
    return kMemory;
  }
  *result = &c;
  *workspace = space;
  return kOk;
}

bool make_layout(cublasLtMatrixLayout_t* layout, const Problem& p, int64_t rows, int64_t columns, int64_t ld,
                 int64_t stride) {
  if (cublasLtMatrixLayoutCreate(layout, data_type(p.type), rows, columns, ld) != CUBLAS_STATUS_SUCCESS) return false;
  const int count = static_cast<int>(p.batch);
  return cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) ==
             CUBLAS_STATUS_SUCCESS &&
         cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride) ==
             CUBLAS_STATUS_SUCCESS;
}

bool set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name, const void* value, size_t size) {
  return cublasLtMatmulDescSetAttribute(operation, name, value, size) == CUBLAS_STATUS_SUCCESS;
}

bool describe(LtPlan& plan, const Problem& p, const void* bias) {
  if (cublasLtMatmulDescCreate(&plan.operation, compute_type(p), CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) return false;
  const cublasOperation_t left = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasLtEpilogue_t tail = epilogue(p);
  return set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left) &&
         set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right) &&
         set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &tail, sizeof tail) &&
         (!p.has_bias || set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias)) &&
         make_layout(&plan.left, p, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.ldb, p.stride_b) &&
         make_layout(&plan.right, p, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.lda, p.stride_a) &&
         make_layout(&plan.result, p, p.n, p.m, p.ldd, p.stride_d);
}

bool find_algorithms(LtPlan& plan, cublasLtHandle_t handle, const std::array<int, 3>& aligned) {
  cublasLtMatmulPreference_t wish = nullptr;
  if (cublasLtMatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS) return false;
  auto put = [&](cublasLtMatmulPreferenceAttributes_t name, const void* value, size_t size) {
    return cublasLtMatmulPreferenceSetAttribute(wish, name, value, size) == CUBLAS_STATUS_SUCCESS;
  };
  const uint32_t a = aligned[0], b = aligned[1], d = aligned[2];
  bool good = put(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace) &&
              put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b) &&
              put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a) &&
              put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof d) &&
              put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d);
  int found = 0;
  good = good && cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.left, plan.right, plan.result, plan.result,
                                                wish, kAlgorithms, plan.algorithms, &found) == CUBLAS_STATUS_SUCCESS;
  plan.found = good ? found : 0;
  cublasLtMatmulPreferenceDestroy(wish);
  return true;  // none found is an answer too: that config isn't available
}

// The plan for a shape and alignment, made on first use. Null when the library refuses the description.
LtPlan* lt_plan(const Problem& p, const std::array<int, 3>& aligned, const void* bias, cublasLtHandle_t handle) {
  using Key = std::array<int64_t, 20>;
  static std::map<Key, std::unique_ptr<LtPlan>> plans;
  int device = 0;
  cudaGetDevice(&device);
  const Key key = {p.m,     p.n,    p.k,          p.batch,    p.lda,      p.ldb,      p.ldd,           p.stride_a,      p.stride_b,
                   p.stride_d, p.transpose_a, p.transpose_b, p.type, p.math, p.activation, p.has_bias, aligned[0], aligned[1],
                   aligned[2], device};
  auto& entry = plans[key];
  if (!entry) {
    auto fresh = std::make_unique<LtPlan>();
    if (!describe(*fresh, p, bias) || !find_algorithms(*fresh, handle, aligned)) return nullptr;
    entry = std::move(fresh);
  }
  return entry.get();
}

int run_lt(const Problem& p, Context& c, void* workspace, void* d, const void* a, const void* b, const void* bias,
           int index, cudaStream_t stream) {
  LtPlan* plan = lt_plan(p, {alignment(a), alignment(b), alignment(d)}, bias, c.lt);
  if (!plan) return kLibrary;
  if (index >= plan->found) return kNotAvailable;
  if (p.has_bias && !set(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias)) return kLibrary;
  const float one = 1.0f, zero = 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(c.lt, plan->operation, &one, b, plan->left, a, plan->right, &zero, d, plan->result, d, plan->result,
                     &plan->algorithms[index].algo, workspace, kWorkspace, stream);
  return status == CUBLAS_STATUS_SUCCESS ? kOk : kLibrary;
}

__device__ float activated(float x, int activation) {
  if (activation == kRelu) return x != x ? x : fmaxf(x, 0.0f);
  if (activation != kGeluTanh) return x;
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanhf(inner));
}

// d[z][row][column] = act(d + bias[column]); grid: columns, rows, batch.
template <typename T>
__global__ void add_tail(T* __restrict__ d, const T* __restrict__ bias, int64_t rows, int64_t columns, int64_t ld,
                         int64_t stride, int activation) {
  const int64_t column = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (column >= columns) return;
  const float shift = bias ? static_cast<float>(bias[column]) : 0.0f;
  T* base = d + blockIdx.z * stride + column;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y)
    base[row * ld] = static_cast<T>(activated(static_cast<float>(base[row * ld]) + shift, activation));
}

template <typename T>
int launch_tail(const Problem& p, void* d, const void* bias, cudaStream_t stream) {
  const dim3 grid(unsigned((p.n + 255) / 256), unsigned(p.m < 32768 ? p.m : 32768), unsigned(p.batch));
  add_tail<T><<<grid, 256, 0, stream>>>(static_cast<T*>(d), static_cast<const T*>(bias), p.m, p.n, p.ldd, p.stride_d,
                                        p.activation);
  return cudaGetLastError() == cudaSuccess ? kOk : kLibrary;
}

int run_cublas(const Problem& p, Context& c, void* workspace, void* d, const void* a, const void* b, const void* bias,
               cudaStream_t stream) {
  const bool tail = p.has_bias || p.activation != kNone;
  if (tail && p.batch > 65535) return kNotAvailable;
  if (cublasSetStream(c.blas, stream) != CUBLAS_STATUS_SUCCESS) return kLibrary;
  if (cublasSetWorkspace(c.blas, workspace, kWorkspace) != CUBLAS_STATUS_SUCCESS) return kLibrary;
  const float one = 1.0f, zero = 0.0f;
  const cudaDataType_t type = data_type(p.type);
  const auto left = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, right = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasStatus_t status =
      p.batch == 1 ? cublasGemmEx_64(c.blas, left, right, p.n, p.m, p.k, &one, b, type, p.ldb, a, type, p.lda, &zero, d, type,
                                     p.ldd, compute_type(p), CUBLAS_GEMM_DEFAULT)
                   : cublasGemmStridedBatchedEx_64(c.blas, left, right, p.n, p.m, p.k, &one, b, type, p.ldb, p.stride_b, a,
                                                   type, p.lda, p.stride_a, &zero, d, type, p.ldd, p.stride_d, p.batch,
                                                   compute_type(p), CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) return kLibrary;
  if (!tail) return kOk;
  if (p.type == kFloat32) return launch_tail<float>(p, d, bias, stream);
  if (p.type == kBFloat16) return launch_tail<__nv_bfloat16>(p, d, bias, stream);
  return launch_tail<__half>(p, d, bias, stream);
}

}  // namespace

// d[o][i] (m x n, row stride ldd) = act(op(a[o][i]) op(b[o][i]) + bias[n]) for o < outer, i < batch.
// transpose_x: the matrix lies transposed in memory (its rows along the unit stride's other side). Strides and leading
// dimensions are in elements. type: 0 float32, 1 bfloat16, 2 float16. math (float32 only): 0 full, 1 TF32, 2 bfloat16,
// 3 float16 products. activation: 0 none, 1 ReLU, 2 GELU (tanh). config: 0 cuBLASLt's first choice (cuBLAS where it
// has none), 1 cuBLAS, 2... cuBLASLt's next choices. Returns 0, or -1 when this config isn't available, -2 on a library error, -3 out of memory.
extern "C" int launch_gemm(void* d, const void* a, const void* b, const void* bias, long long m, long long n, long long k,
                           long long batch, long long lda, long long ldb, long long ldd, long long stride_a,
                           long long stride_b, long long stride_d, long long outer, long long outer_a, long long outer_b,
                           long long outer_d, int transpose_a, int transpose_b, int type, int math, int activation,
                           int config, cudaStream_t stream) {
  const Problem p = {m,        n,        k,           batch,       lda,  ldb,  ldd,        stride_a,
                     stride_b, stride_d, transpose_a, transpose_b, type, math, activation, bias != nullptr};
  const std::lock_guard<std::mutex> guard(lock());
  Context* c = nullptr;
  void* workspace = nullptr;
  if (const int status = context(stream, &c, &workspace)) return status;
  const int64_t width = type == kFloat32 ? 4 : 2;
  for (int64_t o = 0; o < outer; ++o) {
    void* to = static_cast<char*>(d) + o * outer_d * width;
    const void* left = static_cast<const char*>(a) + o * outer_a * width;
    const void* right = static_cast<const char*>(b) + o * outer_b * width;
    const int index = config == 0 ? 0 : config - 1;
    int status = config == kCublas ? kNotAvailable : run_lt(p, *c, workspace, to, left, right, bias, index, stream);
    if (status == kNotAvailable && config <= kCublas) status = run_cublas(p, *c, workspace, to, left, right, bias, stream);
    if (status) return status;
  }
  return kOk;
}
