"""Rewrites keep the function (float64 and the graph's own types) and do what they are for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_graph import Function, capture, check, main_ops, operators

from cuda_agent.playbook.algebra import rewrite
from cuda_agent.workers.inside.graph.capture import capture as judge_capture


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_batch_norm_folds_into_convolution(dtype, bias, dims):
    conv = getattr(nn, f"Conv{dims}d")(4, 6, 3, padding=1, groups=2, bias=bias)
    norm = getattr(nn, f"BatchNorm{dims}d")(6)
    result = check(nn.Sequential(conv, norm, nn.ReLU()).to(dtype), torch.randn(2, 4, *[5] * dims, dtype=dtype))
    assert main_ops(result) == [f"conv{dims}d", "relu"]
    assert len(result.derive.outputs) == 2


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_folds_into_transposed_convolution(groups):
    module = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=groups), nn.BatchNorm2d(6))
    assert main_ops(check(module, torch.randn(2, 4, 5, 5)))[-1:] == ["conv_transpose2d"]


def test_batch_norm_folds_into_linear():
    result = check(nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5)), torch.randn(3, 8))
    assert main_ops(result) == ["linear"]


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_alone_is_a_scale_and_a_shift(affine):
    result = check(nn.Sequential(nn.BatchNorm2d(4, affine=affine), nn.ReLU()), torch.randn(2, 4, 3, 3))
    assert sorted(set(main_ops(result)) - {"reshape", "view"}) == ["add", "mul", "relu"]


def test_batch_norm_of_a_shared_convolution_is_not_folded():
    module = Function(
        lambda m, x: (lambda y: m.norm(y) + y)(m.conv(x)), conv=nn.Conv2d(3, 4, 1), norm=nn.BatchNorm2d(4)
    )
    result = check(module, torch.randn(2, 3, 4, 4))
    assert main_ops(result).count("conv2d") == 1


def test_diagonal_products_become_scalings():
    for function in (
        lambda m, x: torch.diag(m.d) @ x,
        lambda m, x: x.T @ torch.diag(m.d),
        lambda m, x: torch.matmul(torch.diag(m.d), x),
        lambda m, x: torch.mm(torch.diag_embed(m.d), x),
    ):
        ops = main_ops(check(Function(function, d=nn.Parameter(torch.randn(5))), torch.randn(5, 7)))
        assert "mul" in ops and "linear" not in ops and "mm" not in ops and "diag" not in ops
    ops = main_ops(check(Function(lambda m, d, x: torch.diag(d) @ x), torch.randn(5), torch.randn(5, 7)))
    assert "mul" in ops and "linear" not in ops
    ops = main_ops(check(Function(lambda m, d, x: torch.diag_embed(d) @ x), torch.randn(2, 5), torch.randn(2, 5, 7)))
    assert "mul" in ops and "matmul" not in ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mean_of_linear_becomes_matrix_vector(dtype):
    for tail in (
        lambda y: y.mean(-1),
        lambda y: y.sum(-1, keepdim=True),
        lambda y: y.mean((0, 2), keepdim=True),
        lambda y: y.mean(),
        lambda y: (y * 0.5 + 1).sum(-1) / 3,
        lambda y: y.mean(-1, keepdim=True).mean(1),
        lambda y: F.relu(y.sum(-1)),
    ):
        module = Function(lambda m, x, tail=tail: tail(m.fc(x)), fc=nn.Linear(8, 6)).to(dtype)
        ops = main_ops(check(module, torch.randn(2, 3, 8, dtype=dtype)))
        assert "linear" not in ops and "sum" in ops


def test_weighted_sum_of_linear_and_residual():
    module = Function(
        lambda m, x, z: ((m.fc(x) * m.w + z) / 2).mean(-1), fc=nn.Linear(8, 6), w=nn.Parameter(torch.randn(6))
    )
    ops = main_ops(check(module, torch.randn(3, 8), torch.randn(3, 6)))
    assert "linear" not in ops


def test_a_product_with_a_nonlinear_tail_stays():
    ops = main_ops(check(Function(lambda m, x: F.relu(m.fc(x)).sum(-1), fc=nn.Linear(8, 6)), torch.randn(3, 8)))
    assert ops == ["linear", "relu", "sum"]


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_reduction_over_tokens_moves_before_linear(op):
    module = Function(lambda m, x: getattr(m.fc(x), op)(1), fc=nn.Linear(8, 6))
    result = check(module, torch.randn(2, 5, 8))
    ops = main_ops(result)
    assert ops.index(op) < ops.index("linear")
    assert next(node for node in result.graph.nodes if "linear" in node.op).outputs[0].numel == 12


def test_reduced_product_of_two_activations():
    ops = main_ops(check(Function(lambda m, a, b: (a @ b).sum(-1)), torch.randn(2, 3, 4), torch.randn(2, 4, 5)))
    assert "matmul" not in ops
    ops = main_ops(check(Function(lambda m, a, b: (a @ b).mean(-2)), torch.randn(2, 3, 4), torch.randn(2, 4, 5)))
    assert ops[0] == "mean"
    ops = main_ops(check(Function(lambda m, a, b: torch.mm(a, b).sum(1)), torch.randn(3, 4), torch.randn(4, 5)))
    assert "linear" not in ops


def test_linear_chain_merges_only_where_it_saves():
    wide = nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 4))
    assert main_ops(check(wide, torch.randn(3, 4))) == ["linear"]
    narrow = nn.Sequential(nn.Linear(32, 2), nn.Linear(2, 32))
    assert main_ops(check(narrow, torch.randn(3, 32))) == ["linear", "linear"]


def test_matrices_times_one_vector_each_are_sums_of_products():
    a, b = torch.randn(3, 6, 5), torch.randn(3, 5, 1)
    assert main_ops(check(Function(lambda m, a, b: torch.bmm(a, b)), a, b)) == ["reshape", "mul", "sum"]
    row = Function(lambda m, a, b: b.transpose(1, 2) @ a.transpose(1, 2))
    assert "sum" in main_ops(check(row, a, b)) and "matmul" not in main_ops(check(row, a, b))
    # Matrices that several vectors share, and columns that lie apart, stay products.
    shared = Function(lambda m, a, b: a @ b.unsqueeze(0))
    assert main_ops(check(shared, torch.randn(2, 1, 6, 5), b)) == ["unsqueeze", "matmul"]
    columns = Function(lambda m, a, b: b.transpose(1, 2) @ a)
    assert main_ops(check(columns, torch.randn(3, 5, 6), b)) == ["transpose", "matmul"]


def test_scale_folds_into_weights():
    module = Function(
        lambda m, x: F.relu((m.fc(x) * m.s - 1) / 2), fc=nn.Linear(4, 6, bias=False), s=nn.Parameter(torch.ones(1))
    )
    assert main_ops(check(module, torch.randn(3, 4))) == ["linear", "relu"]
    module = Function(
        lambda m, x: m.c(x) * m.s + m.b, c=nn.Conv2d(3, 4, 3), s=torch.tensor(2.0), b=nn.Parameter(torch.randn(4, 1, 1))
    )
    assert main_ops(check(module, torch.randn(2, 3, 6, 6))) == ["conv2d"]
    module = Function(lambda m, x: m.c(x) + m.b, c=nn.Conv2d(3, 4, 3), b=nn.Parameter(torch.randn(4, 4, 1)))
    assert main_ops(check(module, torch.randn(2, 3, 6, 6))) == ["conv2d", "add"]


def test_scalars_merge_and_identities_go():
    module = Function(
        lambda m, x: F.dropout(x.clone() * 2.0 / 4.0 + 1 + 2, 0.5, False).reshape(12).view(3, 4).sin() * 1.0 + m.c,
        c=torch.tensor(3.0),
    )
    assert main_ops(check(module, torch.randn(3, 4)))[-2:] == ["sin", "add"]


def test_size_one_reductions_vanish():
    module = Function(lambda m, x: torch.logsumexp(x.sum(1, keepdim=True), 1).amax(-1, keepdim=True))
    assert set(main_ops(check(module, torch.randn(3, 4)))) <= {"sum", "reshape", "amax"}


def test_products_take_one_form():
    module = Function(
        lambda m, x: torch.addmm(m.b, x, m.w.t()) + x @ m.v,
        w=nn.Parameter(torch.randn(6, 4)),
        b=nn.Parameter(torch.randn(6)),
        v=nn.Parameter(torch.randn(4, 6)),
    )
    assert sorted(main_ops(check(module, torch.randn(3, 4)))) == ["add", "linear", "linear", "t"]
    result = check(Function(lambda m, x: x @ m.v, v=nn.Parameter(torch.randn(4, 1))), torch.randn(3, 4))
    assert "linear" not in main_ops(result)


def test_derive_takes_weight_only_work_but_not_views_or_masks():
    module = Function(lambda m, x: F.linear(x, m.w / m.w.norm(dim=1, keepdim=True)), w=nn.Parameter(torch.randn(6, 4)))
    result = check(module, torch.randn(3, 4))
    assert main_ops(result) == ["linear"] and len(result.derive.outputs) == 1
    module = Function(lambda m, x: x * (1 + m.w), w=nn.Parameter(torch.randn(4)))
    assert check(module, torch.randn(3, 4)).derive is None
    module = Function(lambda m, x: x.masked_fill(torch.ones(4, 4).tril() == 0, -5.0))
    assert check(module, torch.randn(4, 4)).derive is None
    module = Function(lambda m, x: x + torch.outer(torch.arange(4.0), 10000 ** (-torch.arange(4.0) / 4)).cos())
    result = check(module, torch.randn(4, 4))
    assert main_ops(result) == ["add"] and len(result.derive.outputs) == 1


def test_an_input_is_never_returned_itself():
    graph, _ = capture(Function(lambda m, x: x.clone()), torch.randn(3))
    assert operators(rewrite(graph).graph) == ["clone"]


def test_rewriting_is_idempotent_and_pure():
    graph, _ = capture(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(1, 3, 5, 5))
    text = graph.to_json()
    first = rewrite(graph)
    assert graph.to_json() == text
    assert rewrite(first.graph).graph == first.graph


def test_attention_becomes_products():
    shape = (2, 3, 5, 4)
    q, k, v = (torch.randn(shape) for _ in range(3))
    for function in (
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask),
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m.bias),
    ):
        mask = torch.randn(5, 5) > -1
        mask[:, 0] = True
        # A row without any place is 0.
        mask[3] = False
        bias = torch.randn(5, 5)
        bias[2] = -torch.inf
        ops = main_ops(check(Function(function, mask=mask, bias=nn.Parameter(bias)), q, k, v))
        assert ops.count("matmul") == 2 and ("softmax" in ops or "_safe_softmax" in ops)


def test_heads_that_share_keys_are_rows_of_one_product():
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 2, 7, 4), torch.randn(2, 2, 7, 3)
    mask = torch.randn(2, 1, 5, 7) > 0

    def repeated(x, times):
        shape = (*x.shape[:2], times, *x.shape[2:])
        return x[:, :, None].expand(shape).reshape(x.shape[0], -1, *x.shape[2:])

    for function, one_head in (
        (lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), False),
        (lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), False),
        (lambda m, q, k, v: F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v, 3), m.mask), False),
        (lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, m.mask), True),
    ):
        keys, values = (x[:, :1] if one_head else x for x in (k, v))
        result = check(Function(function, mask=mask), q, keys, values)
        assert main_ops(result).count("matmul") == 2 and "expand" not in main_ops(result)
        rows = [node.outputs[0].shape[-2] for node in result.graph.nodes if "matmul" in node.op]
        assert rows == [30, 30] if one_head else rows == [15, 15]


def test_scatters_of_half_precision_are_wide():
    x, values = torch.randn(6, 5, dtype=torch.bfloat16), torch.randn(3, 5, dtype=torch.bfloat16)
    index = torch.tensor([4, 0, 2])
    for function, wide in (
        (lambda m, x, y, at: torch.index_put(x, [at], y), True),
        (lambda m, x, y, at: torch.index_put(x, [at], y, True), True),
        (lambda m, x, y, at: x.scatter(0, at[:, None].expand(3, 5), y), True),
        (lambda m, x, y, at: x.scatter_reduce(0, at[:, None].expand(3, 5), y, "amax"), True),
        (lambda m, x, y, at: torch.index_put(x, [at[:1]], y[:1]), False),
    ):
        result = check(Function(function), x, values, index, tolerance=1e-2)
        assert ("_to_copy" in main_ops(result)) == wide


def test_einsum_becomes_a_product():
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 6, 4, 5)
    for equation, x, y in (
        ("bihd,bjhd->bhij", a, b),
        ("bihd,bjhd->bijh", a, b),
        ("bihd,de->bihe", a, torch.randn(5, 7)),
        ("bihd,hdf->bfi", a, torch.randn(4, 5, 7)),
        ("ij,jk->ik", torch.randn(3, 4), torch.randn(4, 2)),
        ("bi,bi->b", torch.randn(3, 4), torch.randn(3, 4)),
        ("bi,i->b", torch.randn(3, 4), torch.randn(4)),
        ("bmk,kmb->mb", torch.randn(2, 3, 4), torch.randn(4, 3, 2)),
        ("i,i->", torch.randn(4), torch.randn(4)),
        ("i,j->ji", torch.randn(4), torch.randn(5)),
        ("bhi,bj->bjhi", torch.randn(2, 3, 4), torch.randn(2, 5)),
        ("...qhd,...khd->...hqk", torch.randn(2, 2, 3, 4, 5), torch.randn(2, 2, 6, 4, 5)),
        ("...id,de->...ei", torch.randn(2, 3, 4, 5), torch.randn(5, 7)),
        ("...i,...ij->...j", torch.randn(3, 4), torch.randn(2, 3, 4, 5)),
    ):
        module = Function(lambda m, x, y, equation=equation: torch.einsum(equation, x, y))
        ops = main_ops(check(module, x, y))
        assert "einsum" not in ops, equation


def test_a_bilinear_layer_becomes_a_product():
    layer = nn.Bilinear(5, 6, 4)
    ops = main_ops(
        check(Function(lambda m, x, y: m.layer(x, y), layer=layer), torch.randn(2, 3, 5), torch.randn(2, 3, 6))
    )
    assert "_trilinear" not in ops and ops.count("linear") == 1


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution_of_stride_one_becomes_forward(dims, groups):
    kind = getattr(nn, f"ConvTranspose{dims}d")
    result = check(kind(4, 6, 3, padding=1, groups=groups, dilation=2), torch.randn(2, 4, *[6] * dims))
    assert f"conv{dims}d" in main_ops(result) and f"conv_transpose{dims}d" not in main_ops(result)
    assert f"conv_transpose{dims}d" in main_ops(check(kind(4, 6, 3, stride=2), torch.randn(2, 4, *[6] * dims)))
    assert f"conv_transpose{dims}d" in main_ops(check(kind(4, 6, 2, padding=3), torch.randn(2, 4, *[9] * dims)))


def test_products_with_vectors():
    module = Function(
        lambda m, x: (torch.mv(x, m.v), x @ m.v, torch.dot(x[0], m.v), torch.baddbmm(m.c, x[None], x.t()[None])),
        v=nn.Parameter(torch.randn(4)),
        c=nn.Parameter(torch.randn(1, 3, 3)),
    )
    ops = main_ops(check(module, torch.randn(3, 4)))
    assert not {"mv", "dot", "baddbmm"} & set(ops) and ops.count("matmul") == 1


@pytest.mark.parametrize("how", [{}, {"alpha": 0.5}, {"beta": 2.0}, {"beta": 0, "alpha": -3}], ids=str)
def test_sums_with_products_are_both(how):
    module = Function(
        lambda m, x: (
            torch.addmm(m.c, x[0], x[1].t(), **how),
            torch.addmm(m.c[0], x[0], x[1].t(), **how) if how.get("beta") != 0 else x,
            torch.baddbmm(m.c[None], x, x.mT, **how),
            torch.addmv(m.c[0], x[0], x[1, 0], **how),
            torch.addbmm(m.c, x, x.mT, **how),
        ),
        c=nn.Parameter(torch.randn(3, 3)),
    )
    ops = set(main_ops(check(module, torch.randn(2, 3, 4))))
    assert not {"addmm", "baddbmm", "addmv", "addbmm"} & ops


def test_a_convolution_over_time_first_becomes_a_usual_one():
    module = Function(
        lambda m, x: torch.conv_tbc(x, m.w, m.b, 1),
        w=nn.Parameter(torch.randn(3, 4, 6)),
        b=nn.Parameter(torch.randn(6)),
    )
    ops = main_ops(check(module, torch.randn(9, 2, 4)))
    assert "conv1d" in ops and "conv_tbc" not in ops


@pytest.mark.parametrize("size", [4, 40])
def test_decomposed_diagonals_become_scalings(size):
    module = Function(lambda m, x: torch.diag(m.d) @ x, d=nn.Parameter(torch.randn(size)))
    for graph_maker in (captured_by_the_judge,):
        graph = graph_maker(module, torch.randn(size, 3))
        ops = operators(rewrite(graph).graph)
        assert "mul" in ops and "where" not in ops and "matmul" not in ops
    graph = captured_by_the_judge(
        Function(lambda m, d, x: x @ torch.diag_embed(d)), torch.randn(2, size), torch.randn(2, 3, size)
    )
    assert "matmul" not in operators(rewrite(graph).graph)
    graph = captured_by_the_judge(
        Function(lambda m, d, x: torch.tril(d) @ x), torch.randn(size, size), torch.randn(size, 3)
    )
    assert "linear" in operators(rewrite(graph).graph)


def captured_by_the_judge(module, *inputs):
    return judge_capture(module.eval(), list(inputs), SimpleNamespace(Model=type(module)))


@pytest.mark.parametrize("size", [3, 4])
def test_padding_by_name_becomes_numbers(size):
    ops = main_ops(check(nn.Conv2d(3, 4, (size, 3), padding="same"), torch.randn(2, 3, 7, 8)))
    assert ops == (["conv2d"] if size == 3 else ["constant_pad_nd", "conv2d"])
    assert main_ops(check(nn.Conv1d(3, 4, size, padding="valid"), torch.randn(2, 3, 7))) == ["conv1d"]


def test_a_copy_into_another_order_stays():
    module = Function(lambda m, x: m.conv(x.transpose(1, 2).contiguous()), conv=nn.Conv1d(3, 4, 3))
    assert main_ops(check(module, torch.randn(2, 8, 3))) == ["transpose", "clone", "conv1d"]
