"""The package's exceptions.

Invariant: every message says what was found and what to do next.
"""


class ExportError(Exception):
    """A model, batch or option that cannot be written as a training step."""


class ProgramError(ExportError):
    """The `tightfit` program is not there, or refused what it was given."""


class GraphFileError(Exception):
    """A file that is no graph, or whose graph does not suit what it is used with."""
