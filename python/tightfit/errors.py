"""The exporter's one exception.

Invariant: every message says what was found and what to do next.
"""


class ExportError(Exception):
    """A model, batch or option that cannot be written as a training step."""
