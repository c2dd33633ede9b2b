"""Neural policies: small networks per arm, trained in lockstep over the lanes of a replay."""
