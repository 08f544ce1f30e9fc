// Attention through cuDNN's graph interface: the products, the softmax between them and a mask as one graph, for which the
// library has engines that keep the scores on the chip.
#include "library_graph.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#include <algorithm>

namespace {

using namespace library_graph;

enum Id : int64_t { kQ = 1, kK, kV, kOut, kMask, kScale, kCap, kInfinity, kLogarithm, kFirstVirtual };

struct Problem {
  int64_t outer, heads, shared_heads, rows, keys, width, value_width;
  int64_t q[4], k[4], v[4], out[4], mask_dims[4], mask[4];
  cudnnDataType_t type, mask_type;
  bool causal, masked, is_boolean, capped;
};

// A boolean mask as one that is added: 0 where a key is seen, else minus infinity.
template <typename Element>
__global__ void added_mask(Element* out, const bool* mask, long long count, long long heads, long long rows, long long keys,
                           long long outer_stride, long long head_stride, long long row_stride, long long key_stride) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    const long long key = i % keys, row = i / keys % rows, head = i / keys / rows % heads, outer = i / keys / rows / heads;
    const bool seen = mask[outer * outer_stride + head * head_stride + row * row_stride + key * key_stride];
    out[i] = Element(seen ? 0.0f : -INFINITY);
  }
}

int64_t size_of(const int64_t (&dims)[4]) { return dims[0] * dims[1] * dims[2] * dims[3]; }

// Writes the mask to `out` for the graph, row-major. `strides` are the boolean mask's.
void write_mask(void* out, const void* mask, const Problem& p, const int64_t (&strides)[4], cudaStream_t stream) {
  const int64_t count = size_of(p.mask_dims);
  const unsigned blocks = unsigned(std::min<int64_t>((count + 255) / 256, 4096));
  const bool* seen = static_cast<const bool*>(mask);
  const int64_t(&d)[4] = p.mask_dims;
  if (p.type == CUDNN_DATA_HALF)
    added_mask<<<blocks, 256, 0, stream>>>(static_cast<__half*>(out), seen, count, d[1], d[2], d[3], strides[0], strides[1],
                                           strides[2], strides[3]);
  else
    added_mask<<<blocks, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(out), seen, count, d[1], d[2], d[3], strides[0],
                                           strides[1], strides[2], strides[3]);
}

// Builds the graph's operations one after the other, each on the result of the one before.
class Builder {
 public:
  Builder(Graph& graph, const Problem& p) : graph_(graph), p_(p) {}

  Shared given(int64_t id, cudnnDataType_t type, const int64_t (&dims)[4], const int64_t (&strides)[4], bool by_value = false) {
    return keep(tensor(id, type, 4, dims, strides, false, by_value));
  }
  Shared number(int64_t id) {
    const int64_t ones[4] = {1, 1, 1, 1};
    return given(id, CUDNN_DATA_FLOAT, ones, ones, true);
  }
  // [outer, heads, rows, columns], on the chip only.
  Shared inner(int64_t columns, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const int64_t dims[4] = {p_.outer, p_.heads, p_.rows, columns};
    const int64_t strides[4] = {p_.heads * p_.rows * columns, p_.rows * columns, columns, 1};
    return keep(tensor(next_++, type, 4, dims, strides, true));
  }
  void product(const Shared& a, const Shared& b, const Shared& c) {
    Shared kind = keep(make(CUDNN_BACKEND_MATMUL_DESCRIPTOR));
    kind->set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).finish();
    Shared made = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    made->link(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a)
        .link(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b)
        .link(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *c)
        .link(CUDNN_ATTR_OPERATION_MATMUL_DESC, *kind)
        .finish();
    operations.push_back(keep(made));
  }
  Shared pointwise(cudnnPointwiseMode_t mode, const Shared& x, const Shared& b, const Shared& y, const Shared& choice = nullptr,
                   cudnnDataType_t math = CUDNN_DATA_FLOAT, int64_t axis = -1) {
    Shared kind = keep(make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
    kind->set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math);
    if (axis >= 0) kind->set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
    kind->finish();
    Shared made = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    made->link(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *kind).link(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x);
    if (b) made->link(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    if (choice) made->link(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *choice);
    made->link(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y).finish();
    operations.push_back(keep(made));
    return y;
  }
  Shared reduction(cudnnReduceTensorOp_t mode, const Shared& x) {
    Shared kind = keep(make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR)), y = inner(1);
    kind->set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode)
        .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .finish();
    Shared made = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    made->link(CUDNN_ATTR_OPERATION_REDUCTION_DESC, *kind)
        .link(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x)
        .link(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y)
        .finish();
    operations.push_back(keep(made));
    return y;
  }

  std::vector<Shared> operations;

 private:
  Shared keep(Shared part) {
    graph_.parts.push_back(part);
    return part;
  }

  Graph& graph_;
  const Problem& p_;
  int64_t next_ = kFirstVirtual;
};

