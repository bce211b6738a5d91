"""kerasfeed: any indexable Python class as a fast, reproducible, crash-proof input pipeline for Keras.

Invariant: importing this package loads no framework. Every public name is resolved on first use (PEP 562),
so a worker process that needs `kerasfeed.SceneSequence` never pays for Keras or TensorFlow.
`__init__.pyi` names the module of each.
"""

import logging
import re
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"
logging.getLogger(__name__).addHandler(logging.NullHandler())  # what becomes of workers, for whoever listens

_STUB = __spec__.loader.get_data(str(Path(__file__).with_name("__init__.pyi"))).decode()  # from a zip file, too
_MODULE_OF = {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as", _STUB, re.MULTILINE)}
__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'kerasfeed' has no attribute {name!r}")
    module = _MODULE_OF[name]
    try:
        value = import_module(f"{module}.{name}") if module == __name__ else getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        from kerasfeed.util.error_text import message_of

        package = str(error.name).partition(".")[0]
        if package not in ("tensorflow", "jax", "torch"):
            raise
        raise ImportError(
            f"kerasfeed.{name} needs Keras, which cannot be imported without its backend ({message_of(error)}): "
            f"pip install {package}, or the extra kerasfeed[{package}], or set KERAS_BACKEND to one that is installed",
            name=package,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
