"""Compiles one file with NVRTC: nvrtc.py LIBRARY SOURCE PTX [options...]"""

import ctypes
import sys

library, source, ptx, *options = sys.argv[1:]
nvrtc = ctypes.CDLL(library)


def text(size, read):
    """Returns a text of NVRTC. `size` and `read` name the functions that return its size and its content."""
    length = ctypes.c_size_t()
    getattr(nvrtc, size)(program, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    getattr(nvrtc, read)(program, buffer)
    return buffer.value


program = ctypes.c_void_p()
with open(source, "rb") as file:
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), file.read(), source.encode(), 0, None, None)
arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
status = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
log = text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode()
if log.strip():
    print(log.strip())
if status != 0:
    sys.exit(f"NVRTC says {status}")
with open(ptx, "wb") as file:
    file.write(text("nvrtcGetPTXSize", "nvrtcGetPTX"))