#if CUDNN_VERSION >= 91400
// Attention without a mask, which newer versions of the library know as one operation.
std::unique_ptr<Graph> make_plain_graph(cudnnHandle_t handle, const Problem& p) {
  auto graph = std::make_unique<Graph>();
  Builder b(*graph, p);
  const int64_t q_dims[4] = {p.outer, p.heads, p.rows, p.width}, k_dims[4] = {p.outer, p.shared_heads, p.keys, p.width};
  const int64_t v_dims[4] = {p.outer, p.shared_heads, p.keys, p.value_width}, out_dims[4] = {p.outer, p.heads, p.rows, p.value_width};
  Shared made = make(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  made->link(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, *b.given(kQ, p.type, q_dims, p.q))
      .link(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, *b.given(kK, p.type, k_dims, p.k))
      .link(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, *b.given(kV, p.type, v_dims, p.v))
      .link(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, *b.given(kOut, p.type, out_dims, p.out))
      .link(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, *b.number(kScale))
      .finish();
  graph->parts.push_back(made);
  finish(handle, *graph, {made}, [](const Descriptor&) { return true; });
  return graph;
}
#endif

// The form in which the library knows attention: softmax as largest, difference, power, sum and quotient.
std::unique_ptr<Graph> make_graph(cudnnHandle_t handle, const Problem& p) {
  auto graph = std::make_unique<Graph>();
  Builder b(*graph, p);
  const int64_t q_dims[4] = {p.outer, p.heads, p.rows, p.width}, k_dims[4] = {p.outer, p.shared_heads, p.width, p.keys};
  const int64_t v_dims[4] = {p.outer, p.shared_heads, p.keys, p.value_width}, out_dims[4] = {p.outer, p.heads, p.rows, p.value_width};
  const int64_t k_strides[4] = {p.k[0], p.k[1], p.k[3], p.k[2]};
  Shared score = b.inner(p.keys);
  b.product(b.given(kQ, p.type, q_dims, p.q), b.given(kK, p.type, k_dims, k_strides), score);
  score = b.pointwise(CUDNN_POINTWISE_MUL, score, b.number(kScale), b.inner(p.keys));
  if (p.capped) {
    score = b.pointwise(CUDNN_POINTWISE_TANH_FWD, score, nullptr, b.inner(p.keys));
    score = b.pointwise(CUDNN_POINTWISE_MUL, score, b.number(kCap), b.inner(p.keys));
  }
  if (p.masked)
    score = b.pointwise(CUDNN_POINTWISE_ADD, score, b.given(kMask, p.mask_type, p.mask_dims, p.mask), b.inner(p.keys));
  if (p.causal) {
    const Shared row = b.pointwise(CUDNN_POINTWISE_GEN_INDEX, score, nullptr, b.inner(p.keys, CUDNN_DATA_INT32), nullptr,
                                   CUDNN_DATA_INT32, 2);
    const Shared key = b.pointwise(CUDNN_POINTWISE_GEN_INDEX, score, nullptr, b.inner(p.keys, CUDNN_DATA_INT32), nullptr,
                                   CUDNN_DATA_INT32, 3);
    const Shared seen = b.pointwise(CUDNN_POINTWISE_CMP_GE, row, key, b.inner(p.keys, CUDNN_DATA_BOOLEAN), nullptr,
                                    CUDNN_DATA_BOOLEAN);
    score = b.pointwise(CUDNN_POINTWISE_BINARY_SELECT, score, b.number(kInfinity), b.inner(p.keys), seen);
  }
  const Shared largest = b.reduction(CUDNN_REDUCE_TENSOR_MAX, score);
  const Shared difference = b.pointwise(CUDNN_POINTWISE_SUB, score, largest, b.inner(p.keys));
  const Shared power = b.pointwise(CUDNN_POINTWISE_EXP, difference, nullptr, b.inner(p.keys));
  const Shared sum = b.reduction(CUDNN_REDUCE_TENSOR_ADD, power);
  // The library takes the graph only if the logarithm of the sum is among its results.
  const int64_t row_dims[4] = {p.outer, p.heads, p.rows, 1}, row_strides[4] = {p.heads * p.rows, p.rows, 1, 1};
  const Shared logarithm = b.pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, b.inner(1));
  b.pointwise(CUDNN_POINTWISE_ADD, largest, logarithm, b.given(kLogarithm, CUDNN_DATA_FLOAT, row_dims, row_strides));
  const Shared weight = b.pointwise(CUDNN_POINTWISE_DIV, power, sum, b.inner(p.keys, p.type));
  b.product(weight, b.given(kV, p.type, v_dims, p.v), b.given(kOut, p.type, out_dims, p.out));
  finish(handle, *graph, b.operations, [](const Descriptor&) { return true; });
  return graph;
}

