"""Crawling in sandboxed processes: a part of the catalogue, layers of transformers, and seeds that misbehave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.core.errors import UsageError
from cuda_agent.tasks.crawl import catalogue, crawl
from cuda_agent.tasks.crawl.catalogue import Entry
from cuda_agent.tasks.crawl.families import Listed
from cuda_agent.tasks.crawl.trials import TrialOptions, try_entries
from cuda_agent.tasks.records import Port, Seed
from cuda_agent.workspace.sandbox import resolve_level

pytestmark = pytest.mark.integration
_LLAMA = "transformers.models.llama.modeling_llama"


def _way(limit_s: float = 60.0) -> TrialOptions:
    return TrialOptions(resolve_level("auto"), 1, lambda text: None, limit_s)


def _hostile(name: str, call: str) -> Entry:
    seed = Seed(
        name=name, library="torch", operator=name, family="test", spelling="functional",
        ports=(Port(name="x", layout="* D"),), imports=("import os", "import torch"), call=call, says="a test",
    )  # fmt: skip
    return Entry(seed, catalogue.SMALL)


def test_what_misbehaves_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    mark = tmp_path / "written"
    entries = [
        *catalogue.read()[:3],
        _hostile("exits", "os._exit(7)"),
        _hostile("hangs", "[None for _ in iter(int, 1)]"),
        _hostile("writes", f"open({str(mark)!r}, 'w')"),
        _hostile("hoards", "torch.ones(1 << 40) + {x}.sum()"),
        *catalogue.read()[3:6],
    ]
    outcomes = try_entries(entries, _way(limit_s=8.0))
    assert all("graph" in outcome for outcome in (*outcomes[:3], *outcomes[-3:]))
    reasons = [outcome["reason"] for outcome in outcomes[3:7]]
    assert "ended its process" in reasons[0] and "code 7" in reasons[0]
    assert "ran for more than 8 s" in reasons[1]
    assert "fails" in reasons[2] and not mark.exists()
    assert "fails" in reasons[3] or "ended" in reasons[3] or "limit of memory" in reasons[3]


def test_a_crawl_of_a_part_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tuple(entry for entry in catalogue.read() if entry.seed.family in ("scan", "pooling"))
    missing = part[0].seed.model_copy(update={"name": "nn.OfAnotherVersion", "constructor": "nn.OfAnotherVersion()"})
    monkeypatch.setattr(catalogue, "read", lambda: (*part, Entry(missing, part[0].small)))
    offered = ["torch.cumsum", "torch.bernoulli", "nn.LazyLinear", "torch.erfc", "torch.special.erfc", "torch.conj"]
    ours = crawl.run_jobs

    def listed(jobs: list[dict[str, object]], module: str, way: TrialOptions) -> list[dict[str, object]]:
        return [{"names": offered}] if jobs == [{"list": True}] else ours(jobs, module, way)

    monkeypatch.setattr(crawl, "run_jobs", listed)
    found = crawl.crawl(["torch"], _way())
    found.write(tmp_path)
    names = [json.loads(line)["name"] for line in (tmp_path / "seeds.jsonl").read_text().splitlines()]
    assert names == [*(entry.seed.name for entry in part), "torch.erfc"]
    lines = [json.loads(line) for line in (tmp_path / "left_out.jsonl").read_text().splitlines()]
    reasons = {line["name"]: line["reason"] for line in lines}
    assert "AttributeError" in reasons["nn.OfAnotherVersion"]
    assert "stochastic" in reasons["torch.bernoulli"]
    assert "lazy" in reasons["nn.LazyLinear"]
    assert reasons["torch.special.erfc"] == "the same operators as torch.erfc"


def test_layers_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    names = ("LlamaRMSNorm", "LlamaMLP", "LlamaAttention", "LlamaRotaryEmbedding", "apply_rotary_pos_emb")
    wanted = [Listed(_LLAMA, name) for name in names]
    wanted.append(Listed("transformers.models.mistral.modeling_mistral", "MistralRMSNorm"))
    wanted.append(Listed("transformers.models.mixtral.modeling_mixtral", "MixtralTopKRouter"))
    wanted.append(Listed("transformers.models.no_such.modeling_no_such", "NoSuchMLP"))
    monkeypatch.setattr(crawl, "listed", lambda: (tuple(wanted), ()))
    found = crawl.crawl(["transformers"], _way())
    assert [seed.operator for seed in found.seeds] == [*names, "MixtralTopKRouter"]
    attention = found.seeds[2]
    assert [port.layout for port in attention.ports] == ["B T D", "B T 64", "B T 64"]
    assert "attn_implementation='eager'" in (attention.constructor or "")
    assert "B * T * D * T" in attention.flops
    assert found.seeds[-1].initialize
    reasons = {item.name.rpartition(".")[2]: item.reason for item in found.left_out}
    assert reasons["MistralRMSNorm"] == f"the same operators as {_LLAMA}.LlamaRMSNorm"
    assert "doesn't import" in reasons["NoSuchMLP"]


def test_another_library_is_refused() -> None:
    with pytest.raises(UsageError, match="No crawler for 'numpy'"):
        crawl.crawl(["numpy"], _way())
