"""A bundle that was read from its folder: what decides, and what it needs from a text to a decision."""

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
    """Attributes: folder, manifest; policy, heads and encoder as the bundle holds them."""

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
            encoder: an open one, used where it is the bundle's. fallback: arm of shadow and guarded mode
                instead of the bundle's, whose evidence is against its own.

        Raises:
            ProvenanceError: a file is missing, altered, or of another format; it is named.
            EncoderError: the encoder cannot be found or loaded. RouterError: fallback is no arm.
        """
        folder, manifest = Path(folder), read_manifest(folder)
        if fallback is not None and fallback not in manifest.names:
            raise RouterError(f"unknown model {fallback!r}; this router knows {', '.join(manifest.names)}")
        if fallback is not None and fallback != manifest.fallback:
            manifest = replace(manifest, fallback=fallback, evidence={})
        policy = load_policy(folder / "policy")
        heads = Heads(Oracles.load(folder / "oracles"), needs_of(policy))
        if encoder is None or encoder.identity != manifest.identity:
            encoder = TextEncoder(manifest.encoder, manifest.identity, folder)
        return cls(folder, manifest, policy, heads, encoder)