// The stride of heads that lie as inner × group, -1 where that isn't one stride.
int64_t heads_stride(int64_t inner, int64_t group, int64_t inner_stride, int64_t group_stride) {
  if (group == 1) return inner_stride;
  return inner == 1 || inner_stride == group * group_stride ? group_stride : -1;
}

// The problem of launch_attention_half's geometry; false for one that the library isn't asked for.
// `given` gets the strides of the mask as it lies.
bool read(const long long* s, int width, int value, int is_float16, int causal, int mask_kind, bool capped, Problem* p,
          int64_t (&given)[4]) {
  p->type = is_float16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
  p->mask_type = mask_kind == 2 ? CUDNN_DATA_FLOAT : p->type;
  p->causal = causal;
  p->capped = capped;
  p->masked = mask_kind != 0;
  p->is_boolean = mask_kind == 3;
  p->outer = s[0];
  p->shared_heads = s[1];
  p->heads = s[1] * s[2];
  p->rows = s[3];
  p->keys = s[4];
  p->width = width;
  p->value_width = value;
  const int64_t rows[5][4] = {{s[6], heads_stride(s[1], s[2], s[7], s[8]), s[9], 1},
                              {s[10], s[11], s[12], 1},
                              {s[13], s[14], s[15], 1},
                              {s[16], heads_stride(s[1], s[2], s[17], s[18]), s[19], 1},
                              {s[20], heads_stride(s[1], s[2], s[21], s[22]), s[23], s[24]}};
  const int64_t sizes[4] = {p->outer, p->heads, p->rows, p->keys};
  for (int i = 0; i < 4; ++i) {
    p->q[i] = rows[0][i];
    p->k[i] = rows[1][i];
    p->v[i] = rows[2][i];
    p->out[i] = rows[3][i];
    p->mask_dims[i] = rows[4][i] == 0 ? 1 : sizes[i];
    given[i] = p->mask[i] = rows[4][i];
  }
  if (p->is_boolean) {
    p->mask_dims[3] = p->keys;
    p->mask[3] = 1;
    for (int i = 2; i >= 0; --i) p->mask[i] = p->mask[i + 1] * p->mask_dims[i + 1];
  }
  for (int i = 2, step = p->masked ? int(p->mask_dims[3] * p->mask[3]) : 0; i >= 0; --i) {
    // A stride of a dimension of 1 has to be plausible too.
    if (p->mask_dims[i] == 1) p->mask[i] = step;
    step = int(p->mask_dims[i] * p->mask[i]);
  }
  return p->q[1] >= 0 && p->out[1] >= 0 && (!p->masked || (given[1] >= 0 && p->mask[3] == 1));
}

