"""Errors that a user can act on. Every message says where, what was found, what was expected, what to do."""

from __future__ import annotations


class CabsError(Exception):
    """Base class of every error that this project raises on purpose."""


class PoolError(CabsError):
    """A model pool file is missing, malformed or names something that does not exist."""


class DataError(CabsError):
    """An outcome table or downloaded file is not what it should be (file, row, column and value are named)."""


class ProvenanceError(CabsError):
    """An artifact does not belong to the inputs at hand: something upstream changed or it was altered."""


class PolicyError(CabsError):
    """An unknown policy or preset, or an option that the policy does not have."""


class ResultError(CabsError):
    """A replay result is malformed, incomplete, or belongs to another problem."""


class SqlModelError(CabsError):
    """A SQL model or its schema.yml is wrong; the message names the file and, where known, the line."""


class EncoderError(CabsError):
    """A text encoder cannot be had or loaded, or a prompt does not fit into the device's memory."""


class RouterError(CabsError):
    """A deployed router cannot do what was asked: bad input, a damaged bundle, no arm, an unknown decision."""
