"""Text: where it comes from, how it becomes tokens, and the sequences a model is trained on."""

from maclaurin.data.corpus import Corpus, open_corpus
from maclaurin.data.rows import DocumentRows, PackedRows
from maclaurin.data.tokenizer import byte_tokenizer, open_tokenizer, train_bpe
from maclaurin.data.tokens import TokenFile, tokenise

__all__ = [
    "Corpus",
    "DocumentRows",
    "PackedRows",
    "TokenFile",
    "byte_tokenizer",
    "open_corpus",
    "open_tokenizer",
    "tokenise",
    "train_bpe",
]