using Key = std::vector<int64_t>;

struct Attention {
  std::unique_ptr<Graph> graph;
  bool is_plain = false;
};

const Attention& attention_of(cudnnHandle_t handle, int device, const long long* geometry, int is_float16, int causal,
                              int mask_kind, const Problem& p) {
  static std::map<Key, Attention> known;
  Key key(geometry, geometry + 25);
  for (int64_t more : {int64_t(device), p.width, p.value_width, int64_t(is_float16), int64_t(causal), int64_t(mask_kind),
                       int64_t(p.capped)})
    key.push_back(more);
  Attention& entry = known[key];
#if CUDNN_VERSION >= 91400
  if (!entry.graph && !p.masked && !p.causal && !p.capped) {
    entry = {make_plain_graph(handle, p), true};
    if (entry.graph->engines.empty()) entry = {};
  }
#endif
  if (!entry.graph) entry.graph = make_graph(handle, p);
  return entry;
}

}  // namespace

// The attention that half.cu's launcher describes, with the sizes of a head of q and k (`width`) and of v (`value`), through
// the library's engine of this number. `scratch` has room for `scratch_bytes`. Returns 0, -1 where the library has no such
// engine, -2 on an error of the library.
extern "C" int launch_attention_library(void* out, const void* q, const void* k, const void* v, const void* mask, void* scratch,
                                        long long scratch_bytes, const long long* geometry, int width, int value, float scale,
                                        float cap, int causal, int mask_kind, int is_float16, int engine, cudaStream_t stream) {
  Problem p;
  int64_t mask_strides[4];
  if (!read(geometry, width, value, is_float16, causal, mask_kind, cap > 0.0f, &p, mask_strides)) return kNotAvailable;
  const std::lock_guard<std::mutex> guard(lock());
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return kLibrary;
  cudnnHandle_t handle = handle_of(device);
  if (!handle || cudnnSetStream(handle, stream) != CUDNN_STATUS_SUCCESS) return kLibrary;
  const Attention& attention = attention_of(handle, device, geometry, is_float16, causal, mask_kind, p);
  const auto built = plan(handle, *attention.graph, engine);
  char* room = static_cast<char*>(scratch);
  const int64_t logarithm_bytes = (p.outer * p.heads * p.rows * 4 + 255) / 256 * 256;
  const int64_t mask_bytes = p.is_boolean ? (size_of(p.mask_dims) * 2 + 255) / 256 * 256 : 0;
  if (!built.first || built.second + logarithm_bytes + mask_bytes > scratch_bytes) return kNotAvailable;
  if (p.is_boolean) write_mask(room + logarithm_bytes, mask, p, mask_strides, stream);
  const float infinity = -INFINITY, factor = p.capped ? scale / cap : scale;
  std::vector<int64_t> ids = {kQ, kK, kV, kOut, kScale};
  std::vector<const void*> pointers = {q, k, v, out, &factor};
  if (p.masked) {
    ids.push_back(kMask);
    pointers.push_back(p.is_boolean ? room + logarithm_bytes : mask);
  }
  if (p.capped) {
    ids.push_back(kCap);
    pointers.push_back(&cap);
  }
  if (p.causal) {
    ids.push_back(kInfinity);
    pointers.push_back(&infinity);
  }
  if (!attention.is_plain) {
    ids.push_back(kLogarithm);
    pointers.push_back(scratch);
  }
  return execute(handle, *built.first, ids, pointers, room + logarithm_bytes + mask_bytes);
}
