"""tightfit's door into PyTorch: writes one training step of a model as files that the `tightfit` binary reads, and
says what its modules hold and take.

Invariant: importing this package has no side effects; everything public is named in `__all__`.
"""

from .errors import ExportError, ProgramError
from .export import export
from .statistics import module_info

__all__ = ["ExportError", "ProgramError", "export", "module_info"]
