"""Lists the ATen operators that a captured graph keeps whole. All others are decomposed into core ATen operators by
`torch.export.default_decompositions()`, so that a planner meets a bounded vocabulary.

Names are without overload. Kept are operators for which a kernel is written as a whole, and those that decomposition
would only obscure.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(text.split())


PRODUCTS = words(
    """
    linear addmm mm bmm matmul baddbmm mv dot einsum conv1d conv2d conv3d convolution conv_transpose1d
    conv_transpose2d conv_transpose3d
    """
)

NORMS = words(
    """
    batch_norm _native_batch_norm_legit_no_training layer_norm rms_norm group_norm instance_norm
    local_response_norm linalg_vector_norm
    """
)

REDUCTIONS = words(
    """
    sum mean amax amin max min prod var std var_mean std_mean logsumexp argmax argmin any all count_nonzero
    softmax log_softmax cross_entropy_loss nll_loss nll_loss_nd cumsum cumprod cummax cummin logcumsumexp topk
    sort median max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices fractional_max_pool2d
    """
)

POINTWISE = words(
    """
    add sub mul div rsub neg abs sign sgn square pow sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p
    sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid log_sigmoid
    logit relu relu6 leaky_relu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh softplus
    softshrink hardshrink prelu threshold glu clamp clamp_min clamp_max maximum minimum fmod remainder floor
    ceil round trunc frac floor_divide addcmul addcdiv lerp where masked_fill eq ne lt le gt ge logical_and
    logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf isfinite
    nan_to_num heaviside hypot sinc xlogy copysign logaddexp triu tril _to_copy clone fill
    """
)

SHAPES = words(
    """
    view permute transpose t expand slice select cat split split_with_sizes stack unsqueeze squeeze flip roll
    repeat constant_pad_nd select_scatter slice_scatter diagonal unfold gather index_select index index_put
    scatter scatter_add embedding as_strided im2col col2im
    """
)

WHOLES = words(
    """
    scaled_dot_product_attention lstm gru rnn_tanh rnn_relu grid_sampler upsample_nearest2d
    """
)

SOURCES = words(
    """
    full full_like zeros ones zeros_like ones_like arange eye linspace scalar_tensor
    """
)

KEEP = PRODUCTS | NORMS | REDUCTIONS | POINTWISE | SHAPES | WHOLES | SOURCES
