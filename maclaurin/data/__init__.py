"""Text: where it comes from, how it becomes tokens, and the sequences a model is trained on."""

from maclaurin.data.corpus import Corpus, open_corpus
from maclaurin.data.entry import TokenFile
from maclaurin.data.rows import DocumentRows, PackedRows
from maclaurin.data.streams import StreamedRows
from maclaurin.data.tokenizer import byte_tokenizer, open_tokenizer, train_bpe
from maclaurin.data.tokens import tokenise

__all__ = [
    "Corpus",
    "DocumentRows",
    "PackedRows",
    "StreamedRows",
    "TokenFile",
    "byte_tokenizer",
    "open_corpus",
    "open_tokenizer",
    "tokenise",
    "train_bpe",
]
