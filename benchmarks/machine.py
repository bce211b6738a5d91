"""A description of the machine of the measurements.

Invariant: it names no host, user or path.
"""

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

PACKAGES = (
    "numpy", "keras", "tensorflow", "torch", "grain", "spdl-core", "pillow", "h5py", "hidefix", "pyfive", "zarr",
    "isal", "deflate", "zlib_into", "kerasfeed",
)  # fmt: skip


def describe() -> dict[str, object]:
    """Processor, cores, memory in GB, system, Python, and the versions of the measured packages."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
