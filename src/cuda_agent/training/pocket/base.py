"""The base model of the pocket preset: a tokenizer and a small decoder, both trained on transcripts only."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained import pocket
from cuda_agent.agent.trained.dialogue import DialogueSettings
from cuda_agent.agent.trained.pocket import PocketDialogue
from cuda_agent.agent.trained.sampler import torch_device
from cuda_agent.core.config import Configuration, Limits
from cuda_agent.core.enums import Device
from cuda_agent.core.files import write_durably
from cuda_agent.core.lines import append
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import Task
from cuda_agent.training.config import EpisodeLimits
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.opening import limited
from cuda_agent.training.environment.play import PlayOptions, ToolEnvironment
from cuda_agent.training.episodes import Episode, read_episodes
from cuda_agent.training.pocket.author import Author, Shares

TRANSCRIPTS = "transcripts.jsonl"
#: chat template for verl's datasets. The dialogue needs none.
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


class BaseOptions(Configuration):
    """Sizes of the transcripts, the tokenizer and the decoder, and the decoder's training."""

    transcripts: int = Field(default=2000, ge=1)
    shares: Shares = Shares()
    turns: int = Field(default=10, ge=1)
    turn_tokens: int = Field(default=24, ge=4)
    context_tokens: int = Field(default=1024, ge=64, le=2048)
    #: tokens of texts; fragments of calls come on top.
    vocabulary: int = Field(default=1024, ge=300, le=4096)
    layers: int = Field(default=8, ge=1)
    hidden: int = Field(default=256, ge=32)
    heads: int = Field(default=4, ge=1)
    steps: int = Field(default=600, ge=1)
    batch: int = Field(default=64, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    seed: int = 0


class BaseReport(StoredRecord):
    """How the base model was made. Losses are in nats per token."""

    file_name = "base.json"
    options: BaseOptions
    parameters: int
    vocabulary: int
    transcripts: int
    tokens: int
    first_loss: float
    last_loss: float
    longest: int
    hit_rate: float


def make_base(
    options: BaseOptions,
    judges: Judges,
    tasks: Sequence[Task],
    folder: Path,
    *,
    play: PlayOptions | None = None,
    device: Device | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Path:
    """Plays transcripts on the training tasks and trains the decoder on them, on `device` (None: the judge's). Returns
    the checkpoint `folder/model`. A run that was ended is continued. Raises StoreError and what the judge raises."""
    checkpoint = folder / "model"
    if not (folder / BaseReport.file_name).exists():
        checkpoint.mkdir(parents=True, exist_ok=True)
        maker = _Maker(options, judges, tasks, folder, progress)
        dialogue = maker.tokenizer(checkpoint)
        episodes = maker.transcripts(dialogue, play or PlayOptions())
        maker.train(episodes, dialogue, torch_device(device or judges.options.device))
    return checkpoint


@dataclass(frozen=True)
class _Maker:
    """The steps of `make_base`. Each is skipped or continued where its files are there."""

    options: BaseOptions
    judges: Judges
    tasks: Sequence[Task]
    folder: Path
    progress: Callable[[str], None]

    @property
    def settings(self) -> DialogueSettings:
        options = self.options
        return DialogueSettings(
            turns=options.turns, turn_tokens=options.turn_tokens, context_tokens=options.context_tokens
        )

    def tokenizer(self, checkpoint: Path) -> PocketDialogue:
        """Trains the tokenizer on the tasks' prompts and on answers of tools. It is stored with the checkpoint."""
        path = checkpoint / "tokenizer.json"
        if not path.exists():
            texts = [_prompt(self.judges, task, self.options.turns) for task in self.tasks]
            texts += [_answers(random.Random(number)) for number in range(50 * len(texts))]
            write_durably(path, pocket.train_tokenizer(texts, self.options.vocabulary).to_str())
            special = {"eos_token": pocket.STOP, "pad_token": pocket.PAD, "chat_template": _TEMPLATE}
            described = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
            write_durably(checkpoint / "tokenizer_config.json", json.dumps(described, indent=1))
            self.settings.write(checkpoint)
        return PocketDialogue.load(checkpoint)

    def transcripts(self, dialogue: PocketDialogue, limits: PlayOptions) -> list[Episode]:
        """Plays transcripts in batches, each on disk before the next. A share of them has everything in one answer."""
        path = self.folder / TRANSCRIPTS
        episodes = read_episodes(path)
        while len(episodes) < self.options.transcripts:
            begun = len(episodes)
            count = min(limits.at_once, self.options.transcripts - begun)
            seed = self.options.seed * 1_000_003 + begun
            rng = random.Random(seed)
            drawn = [rng.choice(self.tasks) for _ in range(count)]
            alone = round(count * self.options.shares.single)
            for part, how in (
                (drawn[:alone], limited(self.settings, EpisodeLimits(turns=1))),
                (drawn[alone:], self.settings),
            ):
                environment = ToolEnvironment(self.judges, dialogue, how, limits)
                author = Author(self.options.shares, seed, how.turn_tokens)
                played = environment.play_by(part, author, seed=seed) if part else []
                append(path, played)
                episodes += played
            known = f"{self.judges.memo.hit_rate:.0%} of verdicts known"
            self.progress(f"{len(episodes)} of {self.options.transcripts} transcripts, {known}")
        return episodes

    def train(self, episodes: Sequence[Episode], dialogue: PocketDialogue, device: str) -> None:
        """Trains on all tokens of the transcripts, by AdamW with warm-up and cosine decay."""
        import torch

        options = self.options
        torch.manual_seed(options.seed)
        model = _decoder(options, dialogue).to(device).train()
        rows = [list(episode.input_ids) for episode in episodes]
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)
        warm = max(1, options.steps // 20)
        schedule = torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=warm),
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, options.steps - warm), 0.1 * options.lr),
            ],
            [warm],
        )
        rng = random.Random(options.seed)
        losses: list[float] = []
        for step in range(options.steps):
            loss = _loss(model, [rng.choice(rows) for _ in range(options.batch)], dialogue.pad_id, device)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
            if (step + 1) % max(1, options.steps // 10) == 0:
                self.progress(f"step {step + 1} of {options.steps}: loss {losses[-1]:.3f}")
        model.float().cpu().save_pretrained(self.folder / "model")
        BaseReport(
            options=options,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            vocabulary=dialogue.tokenizer.get_vocab_size(),
            transcripts=len(rows),
            tokens=sum(map(len, rows)),
            first_loss=losses[0],
            last_loss=sum(losses[-10:]) / len(losses[-10:]),
            longest=max(map(len, rows)),
            hit_rate=self.judges.memo.hit_rate,
        ).write(self.folder)


def _prompt(judges: Judges, task: Task, turns: int) -> str:
    options, limits = judges.options, Limits(turns=turns)
    brief = Brief(task, options.device, options.precision, limits, [], lambda: judges.graph(task))
    return pocket.prompt_text(brief, judges.offers(task))


def _answers(rng: random.Random) -> str:
    """Returns an answer as tools give it, with random numbers."""
    ratios = f"{rng.lognormvariate(0.5, 1.0):.2f} {rng.lognormvariate(0.1, 0.5):.2f}"
    said = rng.choice([f"passed {ratios}", f"passed {ratios} best", "ok", "error", "a:0 b:3", "incorrect"])
    return f"{said}\n{rng.randrange(10)} left"


def _decoder(options: BaseOptions, dialogue: PocketDialogue) -> Any:
    """Returns a model with Qwen2's architecture and random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    # A multiple of 64, so that a sharded vocabulary divides.
    vocabulary = -(-dialogue.tokenizer.get_vocab_size() // 64) * 64
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=options.hidden,
        intermediate_size=64 * round(options.hidden * 8 / 3 / 64),
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads,
        max_position_embeddings=options.context_tokens,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=dialogue.stop_id,
        pad_token_id=dialogue.pad_id,
    )
    return Qwen2ForCausalLM(config)


def _loss(model: Any, rows: Sequence[Sequence[int]], pad: int, device: str) -> Any:
    """Returns the mean cross-entropy of the next token over a right-padded batch."""
    import torch

    padded = torch.nn.utils.rnn.pad_sequence
    ids = padded([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad).to(device)
    mask = padded([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True).to(device)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        logits = model(input_ids=ids, attention_mask=mask).logits
    wanted = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
    return torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), wanted.flatten(), ignore_index=-100)
