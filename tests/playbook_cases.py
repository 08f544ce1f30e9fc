"""Functions and inputs that the playbook's kernels are tried on, on both devices; small, with awkward shapes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from playbook_specials import SPECIAL, block_scales
from playbook_specials import drawn as _r


def _i(high: int, *shape: int) -> Any:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


BF16, LAST = torch.bfloat16, torch.channels_last


def gate(x: Any) -> Any:
    p = torch.softmax(x, -1)
    kept = torch.relu(p - 0.01)
    return kept / kept.sum(-1, keepdim=True)


def residual_norm(x: Any, r: Any) -> Any:
    h = x + r
    return h, F.rms_norm(h, (h.shape[-1],))


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


def by_hand_softmax(x: Any) -> Any:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def z_loss(x: Any, t: Any) -> Any:
    return F.cross_entropy(x, t, reduction="none") + 1e-4 * torch.logsumexp(x, -1).square()


def pasted(x: Any, y: Any, z: Any) -> Any:
    """Parts of a copy of x replaced, by functions and by assignment."""
    scattered = torch.select_scatter(torch.slice_scatter(x, y, 1, -9, -2), z, 0, 3)
    assigned = x.clone()
    assigned[:, 2:9] = y * 2.0
    assigned[3] = z
    return scattered, assigned.relu(), torch.slice_scatter(x, y[:, :0], 1, 4, 4) + 1.0


def put(x: Any, y: Any, at: Any) -> Any:
    """One place of x replaced or added to, in bfloat16."""
    x, y = x.bfloat16(), y.bfloat16()
    column = torch.ops.aten.index_put(x, [None, at], y)
    return column, torch.index_put(x, [at - 3, at], y[0], accumulate=True), x.index_copy(0, at, y[:1] * column[:1])


def counted(x: Any, y: Any) -> Any:
    """Histograms of integers and of floats, of which some lie outside."""
    return torch.histc(x, 6, -1.5, 1.0).cumsum(0), torch.histc(y.round(), 5, 0, 4) * 2.0


def sampled(x: Any, grid: Any) -> Any:
    grid = grid * 1.3
    return (
        F.grid_sample(x, grid, align_corners=False), F.grid_sample(x, grid, padding_mode="border", align_corners=True),
        F.grid_sample(x, grid, mode="nearest", align_corners=False) * 2.0,
    )  # fmt: skip


def causal(x: Any) -> Any:
    size = x.shape[-1]
    mask = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
    return torch.softmax((x * 0.125).masked_fill(~mask, float("-inf")), -1)


def to_nchw(x: Any, b: Any) -> Any:
    """x [N, H, W, C] -> silu(x + b) in [N, C, H, W]."""
    return F.silu(x.permute(0, 3, 1, 2).contiguous() + b.view(-1, 1, 1))


def gated_halves(x: Any, s: Any) -> Any:
    """x [N, H, W, 2C] -> the product of its halves in [N, C, H, W], plus s."""
    a, b = x.permute(0, 3, 1, 2).chunk(2, dim=1)
    return a * torch.sigmoid(b) + s


class Named(nn.Module):
    """Every kind of kernel, of values that are called as its own text calls something."""

    def forward(self, vector: Any, x1: Any, k: Any, v: Any, m2: Any, stream: Any) -> Any:
        row = (x1 * vector).softmax(-1) * k
        config = (v + m2).sum(0)
        first = (row - stream).cumsum(-1)
        tile = F.max_pool1d(v * vector, 3, 2, 1) + config[::2]
        return row, config, first, tile, (m2 * x1).t().contiguous()


POINTWISE: dict[str, tuple[Any, list[Any]]] = {
    **SPECIAL,
    "pasted": (pasted, [_r(6, 37), _r(6, 7), _r(37)]),
    "put": (put, [_r(6, 37), _r(6, 1), torch.tensor([4])]),
    "sampled": (sampled, [_r(2, 5, 9, 13), _r(2, 7, 6, 2)]),
    "gelu": (lambda x: F.gelu(x) * 2 + 1, [_r(64, 300)]),
    "gelu_tanh_bf16": (lambda x: F.gelu(x, approximate="tanh"), [_r(33, 70, dtype=BF16)]),
    "swiglu_bf16": (lambda x, y: F.silu(x) * y, [_r(16, 128, dtype=BF16), _r(16, 128, dtype=BF16)]),
    "broadcast": (lambda x, y: F.silu(x) * y.sigmoid() + 0.5, [_r(7, 33, 5), _r(33, 1)]),
    "bias": (lambda x, b: F.leaky_relu(x + b, 0.1), [_r(8, 1000), _r(1000)]),
    "channel": (lambda x, b: torch.tanh(x * b.view(1, -1, 1, 1)), [_r(2, 6, 9, 9), _r(6)]),
    "rotary": (rotate, [_r(4, 6, 64), _r(6, 64), _r(6, 64)]),
    "block_diagonal": (lambda x, y: torch.block_diag(x, y) * 2.0, [_r(5, 7), _r(6, 12)]),
    "odd_cat": (lambda x, y: torch.cat([x, y * 2], -1).exp(), [_r(5, 7), _r(5, 12)]),
    "transpose": (lambda x: x.transpose(1, 2).exp(), [_r(4, 6, 64)]),
    "transpose_alone": (lambda x: x.transpose(1, 2).contiguous(), [_r(4, 6, 64)]),
    "transpose_laid_out": (lambda x: x.exp().transpose(1, 2).contiguous(), [_r(4, 6, 64)]),
    "two_layouts": (lambda x: ((y := x.tanh()), y.transpose(0, 2), y.transpose(0, 2).contiguous()), [_r(4, 6, 8)]),
    "permute_copy": (lambda x: x.view(4, 3, 2, 64).permute(0, 2, 1, 3).reshape(4, -1) + 1, [_r(4, 6, 64)]),
    "tiled_permute": (lambda x: torch.relu(x.permute(0, 2, 1).contiguous()), [_r(3, 70, 132)]),
    "tiled_odd": (lambda x: torch.relu(x.permute(0, 2, 1).contiguous()), [_r(3, 67, 33)]),
    "tiled_bf16": (lambda x: torch.relu(x.permute(0, 2, 1).contiguous()), [_r(2, 136, 72, dtype=BF16)]),
    "tiled_matrix_double": (lambda x: x.t().contiguous() * 2, [_r(50, 90, dtype=torch.float64)]),
    "to_nchw": (to_nchw, [_r(2, 9, 12, 40), _r(40)]),
    "to_nchw_bf16": (to_nchw, [_r(2, 8, 16, 72, dtype=BF16), _r(72, dtype=BF16)]),
    "to_nhwc": (lambda x: torch.relu(x.contiguous(memory_format=LAST)), [_r(2, 40, 9, 12)]),
    "gated_halves": (gated_halves, [_r(2, 8, 8, 96), _r(2, 48, 8, 8)]),
    "causal_fill": (lambda x: x.masked_fill(torch.ones(64, 64, device=x.device).tril() == 0, -1e9), [_r(4, 64, 64)]),
    "several": (lambda x: (F.mish(x), F.softplus(x), F.hardswish(x), (x > 0) & (x < 1)), [_r(1000) * 5]),
    "more": (lambda x: (F.elu(x), F.selu(x), F.softsign(x), F.logsigmoid(x), F.relu6(x)), [_r(999) * 5]),
    # Quotients that round up to a whole number, of both signs.
    "floored": (
        lambda x, y: ((t := (x * 20).round() * y), torch.floor_divide(t, y), torch.div(t, -y, rounding_mode="floor")),
        [_r(5000), _r(5000)],
    ),
    "trigonometry": (lambda x: (x.sin() + x.cos(), torch.atan(x), torch.erf(x), torch.log1p(x.abs())), [_r(777) * 9]),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3)) + 1, [_r(5, 17)]),
    "nextafter": (lambda x, y: x.relu().nextafter(y) * 2, [_r(5, 17), _r(17)]),
    "pad_and_cut": (lambda x: F.pad(x, (0, 0, 1, -1)) * 2 + F.pad(x, (-3, 3, -1, 1), value=0.5), [_r(2, 5, 17)]),
    "pad_integers": (lambda x: F.pad(x, (1, 2)) * 2, [_i(100, 5, 17)]),
    "index": (lambda x, i: x[:, i] * 2, [_r(5, 17), _i(17, 9)]),
    "flip": (lambda x: x.flip(1) + 1, [_r(5, 17)]),
    "powers": (
        lambda x, y: torch.where(x > y, x, y * 0.1) + x**3 - x**2.5 + y.clamp(-1, 1),
        [_r(50, 70).abs(), _r(70)],
    ),
    "glu": (lambda x: F.glu(x, 1), [_r(5, 70, dtype=BF16)]),
    "integers": (lambda x: (x * 3 - 1) // 2 + x % 5, [_i(100, 8, 33)]),
    "to_int": (lambda x: (x * 10).to(torch.int32), [_r(300)]),
    "double": (lambda x: F.gelu(x).tanh(), [_r(70, dtype=torch.float64)]),
    "half": (lambda x, y: torch.lerp(x, y, 0.3), [_r(5, 64, dtype=torch.float16), _r(5, 64, dtype=torch.float16)]),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, [_r(40, 24), _i(40, 3, 5)]),
    "slices": (lambda x: x[:, 1::2] - x[:, ::2], [_r(6, 40)]),
    "roll_repeat": (lambda x: (x.roll(3, 1), x.repeat(2, 3), x.roll(5)), [_r(4, 10)]),
    "logs": (lambda x, y: (torch.xlogy(x, y), torch.logaddexp(x, y), torch.hypot(x, y)), [_r(40).abs(), _r(40).abs()]),
    "scalar": (lambda x: x + 1, [torch.tensor(2.0)]),
    # Over one element, the reduction that makes the index isn't needed.
    "gather_of_one": (lambda x: x.exp().gather(0, x.exp().argmin(0, keepdim=True)), [_r(1, 500)]),
    "signs": (lambda x: (x.signbit(), x.tanh().signbit()), [_r(900, dtype=BF16)]),
}


def resampled(x: Any) -> Any:
    nearest = F.interpolate(x, scale_factor=1.7), F.interpolate(x, (11, 7), mode="nearest-exact")
    bilinear = F.interpolate(x, (5, 13), mode="bilinear"), F.interpolate(x, (5, 9), mode="bilinear", align_corners=True)
    return *nearest, *bilinear, F.interpolate(x, (11, 7), mode="bicubic")


RESAMPLED: dict[str, tuple[Any, list[Any]]] = {
    "doubled": (lambda x: F.relu(F.interpolate(x, scale_factor=2.0)), [_r(2, 3, 7, 10)]),
    "resampled": (resampled, [_r(2, 3, 7, 10)]),
    "trilinear": (lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear"), [_r(1, 2, 4, 6, 5, dtype=BF16)]),
    "unfold": (lambda x: F.unfold(x, 3, padding=1).tanh(), [_r(2, 3, 9, 10)]),
    "two_indices": (lambda x, i, j: x[:, i, j - 6] + 1, [_r(4, 5, 6, 3), _i(5, 7), _i(6, 7)]),
}


def averaged_patches(x: Any) -> Any:
    """Patches are changed, added up, and divided by how many there are."""
    x, many = F.gelu(x) * 2, F.fold(torch.ones(1, 12, 72, device=x.device), (10, 8), (4, 3), padding=1, stride=1)
    return F.fold(x, (10, 8), (4, 3), padding=1, stride=1) / many


FOLDED: dict[str, tuple[Any, list[Any]]] = {
    "fold": (lambda x: F.fold(x, (8, 12), 4, padding=1, stride=2).relu() + 1, [_r(2, 48, 24)]),
    "fold_averaged": (averaged_patches, [_r(2, 36, 72)]),
    "fold_dilated": (lambda x: F.fold(x, (9, 10), 3, dilation=(2, 3), padding=(1, 2), stride=(3, 2)), [_r(18, 12)]),
    "fold_shared_factor": (lambda x: F.fold(x, (12, 13), 3, 4, padding=2, stride=(6, 2)), [_r(1, 18, 10)]),
    "fold_gaps": (lambda x: F.fold(x, (11, 12), 2, stride=(5, 4)), [_r(3, 8, 6, dtype=torch.float64)]),
    "fold_side_by_side": (lambda x, y: F.fold(x, 12, (3, 4), stride=(3, 4)) * y, [_r(2, 60, 12), _r(5, 12, 12)]),
    "fold_bf16": (lambda x: F.silu(F.fold(x.tanh(), (9, 8), 3, padding=1)), [_r(2, 27, 72, dtype=BF16)]),
    "fold_half": (lambda x: F.fold(x, 16, 8, stride=2).sum(-1), [_r(2, 64, 25, dtype=torch.float16)]),
    "fold_many_taps": (lambda x: F.fold(x, (12, 13), 9, padding=4), [_r(1, 162, 156)]),
    "unfold_crooked": (lambda x: F.unfold(x, 3, padding=1).tanh(), [_r(2, 3, 9, 12)]),
    "unfold_apart": (lambda x: F.unfold(x, (2, 3), (3, 1), (0, 2), (1, 2)) * 2, [_r(3, 9, 13, dtype=BF16)]),
    "deviation_of_unfold": (lambda x: F.unfold(x, 3, padding=1).std(1), [_r(2, 5, 6, 20)]),
    "pool_of_fold": (lambda x: F.max_pool2d(F.fold(x, 12, 4, padding=1, stride=2), 3, 2), [_r(2, 48, 36)]),
}


def scans_of_middle(x: Any, m: Any) -> Any:
    return torch.cumsum(x * m, 1).tanh() + x, x.cumprod(1), x.cummax(1).values


SCANS: dict[str, tuple[Any, list[Any]]] = {
    "running_sum": (lambda x: torch.cumsum(F.relu(x), -1) * 0.1, [_r(9, 1300)]),
    "running_sum_backwards": (lambda x: x.flip(-1).cumsum(-1).flip(-1) - x, [_r(3, 5, 260)]),
    "running_sums_odd_bf16": (lambda x: (x.cumsum(-1), x.cummin(-1).values), [_r(7, 333, dtype=BF16)]),
    "running_log_sum": (lambda x: torch.logcumsumexp(x, -1), [_r(6, 200) * 4]),
    "running_masked_middle": (scans_of_middle, [_r(3, 90, 70), (_r(3, 90, 70) > 0).float()]),
    "running_first_backwards": (lambda x: x.flip(0).cumsum(0).flip(0), [_r(150, 40)]),
    "sum_of_running": (lambda x: torch.softmax(x, -1).cumsum(-1).square().mean(-1), [_r(30, 50)]),
    "masked_scatter": (
        lambda x, y: (x.masked_scatter(x > 0.3, y) * 2.0, torch.masked_scatter(x, x[0] > 0, y)),
        [_r(5, 9, 70), _r(4000)],
    ),
    "running_whole_numbers": (lambda x: x.cumsum(0), [_i(1000, 33, 8)]),
    "running_of_one_row": (lambda x: x.view(-1).cumsum(0), [_r(40, 50)]),
}


def substitute(x: Any) -> Any:
    """Row by row, each from those above it: what a row is made of doubles with every row."""
    x = x.tril(-1)
    for i in range(1, x.shape[-1]):
        row, above = x[..., i, :i].clone(), x[..., :i, :i].clone()
        x[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
    return x


REDUCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "turned": (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (40,)), [_r(3, 40, 9, 8)]),
    "turned_bf16": (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (72,)), [_r(2, 72, 20, 16, dtype=BF16)]),
    "turned_odd": (lambda x: x.softmax(1).transpose(1, 2).contiguous(), [_r(3, 37, 13)]),
    "turned_too": (lambda x: ((y := x.softmax(1)), (2 * y).transpose(1, 2).contiguous()), [_r(2, 64, 132)]),
    "turned_f64": (lambda x: (x - x.amax(1, True)).transpose(1, 2).contiguous(), [_r(2, 70, 264).double()]),
    "counted": (counted, [_r(11, 24), _r(300)]),
    "names": (Named(), [_r(24, 64), _r(24, 64), _r(24, 64), _r(24, 64), _r(24, 64), _r(24, 64)]),
    "searched": (
        lambda x, s, i, t: (
            torch.searchsorted(s, x),
            torch.bucketize(x, s, right=True, out_int32=True),
            torch.searchsorted(s[:1], x, side="right") + 1,
            torch.bucketize(i, t),
            torch.searchsorted(s[4:], 0.3),
        ),
        [_r(6, 37).round(decimals=1), _r(41).round(decimals=1).sort()[0], _i(9, 5, 30), _i(9, 12).sort()[0]],
    ),
    "searched_rows": (lambda x, s: torch.searchsorted(s, x).sum(-1), [_r(7, 33), _r(7, 70).sort(-1)[0]]),
    "embedding_bag": (lambda i, w: F.embedding_bag(i, w) * 2, [_i(40, 6, 33), _r(40, 24)]),
    "embedding_bag_max": (lambda i, w: F.embedding_bag(i, w, mode="max"), [_i(40, 6, 7), _r(40, 24, dtype=BF16)]),
    "embedding_bag_weighted": (
        lambda i, w, f: F.embedding_bag(i, w, per_sample_weights=f, mode="sum"),
        [_i(40, 6, 7), _r(40, 24), _r(6, 7)],
    ),
    "softmax_laid_out": (lambda x: x.softmax(-1).transpose(1, 2).contiguous(), [_r(4, 6, 64)]),
    "count_nonzero": (lambda x: (torch.count_nonzero(x.relu(), 1), torch.count_nonzero(x.relu())), [_r(9, 40)]),
    "extremes_of_bools": (lambda x: (x.amax(-1), x.amin(-1), x.amax(0), x.amin((0, 1))), [_r(9, 40) > 0.5]),
    "rows_at_extremes": (lambda x: x.index_select(0, x.argmax(-1) % 5) + x.amax(-1, True), [_r(6, 64)]),
    "softmax": (lambda x: torch.softmax(x * 2, -1), [_r(64, 300)]),
    "sum_of_long_columns": (lambda x, y: (x * y[:, None]).mean(0), [_r(4096, 64), _r(4096)]),
    "softmax_of_products": (lambda x, y: (x * y[:, None]).softmax(0), [_r(300, 64) * 30, _r(300) * 30]),
    "softmax_wide": (lambda x: torch.softmax(x, -1), [_r(9, 4096)]),
    "softmax_odd_bf16": (lambda x: torch.softmax(x, -1), [_r(13, 777, dtype=BF16)]),
    "softmax_by_hand": (by_hand_softmax, [_r(31, 128)]),
    "causal_softmax": (causal, [_r(2, 3, 64, 64)]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), [_r(33, 64, dtype=BF16)]),
    "layer_norm": (nn.LayerNorm(300), [_r(7, 5, 300) + 3]),
    "residual_rms_norm": (residual_norm, [_r(7, 5, 256) + 3, _r(7, 5, 256)]),
    "residual_rms_norm_bf16": (residual_norm, [_r(6, 2048, dtype=BF16), _r(6, 2048, dtype=BF16)]),
    "norm_of_gelu": (lambda x: F.gelu(F.layer_norm(F.gelu(x), (512,))), [_r(20, 512)]),
    "group_norm": (nn.GroupNorm(4, 8), [_r(3, 8, 6, 6) * 2 + 1]),
    "group_norm_silu": (lambda x: F.silu(F.group_norm(x, 2)), [_r(3, 8, 16, 16)]),
    "instance_norm": (lambda x: F.instance_norm(x), [_r(7, 16, 10, 13) + 3]),
    "batch_norm": (nn.BatchNorm2d(6), [_r(4, 6, 5, 5)]),
    "batch_norm_of_batch": (lambda x: F.batch_norm(x, None, None, training=True), [_r(7, 16, 10, 13) + 3]),
    "cross_entropy_of_probabilities": (
        lambda x, t: (
            F.cross_entropy(x, t.softmax(1), label_smoothing=0.1),
            F.cross_entropy(x, t.softmax(1), reduction="none"),
        ),
        [_r(33, 50, 3) * 3, _r(33, 50, 3)],
    ),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), [_r(33, 500) * 3, _i(500, 33)]),
    "z_loss": (z_loss, [_r(6, 9000) * 4, _i(9000, 6)]),
    "sum": (lambda x: x.sum(), [_r(33, 500) + 1]),
    "long_sum": (lambda x: (x * x).mean(), [_r(300, 1000)]),
    "standardise": (lambda x: (x - x.mean()) / x.std(), [_r(133, 500) + 2]),
    "mean_of_gelu": (lambda x: F.gelu(x).mean(-1), [_r(33, 500)]),
    "extremes": (lambda x: (x.amax(-1), x.amin(-1), x.logsumexp(-1), x.prod(-1)), [_r(33, 60)]),
    "block_scales": (block_scales, [_r(65, 32)]),
    "block_scales_of_few_rows": (block_scales, [_r(2, 5001)]),
    "any_all": (lambda x: ((x > 2).any(-1), (x > -3).all(-1), x.norm(dim=-1)), [_r(33, 60)]),
    "moe_gate": (gate, [_r(300, 64) * 3]),
    "normalize": (lambda x: F.normalize(x, dim=-1), [_r(33, 64)]),
    "long_layer_norm": (lambda x: F.layer_norm(x, (40000,)), [_r(3, 40000) + 1]),
    "long_softmax": (lambda x: torch.softmax(x, -1), [_r(3, 70000)]),
    "huge_softmax": (lambda x: torch.softmax(x, -1), [_r(2, 600000)]),
    "softmax_channels": (lambda x: torch.softmax(x * 2, 1), [_r(4, 30, 8, 20)]),
    "cat_sum": (lambda x, y: torch.cat([x, y]).sum(0), [_r(7, 5, 33), _r(4, 5, 33)]),
    "cat_softmax": (lambda x, y: torch.cat([x, y]).softmax(0), [_r(7, 5, 33), _r(4, 5, 33)]),
    "cat_softmax_rows": (lambda x, y: torch.cat([x, y], 1).softmax(-1), [_r(7, 33), _r(7, 12)]),
    "cat_norm": (lambda x, y: F.layer_norm(torch.cat([x, y], 1), (5000,)), [_r(7, 3000), _r(7, 2000)]),
    "cat_extremes": (lambda x, y: torch.cat([x, y]).amax((0, 2)), [_r(7, 5, 33), _r(4, 5, 33)]),
    "norm_spread": (lambda x: F.layer_norm(x, (40,)).diag_embed(), [_r(9, 40)]),
    "softmax_repeated": (lambda x: torch.softmax(x, -1).repeat(16, 1), [_r(9, 40)]),
    "forward_substitution": (substitute, [_r(3, 7, 7) * 0.3]),
    "softmax_first": (lambda x: F.softmax(x, 0) + x, [_r(700, 130)]),
    "sum_first": (lambda x: x.sum(0), [_r(7000, 60) + 3]),
    "mean_var_middle": (lambda x: (x.mean(1), x.var(1)), [_r(7, 70, 130) + 3]),
    "mean_middle_bf16": (lambda x: x.mean(1), [_r(4, 600, 64, dtype=BF16)]),
    "mean_channels": (lambda x: x.mean((0, 2, 3)), [_r(7, 16, 10, 13) + 3]),
    "channel_norm": (lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt(), [_r(4, 64, 33)]),
    "two_frames": (lambda x: F.softmax(x, -1).sum(0), [_r(40, 50)]),
    "reductions_of_scalars": (lambda x: (x.amin(0).sum(0) + 1, x.amin(0).mean(0).amax(0) * 2), [_r(9)]),
    "indices_and_flips_of_scalars": (lambda x: (x.amin(0).argmax(0) + 1, x.amin(0).flip(0) * 2), [_r(9)]),
    "kl": (
        lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y.flip(0), -1), reduction="batchmean"),
        [_r(20, 60), _r(20, 60)],
    ),
    "cosine": (lambda x, y: F.cosine_similarity(x, y.flip(0), dim=-1), [_r(20, 60), _r(20, 60)]),
    "int_sum": (lambda x: x.sum(-1), [_i(1000, 8, 33)]),
    "picked_matrices": (
        lambda w, i, x, y: ((w[i] * F.silu(x)[:, None]).sum(-1), (w[i] * y[:, :, None]).sum(1), w[i, 3].exp()),
        [_r(7, 96, 64), _i(7, 9), _r(9, 64), _r(9, 96)],
    ),
    "picked_softmax": (lambda w, i: torch.softmax(w[i] * 2, -1), [_r(7, 9000), _i(7, 9)]),
    "argmax": (lambda x: (x.argmax(-1), x.max(-1), x.min(-1).indices), [_r(33, 700, dtype=BF16).round()]),
    "argmin_of_gelu": (lambda x: F.gelu(x).argmin(1), [_r(7, 70, 30)]),
    "argmax_long": (lambda x: ((x * 2).argmax(-1, keepdim=True), x.argmax()), [_r(3, 70000)]),
    "argmax_of_whole_numbers": (lambda x: x.argmax(-1), [_i(9, 8, 33)]),
    "dist": (lambda x, y: torch.dist(x, y, 3.0), [_r(20, 60), _r(20, 60)]),
}


def _last(*shape: int) -> Any:
    return _r(*shape).to(memory_format=LAST)


def _channels(size: int, kernel: Any, multiple: int = 1, dims: int = 2, **options: Any) -> Any:
    """A depthwise convolution, `multiple` results a channel."""
    torch.manual_seed(size)
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](size, size * multiple, kernel, groups=size, **options)


def both_pools(x: Any) -> Any:
    h = F.gelu(x)
    return F.max_pool2d(h, 3, 1, 1), F.avg_pool2d(h, 3, 1, 1), F.avg_pool2d(h, 3, 1, 1).exp()


def with_nan(x: Any) -> Any:
    """A maximum keeps NaN, of which some windows have one."""
    return F.max_pool2d(torch.where(x > 1.9, float("nan"), x), 3, 2, 1).isnan()


def local_contrast(x: Any) -> Any:
    """x less its neighbourhood's mean, and the pooled result of that."""
    return F.max_pool2d(torch.relu(x - F.avg_pool2d(x, 5, 1, 2, count_include_pad=False)), 2)


