"""Start a real SGLang 0.5.23 server on a machine without a GPU: `python launch_cpu.py --model-path DIR …`.

SGLang imports two things that a CPU install does not have: the package `sgl_kernel` (CUDA kernels) and two
operators of torchvision's CUDA build. Both are declared here as things that raise when they are called.
And SGLang spawns its child processes, each of which imports everything again; here they are forked from the
parent that has it: 21 CPU-seconds to start instead of 43, nearly all of them imports. Nothing else of SGLang
is changed. Runs in the virtual environment that install_cpu.sh makes.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import multiprocessing
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
    """Make the imports of SGLang work."""
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # the definitions live as long as it does
    kernels = _AbsentKernels("sgl_kernel")
    kernels.__path__ = []
    kernels.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None, is_package=True)
    sys.modules["sgl_kernel"] = kernels


def fork_children() -> None:
    """Let the server fork its children with all their modules imported. Safe because SGLang starts them
    before it starts a thread or an event loop of its own."""
    multiprocessing.set_start_method("fork")
    # SGLang sets "spawn", with force, just before it starts them.
    multiprocessing.set_start_method = lambda method, force=False: None
    for name in ("managers.scheduler", "managers.detokenizer_manager", "models.qwen3"):
        importlib.import_module(f"sglang.srt.{name}")


if not torch.cuda.is_available():
    declare_absent()

if __name__ == "__main__":
    fork_children()
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
