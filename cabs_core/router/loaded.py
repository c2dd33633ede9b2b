"""A bundle that was read from its folder: everything from a prompt's text to a decision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.policies.registry import load_policy
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.base.errors import RouterError
from cabs_core.router.bundle import Manifest, read_manifest
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.heads import Heads, needs_of


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory.

    Attributes:
        folder: the folder from which the bundle was read.
        manifest: content of the bundle's `router.json`.
        policy: the policy, in the state in which the bundle was written.
        heads: object that computes the predictions that the policy reads.
        encoder: object that turns texts into embeddings.
    """

    folder: Path
    manifest: Manifest
    policy: SafePolicy
    heads: Heads
    encoder: TextEncoder

    @classmethod
    def read(
        cls, folder: str | Path, encoder: TextEncoder | None = None, fallback: str | None = None
    ) -> Bundle:
        """Open a bundle.

        Args:
            encoder: an open encoder, to be shared. If it is None or another one than the bundle's, the
                bundle's own encoder is opened.
            fallback: model of shadow and guarded mode in place of the bundle's own. The bundle's evidence
                compares with its own fallback, so the evidence is dropped if another model is given.

        Raises:
            ProvenanceError: a file is missing, altered, or of another format; the error names the file.
            EncoderError: the encoder cannot be found or loaded.
            RouterError: the router has no model of the name `fallback`.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if fallback is not None and fallback not in manifest.names:
            raise RouterError(f"unknown model {fallback!r}; this router knows {', '.join(manifest.names)}")
        if fallback is not None and fallback != manifest.fallback:
            manifest = replace(manifest, fallback=fallback, evidence={})
        policy = load_policy(folder / "policy")
        heads = Heads(Oracles.load(folder / "oracles"), needs_of(policy))
        if encoder is None or encoder.identity != manifest.identity:
            encoder = TextEncoder(manifest.encoder, manifest.identity, folder)
        return cls(folder, manifest, policy, heads, encoder)
