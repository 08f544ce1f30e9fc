"""Layers of model families, listed from text."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.core.errors import DeviceError
from cuda_agent.tasks.crawl import families
from cuda_agent.tasks.records import LeftOut

_FILE = '''
class {0}Config(PreTrainedConfig):
    pass

class {0}MLP(nn.Module):
    """{1}"""
    def forward(self, x: {0}Tensor):
        return self.down(self.act(x))

class {0}Attention(nn.Module):
    def forward(self, hidden_states):
        return hidden_states * {2}

class {0}PreTrainedModel(PreTrainedModel):
    pass

class {0}Model({0}PreTrainedModel):
    pass

class {0}Embeddings(nn.Module):
    pass

def apply_rotary_pos_emb(q, k):
    return q

def helper(q):
    return q
'''


def test_copies_models_and_other_parts_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, title, words, factor in (("llama", "Llama", "One", 2), ("zeta", "Zeta", "Two", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"modeling_{name}.py").write_text(_FILE.format(title, words, factor))
    monkeypatch.setattr(families, "_folder", lambda: tmp_path)
    found, left_out = families.listed()
    assert [item.name for item in found] == ["LlamaMLP", "LlamaAttention", "apply_rotary_pos_emb", "ZetaAttention"]
    reasons = {item.name.rpartition(".")[2]: item.reason for item in left_out}
    assert reasons["ZetaMLP"] == "the same text as transformers.models.llama.modeling_llama.LlamaMLP"
    assert "whole model" in reasons["ZetaModel"]
    assert "no norm" in reasons["LlamaEmbeddings"]
    assert "helper" not in reasons
    assert all(isinstance(item, LeftOut) for item in left_out)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match="transformers isn't installed"):
        families.listed()
