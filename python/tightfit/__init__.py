"""tightfit's door into PyTorch: writes one training step of a model as files that the `tightfit` program reads, runs
graphs that it wrote, and says what the model's modules hold and take.

Invariant: importing this package has no side effects; everything public is named in `__all__`.
"""

from .errors import ExportError, GraphFileError, ProgramError
from .export import export
from .graph_module import arguments, to_fx
from .statistics import module_info

__all__ = ["ExportError", "GraphFileError", "ProgramError", "arguments", "export", "module_info", "to_fx"]
