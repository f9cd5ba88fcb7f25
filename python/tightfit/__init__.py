"""tightfit's door into PyTorch: writes one training step of a model as files that the `tightfit` binary reads.

Invariant: importing this package has no side effects; everything public is named in `__all__`.
"""

from .errors import ExportError
from .export import export

__all__ = ["ExportError", "export"]
