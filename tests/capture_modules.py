"""Small modules of every family that a task may hold, each as (forward's source, __init__'s lines, inputs)."""

HEAD = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
"""


def source(forward: str, init: str, inputs: str, arguments: str = "x") -> str:
    def body(text: str) -> str:
        return "\n".join(" " * 8 + line for line in text.strip().splitlines())

    return f"""{HEAD}
class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
{body(init or "pass")}

    def forward(self, {arguments}):
{body(forward)}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


CASES = {
    "rms_norm_upcast": source(
        "h = x.float()\nh = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)\nreturn self.w * h.to(x.dtype)",
        "self.w = nn.Parameter(torch.ones(32, dtype=torch.bfloat16))",
        "torch.randn(4, 32).bfloat16()",
    ),
    "swiglu": source(
        "return self.down(F.silu(self.gate(x)) * self.up(x))",
        "self.gate = nn.Linear(16, 24, bias=False)\nself.up = nn.Linear(16, 24, bias=False)\n"
        "self.down = nn.Linear(24, 16, bias=False)",
        "torch.randn(3, 5, 16)",
    ),
    "gelu_mlp": source(
        "return self.fc2(self.drop(F.gelu(self.fc1(x), approximate='tanh')))",
        "self.fc1 = nn.Linear(16, 32)\nself.fc2 = nn.Linear(32, 16)\nself.drop = nn.Dropout(0.3)",
        "torch.randn(3, 16)",
    ),
    "fold": source(
        "return self.fold(x).relu()", "self.fold = nn.Fold((6, 7), 3, padding=1, stride=2)", "torch.randn(2, 18, 12)"
    ),
    "rotary": source(
        "a, b = q.chunk(2, dim=-1)\nreturn q * cos + torch.cat((-b, a), dim=-1) * sin",
        "",
        "torch.randn(2, 3, 4, 8), torch.randn(4, 8), torch.randn(4, 8)",
        "q, cos, sin",
    ),
    "masked_softmax": source(
        "mask = torch.ones(6, 6, dtype=torch.bool, device=x.device).triu(1)\n"
        "return torch.softmax((x * 0.125).masked_fill(mask, float('-inf')), dim=-1)",
        "",
        "torch.randn(2, 6, 6)",
    ),
    "layer_norm_gelu": source("return F.gelu(self.norm(x))", "self.norm = nn.LayerNorm(16)", "torch.randn(4, 16)"),
    "expert_gate": source(
        "weights, index = torch.topk(torch.softmax(self.gate(x), dim=-1), 2, dim=-1)\n"
        "return weights / weights.sum(-1, keepdim=True), index",
        "self.gate = nn.Linear(16, 8, bias=False)",
        "torch.randn(5, 16)",
    ),
    "cross_entropy_z": source(
        "z = torch.logsumexp(x, dim=-1)\nreturn F.cross_entropy(x, y) + 1e-4 * (z * z).mean()",
        "",
        "torch.randn(6, 20), torch.randint(0, 20, (6,))",
        "x, y",
    ),
    "projection_mean": source("return self.fc(x).mean(dim=1)", "self.fc = nn.Linear(16, 12)", "torch.randn(4, 16)"),
    "conv_bn_silu": source(
        "return F.silu(self.bn(self.conv(x)))",
        "self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)\nself.bn = nn.BatchNorm2d(4)",
        "torch.randn(2, 3, 6, 6)",
    ),
    "transposed_gated": source(
        "a, b = self.up(x).chunk(2, dim=1)\nreturn torch.tanh(a) * torch.sigmoid(b)",
        "self.up = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)",
        "torch.randn(1, 4, 5, 5)",
    ),
    "depthwise_glu": source(
        "return F.glu(self.conv(x), dim=1)",
        "self.conv = nn.Conv1d(4, 8, 3, padding=1, groups=4)",
        "torch.randn(2, 4, 9)",
    ),
    "einsum": source(
        "return torch.einsum('bhsd,bhtd->bhst', q, k)", "", "torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)", "q, k"
    ),
    "split_stack": source(
        "a, b, c = x.split([2, 3, 3], dim=-1)\n"
        "return torch.stack([b, c.flip(-1)], 0).squeeze(), a.unsqueeze(0).expand(3, -1, -1)",
        "",
        "torch.randn(4, 8)",
    ),
    "nested_outputs": source("return {'y': x + 1, 'rest': (x.sum(), [x.amax(-1), None, 3])}", "", "torch.randn(4, 8)"),
    "in_place": source(
        "y = x * 2\ny += self.bias\ny.relu_()\ny[:, 0] = 0\ny[:, 1:3].mul_(3.0)\nreturn y",
        "self.bias = nn.Parameter(torch.randn(8))",
        "torch.randn(4, 8)",
    ),
    "attention": source(
        "b, s, _ = x.shape\nq, k, v = (t.view(b, s, 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))\n"
        "return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, 16)",
        "self.qkv = nn.Linear(16, 48)",
        "torch.randn(2, 5, 16)",
    ),
    "buffers": source(
        "return x * self.kept + self.lost + self.plain + torch.tensor([1.0, 2.0, 3.0, float('-inf')])",
        "self.register_buffer('kept', torch.randn(4))\nself.register_buffer('lost', torch.randn(4), persistent=False)\n"
        "self.plain = torch.full((4,), 2.0)",
        "torch.randn(3, 4)",
    ),
    "scalar_between": source("return x * scale + y", "", "torch.randn(3), 2.5, torch.randn(3)", "x, scale, y"),
    "tied": source(
        "return self.head(self.embed(x))",
        "self.embed = nn.Embedding(8, 4)\nself.head = nn.Linear(4, 8, bias=False)\n"
        "self.head.weight = self.embed.weight",
        "torch.randint(0, 8, (2, 3))",
    ),
    "norms": source(
        "return self.rms(self.instance(self.group(x))) + F.normalize(x, dim=1) + x.std(dim=(2, 3), keepdim=True)",
        "self.group = nn.GroupNorm(2, 4)\nself.instance = nn.InstanceNorm2d(4)\nself.rms = nn.RMSNorm(6)",
        "torch.randn(2, 4, 6, 6)",
    ),
    "losses": source(
        "return F.mse_loss(x, y), F.smooth_l1_loss(x, y), "
        "F.kl_div(F.log_softmax(x, -1), y.softmax(-1), reduction='batchmean'), "
        "F.cosine_similarity(x, y), F.binary_cross_entropy_with_logits(x, y.sigmoid()), "
        "(1 - x * y).clamp(min=0).mean()",
        "",
        "torch.randn(4, 8), torch.randn(4, 8)",
        "x, y",
    ),
    "pools": source(
        "return self.pool(F.avg_pool2d(x, 2)), F.adaptive_avg_pool2d(x, (1, 1)).flatten(1), x.cumsum(1), x.argmax(1)",
        "self.pool = nn.MaxPool2d(2)",
        "torch.randn(1, 3, 8, 8)",
    ),
    "autocast_inside": source(
        "with torch.no_grad(), torch.autocast(x.device.type, enabled=False):\n    freq = x.float().cos()\n"
        "return freq.to(x.dtype) * x",
        "",
        "torch.randn(3, 4).bfloat16()",
    ),
    "recurrent": source(
        "return self.cell(x)", "self.cell = nn.LSTM(8, 8, 2, batch_first=True)", "torch.randn(2, 5, 8)"
    ),
    "encoder_layer": source(
        "return self.layer(x)",
        "self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)",
        "torch.randn(2, 5, 16)",
    ),
    "bare_norms": source(
        "return self.plain(x) + self.batch(x)",
        "self.plain = nn.BatchNorm2d(3, affine=False)\nself.batch = nn.BatchNorm2d(3, track_running_stats=False)",
        "torch.randn(2, 3, 4, 4)",
    ),
    "input_changed": source("x.mul_(2)\nreturn x + 1, x", "", "torch.randn(4, 4)"),
    "layouts": source(
        "return self.conv(x.to(memory_format=torch.channels_last)).relu(), "
        "F.pixel_shuffle(self.conv(x), 2), F.pad(x, (1, 1))",
        "self.conv = nn.Conv2d(3, 4, 3)",
        "torch.randn(2, 3, 6, 6)",
    ),
    "indexing": source(
        "return x[:, i], x[..., None, ::2], x.gather(1, i[None].expand(4, -1)), x.tril(), x.repeat_interleave(2, 0), "
        "torch.where(x > 0, x, -1e9), x.roll(1, 0), x.sort(-1)[0]",
        "",
        "torch.randn(4, 4), torch.tensor([0, 2, 1])",
        "x, i",
    ),
    "experts": source(
        "out = torch.zeros_like(x)\nweight, index = self.gate(x).softmax(-1).topk(2)\n"
        "for e, expert in enumerate(self.experts):\n"
        "    out = out + ((index == e) * weight).sum(-1, keepdim=True) * expert(x)\nreturn out",
        "self.gate = nn.Linear(4, 3)\nself.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])",
        "torch.randn(5, 4)",
    ),
    "weight_norm": source(
        "return self.fc(x)", "self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))", "torch.randn(2, 4)"
    ),
    "list_of_inputs": source(
        "return torch.cat(xs, 1) * s", "", "[torch.randn(2, 3), torch.randn(2, 4)], torch.randn(1)", "xs, s"
    ),
    "activations": source(
        "return F.mish(x) + F.hardswish(x) + F.softplus(x) + F.elu(x) + F.selu(x) + F.leaky_relu(x, 0.1) "
        "+ F.hardtanh(x) + F.relu6(x) + F.softsign(x) + F.logsigmoid(x) + F.hardsigmoid(x) + F.tanhshrink(x) "
        "+ x.clamp(-1, 1) ** 2",
        "",
        "torch.randn(3, 4)",
    ),
}
