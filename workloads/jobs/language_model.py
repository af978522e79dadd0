"""Language model: an LSTM learns to predict the next word of a synthetic language.

After every two words only a few others can follow, with fixed probabilities: a Markov chain of order two. A model of
the last word alone learns something; a model of both reaches the optimum of the language.

    python language_model.py --steps 200
    python language_model.py --steps 20000 --full --device cuda     # 2 layers of 650, 20 texts of 35 words
"""

from __future__ import annotations

import math
import sys

import torch
from choices import Sizes
from torch import Tensor, nn
from torch.nn import functional
from training import Batch, Training, main

FOLLOWERS = 4
SMALL = Sizes(batch_size=16, width=64, layers=1, length=20, vocabulary=64, texts=2048)
FULL = Sizes(batch_size=20, width=650, layers=2, length=35, vocabulary=10_000, texts=16_384)


def sentences(texts: int, length: int, vocabulary: int, seed: int) -> Tensor:
    """Texts (N, length + 1) of words 0..vocabulary-1; the language is the same for every seed."""
    rules = torch.Generator().manual_seed(0)
    following = torch.randint(vocabulary, (vocabulary, FOLLOWERS), generator=rules)
    shift = torch.randint(FOLLOWERS, (vocabulary,), generator=rules)  # the word before last rotates the preferences
    preference = torch.tensor([0.7, 0.15, 0.1, 0.05])

    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(vocabulary, (texts, length + 1), generator=draw)
    choice = torch.multinomial(preference, texts * (length + 1), replacement=True, generator=draw)
    choice = choice.reshape(texts, length + 1)
    for place in range(2, length + 1):
        last, before = words[:, place - 1], words[:, place - 2]
        words[:, place] = following[last, (choice[:, place] + shift[before]) % FOLLOWERS]
    return words


class LanguageModel(nn.Module):
    """Maps words to vectors, applies an LSTM, and scores the possible next words.

    The dropout between layers is a module of its own: that of `nn.LSTM` on a GPU is cuDNN's, which keeps random numbers
    of its own that no checkpoint contains.
    """

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.between = nn.Dropout(0.2)
        self.dropout = nn.Dropout(0.1)
        self.scores = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        read = self.dropout(self.embedding(words))
        for number, layer in enumerate(self.recurrent):
            read, _ = layer(self.between(read) if number else read)
        scores: Tensor = self.scores(self.dropout(read))
        return scores


class LanguageModelling(Training):
    """Adam on the cross-entropy of the next word, with gradients clipped at norm 1."""

    job_type = "LSTM"
    small, full = SMALL, FULL

    def build(self) -> None:
        sizes = self.sizes
        self.model = self.network("model", LanguageModel(sizes["vocabulary"], sizes["width"], sizes["layers"]))
        self.optimizer = self.kept("optimizer", torch.optim.Adam(self.model.parameters(), lr=3e-3))
        self.schedule = self.kept("schedule", torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.9998))
        texts = sentences(sizes["texts"], sizes["length"], sizes["vocabulary"], self.choices.seed)
        self.batches = self.shuffled(texts)

    def step(self, batch: Batch) -> Tensor:
        (words,) = batch
        loss = self.loss_of(words)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def loss_of(self, words: Tensor) -> Tensor:
        """Cross-entropy in nats per word."""
        return functional.cross_entropy(self.model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    def figures(self) -> dict[str, float]:
        """Perplexity of unseen texts."""
        sizes = self.sizes
        unseen = sentences(64, sizes["length"], sizes["vocabulary"], 1_000_003)
        return {"perplexity": math.exp(self.loss_of(unseen.to(self.device)).item())}


if __name__ == "__main__":
    sys.exit(main(LanguageModelling))
