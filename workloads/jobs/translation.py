"""Translation: a Transformer learns to translate between two synthetic languages.

Every source word has one translation, and an adjective, which precedes the word it describes, follows it in the
translation. So the model has to learn a dictionary and a rule of word order.

    python translation.py --steps 500
    python translation.py --steps 20000 --full --device cuda     # 6 + 6 layers of 512, 2,560 words a batch
"""

from __future__ import annotations

import math
import sys

import torch
from choices import Sizes
from torch import Tensor, nn
from torch.nn import functional
from training import Batch, Training, main

PADDING, BEGIN, END, FIRST_WORD = 0, 1, 2, 3
SMALL = Sizes(batch_size=16, width=32, layers=2, heads=2, length=10, vocabulary=64, sentences=4096)
FULL = Sizes(batch_size=80, width=512, layers=6, heads=8, length=32, vocabulary=8_000, sentences=32_768)


def sentence_pairs(sentences: int, length: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor]:
    """Source (N, length) and target (N, length + 2: begin, words, end), padded; the languages are always the same."""
    dictionary = torch.randperm(vocabulary - FIRST_WORD, generator=torch.Generator().manual_seed(0)) + FIRST_WORD

    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(FIRST_WORD, vocabulary, (sentences, length), generator=draw)
    lengths = torch.randint(max(1, length // 2), length + 1, (sentences, 1), generator=draw)
    place = torch.arange(length)
    source = words.masked_fill(place >= lengths, PADDING)

    # Even words are adjectives. Positions (0, 1), (2, 3), ... are swapped if the first describes the second.
    translated = functional.pad(dictionary, (FIRST_WORD, 0))[source]
    partner = (place ^ 1).clamp(max=length - 1)
    describes = (source % 2 == 0) & (source >= FIRST_WORD)
    described = (source[:, partner] != PADDING) & (partner != place)
    swaps = torch.where(place % 2 == 0, describes, describes[:, partner]) & described & (source != PADDING)
    ordered = torch.where(swaps, translated[:, partner], translated)

    target = functional.pad(ordered, (1, 1), value=PADDING)
    target[:, 0] = BEGIN
    return source, target.scatter(1, lengths + 1, END)


class Translator(nn.Module):
    """Encoder and decoder of Vaswani et al. (2017); one embedding for each language."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.target = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.places: Tensor
        self.register_buffer("places", sinusoids(length + 2, width))
        reads = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        writes = nn.TransformerDecoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(reads, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(writes, layers)
        self.scores = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        empty = source == PADDING
        read = self.encoder(self.placed(self.source(source)), src_key_padding_mask=empty)
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        written = self.decoder(self.placed(self.target(target)), read, tgt_mask=future, memory_key_padding_mask=empty)
        scores: Tensor = self.scores(written)
        return scores

    def placed(self, words: Tensor) -> Tensor:
        return words * math.sqrt(words.shape[-1]) + self.places[: words.shape[1]]


def sinusoids(length: int, width: int) -> Tensor:
    """Position encoding, (length, width): section 3.5 of Vaswani et al."""
    place = torch.arange(length)[:, None]
    turns = torch.exp(-math.log(10_000.0) * torch.arange(0, width, 2) / width)
    return torch.stack([torch.sin(place * turns), torch.cos(place * turns)], dim=2).flatten(1)


class Translation(Training):
    """Adam with learning-rate warm-up on the cross-entropy of the target's words."""

    job_type = "Transformer"
    small, full = SMALL, FULL

    def build(self) -> None:
        sizes = self.sizes
        vocabulary, length = sizes["vocabulary"], sizes["length"]
        translator = Translator(vocabulary, sizes["width"], sizes["layers"], sizes["heads"], length)
        self.model = self.network("model", translator)
        rate = 0.03 / sizes["width"] ** 0.5
        self.optimizer = self.kept("optimizer", torch.optim.Adam(self.model.parameters(), rate, (0.9, 0.98)))
        self.schedule = self.kept(
            "schedule",
            torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min((n + 1) / 100, (100 / (n + 1)) ** 0.5)),
        )
        self.batches = self.shuffled(*sentence_pairs(sizes["sentences"], length, vocabulary, self.choices.seed))

    def step(self, batch: Batch) -> Tensor:
        source, target = batch
        scores = self.model(source, target[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PADDING)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def figures(self) -> dict[str, float]:
        """Fraction of words predicted in unseen sentences, given the true words before."""
        sizes = self.sizes
        pairs = sentence_pairs(128, sizes["length"], sizes["vocabulary"], 1_000_003)
        source, target = (t.to(self.device) for t in pairs)
        right = self.model(source, target[:, :-1]).argmax(2) == target[:, 1:]
        return {"word_accuracy": right[target[:, 1:] != PADDING].double().mean().item()}


if __name__ == "__main__":
    sys.exit(main(Translation))
