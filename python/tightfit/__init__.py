"""tightfit's door into PyTorch: writes one training step of a model as files that the `tightfit` program reads, and runs
graphs that it wrote.

Invariant: importing this package has no side effects; everything public is named in `__all__`.
"""

from .errors import ExportError, GraphFileError
from .export import export
from .graph_module import arguments, to_fx

__all__ = ["ExportError", "GraphFileError", "arguments", "export", "to_fx"]
