"""Tiny encoders with random weights, written to a folder, so that most tests need no published weights."""

from __future__ import annotations

from pathlib import Path

WORDS = "the a cat dog sat on mat routing models cost score what is how many Über 日 本 語 ? . ,".split()


def _write(folder: Path, model) -> Path:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = [chr(c) for c in range(97, 123)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters, *("##" + c for c in letters)]
    vocabulary = {
        piece: i for i, piece in enumerate(dict.fromkeys(p.lower() if p[0] != "[" else p for p in pieces))
    }
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=1000))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    fast.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def small_bert(folder: Path) -> Path:
    """A two-layer BERT, 32-d, 64 positions."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    return _write(folder, BertModel(config))


def small_deberta(folder: Path) -> Path:
    """A two-layer DeBERTa-v2, an architecture without SDPA."""
    import torch
    from transformers import DebertaV2Config, DebertaV2Model

    torch.manual_seed(0)
    config = DebertaV2Config(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        initializer_range=0.2,
    )
    return _write(folder, DebertaV2Model(config))
