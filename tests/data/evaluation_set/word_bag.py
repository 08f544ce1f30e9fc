"""Text classifier: mean of the words' vectors, dropout, linear layer, log-probabilities."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, LENGTH, WORDS, WIDTH, CLASSES = 8, 20, 100, 16, 4


class Model(nn.Module):
    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(words, width)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, classes)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        pooled = self.vectors(text).mean(dim=1)
        return F.log_softmax(self.head(self.dropout(pooled)), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randint(WORDS, (BATCH, LENGTH))]


def get_init_inputs() -> list[float]:
    return [WORDS, WIDTH, CLASSES]
