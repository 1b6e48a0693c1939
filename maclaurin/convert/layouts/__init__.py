"""Published layouts of linear models: imported as `maclaurin` models, and written back."""

from maclaurin.convert.layouts.translate import LAYOUTS, export_layout, import_layout, load_layout

__all__ = ["LAYOUTS", "export_layout", "import_layout", "load_layout"]