WINDOWS: dict[str, tuple[Any, list[Any]]] = {
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), [_r(2, 3, 17, 19) - 5]),
    "max_pool_bf16": (lambda x: F.relu(F.max_pool2d(x, 2)) + 1, [_r(2, 6, 24, 40, dtype=BF16)]),
    "max_pool_ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), [_r(2, 3, 16, 20) - 5]),
    "max_pool_dilated": (lambda x: F.max_pool1d(x, 3, 2, 1, dilation=2).tanh(), [_r(3, 5, 70)]),
    "max_pool_3d": (lambda x: F.max_pool3d(x, 3, 2, 1), [_r(2, 3, 7, 9, 12) - 3]),
    "max_pool_nan": (with_nan, [_r(2, 3, 17, 19)]),
    "max_pool_many_taps": (lambda x: F.max_pool2d(x, 13, 1, 6), [_r(1, 3, 17, 19)]),
    "max_pool_twice": (lambda x: F.max_pool2d(F.max_pool2d(x, 5, 1, 2) * 2, 5, 1, 2), [_r(1, 3, 17, 20)]),
    "avg_pool": (lambda x: F.avg_pool2d(F.gelu(x), 3, 2, 1), [_r(2, 3, 16, 18)]),
    "avg_pool_ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), [_r(2, 3, 16, 18)]),
    "avg_pool_inside": (lambda x: F.avg_pool1d(x, 4, 3, 2, True, False).exp(), [_r(2, 3, 41, dtype=BF16)]),
    "avg_pool_divisor": (lambda x: F.avg_pool3d(x, 2, divisor_override=3), [_r(2, 3, 6, 8, 10)]),
    "avg_pool_gapped": (lambda x: F.avg_pool2d(x, 2, 3), [_r(2, 3, 17, 20)]),
    "avg_pool_half": (lambda x: F.avg_pool2d(x, 5, 1, 2), [_r(2, 2, 12, 40, dtype=torch.float16)]),
    "avg_pool_double": (lambda x: F.avg_pool1d(x, 5, 2), [_r(2, 3, 64, dtype=torch.float64)]),
    "adaptive": (lambda x: (F.adaptive_avg_pool2d(x, (2, 3)), F.adaptive_max_pool2d(x, (2, 3))), [_r(2, 3, 8, 9)]),
    "adaptive_unequal": (
        lambda x: (F.adaptive_avg_pool2d(x, (3, 5)), F.adaptive_max_pool2d(x, (5, 3)), F.adaptive_avg_pool1d(x[0], 4)),
        [_r(2, 3, 8, 9)],
    ),
    "adaptive_wide": (
        lambda x: (
            F.adaptive_avg_pool2d(x, (3, 5)),
            F.adaptive_max_pool2d(x, (2, 7)),
            F.adaptive_avg_pool3d(x, (2, 3, 4)),
        ),
        [_r(2, 3, 41, 50)],
    ),
    "adaptive_side_by_side": (
        lambda x: (F.relu(F.adaptive_avg_pool2d(x, (2, 3))), F.adaptive_max_pool2d(x, (4, 1)), F.avg_pool1d(x[0], 48)),
        [_r(2, 3, 16, 48, dtype=BF16)],
    ),
    "adaptive_whole": (lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool1d(x[0], 1)), [_r(2, 3, 8, 9)]),
    "both_pools": (both_pools, [_r(2, 3, 17, 20)]),
    "mean_of_max_pool": (lambda x: F.max_pool1d(x, 2).mean(1, keepdim=True), [_r(3, 40, 66)]),
    "std_of_max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1).std(1), [_r(2, 24, 9, 13)]),
    "sum_of_avg_pool": (lambda x: F.avg_pool2d(F.gelu(x), 2).sum((2, 3)), [_r(2, 5, 12, 18, dtype=BF16)]),
    "max_of_depthwise": (lambda x, w: F.conv1d(x, w, stride=2, groups=6).amax(-1), [_r(3, 6, 65), _r(6, 1, 3)]),
    "local_contrast": (local_contrast, [_r(2, 3, 18, 20)]),
    "pool_of_softmax": (lambda x: F.max_pool2d(x.softmax(1), 2), [_r(2, 3, 8, 10)]),
    "pool_of_embedding": (
        lambda w, i: F.max_pool1d(F.embedding(i, w).transpose(1, 2), 3, 2, 1),
        [_r(40, 24), _i(40, 3, 17)],
    ),
    "pool_channels_last": (lambda x: F.max_pool2d(x, 3, 2, 1) * 2, [_last(2, 40, 9, 12)]),
    "pool_and_shuffle": (lambda x: F.pixel_shuffle(F.max_pool2d(x, 2), 2), [_r(2, 8, 8, 10)]),
    "depthwise_glu": (nn.Sequential(nn.GLU(1), _channels(6, 15, dims=1, padding=7), nn.SiLU()), [_r(2, 12, 132)]),
    "depthwise_odd": (nn.Sequential(_channels(5, 4, dims=1, padding="same"), nn.GELU()), [_r(5, 33)]),
    "depthwise_3x3": (nn.Sequential(_channels(6, 3, padding=1), nn.ReLU6()), [_r(3, 6, 14, 28)]),
    "depthwise_7x7_bf16": (_channels(4, 7, padding=3).to(BF16), [_r(2, 4, 14, 24, dtype=BF16)]),
    "depthwise_strided": (_channels(4, 5, stride=2, padding=2, bias=False), [_r(2, 4, 17, 35)]),
    "depthwise_dilated": (_channels(4, 3, padding=2, dilation=2), [_r(2, 4, 15, 24)]),
    "depthwise_multiple": (nn.Sequential(_channels(4, 3, 3, padding=1, stride=2), nn.Tanh()), [_r(2, 4, 17, 12)]),
    "depthwise_3d": (_channels(3, (3, 1, 3), dims=3, padding=(1, 0, 1)), [_r(2, 3, 6, 5, 12)]),
    "depthwise_channels_last": (_channels(40, 3, padding=1).to(memory_format=LAST), [_last(2, 40, 9, 7)]),
    "depthwise_many_planes": (nn.Sequential(_channels(32, 3, padding=1), nn.Hardswish()), [_r(8, 32, 7, 7)]),
}
