"""Description of a machine for the scripts beside it: its GPU, its CUDA libraries, and its tools.

    python3 scripts/cuda/machine.py          # prints the LD_LIBRARY_PATH with which our programs find CUDA
"""

import glob
import importlib.metadata
import os
import platform
import re
import shutil
import site
import subprocess
import sysconfig

# Libraries that are loaded at run time, for each generation of CUDA.
LIBRARIES = ("libcublas.so", "libcublasLt.so", "libnvrtc.so")
PACKAGES = ("torch", "transformers", "vllm", "sglang", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cuda-nvrtc-cu12")


def said(command, seconds=30):
    """Returns the output of a command, or the reason why it failed to run."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}\n"
    return done.stdout.decode(errors="replace")


def card():
    """Name and driver of the first GPU; empty without one."""
    if not shutil.which("nvidia-smi"):
        return ""
    lines = said(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).splitlines()
    # Without a GPU it prints an error, which has no comma.
    return lines[0].strip() if lines and "," in lines[0] else ""


def newest():
    """The newest generation of CUDA that the driver supports; 13 if the driver does not say."""
    found = re.search(r"CUDA Version: *(\d+)", said(["nvidia-smi"])) if shutil.which("nvidia-smi") else None
    return int(found[1]) if found else 13


def roots():
    """Folders that may hold CUDA libraries: Python's packages, and toolkits."""
    packages = {sysconfig.get_paths()["purelib"], *site.getsitepackages(), site.getusersitepackages()}
    found = [f"{root}/nvidia/**/lib" for root in sorted(packages)]
    return [*found, "/usr/local/cuda*/lib64", "/usr/lib/*-linux-gnu", "/usr/lib64"]


def libraries(generation, among):
    """Folders with libraries of one generation, in the order of `among`."""
    folders = []
    for root in among:
        for name in LIBRARIES:
            for path in sorted(glob.glob(f"{root}/{name}.{generation}", recursive=True)):
                if os.path.dirname(path) not in folders:
                    folders.append(os.path.dirname(path))
    return folders


def sanitizer():
    """Path of `compute-sanitizer`; empty without one."""
    places = ["/usr/local/cuda*/bin/compute-sanitizer", "/usr/local/cuda*/compute-sanitizer/compute-sanitizer"]
    found = [path for place in places for path in sorted(glob.glob(place))]
    return shutil.which("compute-sanitizer") or (found[0] if found else "")


def versions():
    for package in PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            pass


def describe():
    """The machine. A driver takes libraries of its own generation and older ones: the newest come first."""
    generations = [generation for generation in (13, 12) if generation <= newest()]
    folders = {generation: libraries(generation, roots()) for generation in generations}
    path = [folder for generation in generations for folder in folders[generation]]
    own = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return dict(
        card=card(), libraries=folders, compute_sanitizer=sanitizer(), packages=list(versions()),
        library_path=":".join([*own, *path]), platform=platform.platform(),
        python=platform.python_version(),
    )


def text(machine):
    """The description as text, with what the driver says now."""
    lines = [f"{key}: {value}" for key, value in machine.items()]
    for folders in machine["libraries"].values():
        for folder in folders:
            files = sorted(path for name in LIBRARIES for path in glob.glob(f"{folder}/{name}*"))
            lines += [f"{path} -> {os.path.basename(os.path.realpath(path))}" for path in files]
    if shutil.which("nvidia-smi"):
        lines += ["", said(["nvidia-smi", "-q"])[: 32 << 10]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(describe()["library_path"])
