"""Start a real SGLang 0.5.23 server on a machine without a GPU: `python launch_cpu.py --model-path DIR …`.

SGLang imports two things that a CPU install does not have: the package `sgl_kernel` (CUDA kernels) and two
operators of torchvision's CUDA build. Both are declared here as things that raise when they are called;
nothing else of SGLang is changed. Runs in the virtual environment that install_cpu.sh makes.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from typing import NoReturn

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch


class _AbsentKernels(types.ModuleType):
    """Stands for `sgl_kernel`: any name can be imported from it, none can be called."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_args: object, **_kwargs: object) -> NoReturn:
            raise NotImplementedError(f"sgl_kernel.{name} is a CUDA kernel; this server runs on a CPU")

        return absent


def declare_absent() -> None:
    """Make the imports of SGLang work. Runs in the server's child processes too: they import this file
    again."""
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # the definitions live as long as it does
    kernels = _AbsentKernels("sgl_kernel")
    kernels.__path__ = []
    kernels.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None, is_package=True)
    sys.modules["sgl_kernel"] = kernels


if not torch.cuda.is_available():
    declare_absent()

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
