"""Attacks that tool code may try, as function bodies. ``ATTACKS`` need the allow-list to be out of the way;
``WITHIN`` are within it, and contained by the worker alone.

A body sees ``state``, ``ctx`` and ``a``: ``secret`` (path of a file with SECRET in it), ``canary`` (path of a
file that must not change), ``folder``, ``port`` (a listening TCP port), ``name`` (a listening abstract Unix
socket), ``parent`` (process id of the caller), ``note`` (a note of the episode).
"""

from __future__ import annotations

from dataclasses import dataclass

SECRET = "SECRET-5e1f"
TARGET = "TARGET-9c2d"
"""A value that only the accepted state of the attacked task holds."""

BREACH, TIME, DEFECT = "tool_breach", "tool_timeout", "env_error"
ANSWERED = "answered"
"""The call returned to the agent as if nothing were wrong; what it returned is looked at."""


@dataclass(frozen=True)
class Attack:
    """``ends``: how an episode that makes this call may end, or ANSWERED. ``layers``: ``files`` or
    ``network`` for those that the layers other than seccomp must contain too. ``said``: it needs no word that
    the allow-list refuses."""

    name: str
    kind: str
    body: str
    ends: tuple[str, ...] = (BREACH,)
    layers: str = ""
    said: bool = False


ATTACKS = (
    # files
    Attack("read_file", "files", "return open(a['secret']).read()", layers="files"),
    Attack("write_file", "files", "open(a['canary'], 'w').write('x')", layers="files"),
    Attack("delete_file", "files", "import os; os.unlink(a['canary'])", layers="files"),
    Attack("list_root", "files", "import os; return os.listdir('/')", layers="files"),
    Attack("parent_memory", "files", "return open(f'/proc/{a[\"parent\"]}/environ').read()", layers="files"),
    Attack("fill_disk", "files", "for n in range(10**6): open(f'f{n}', 'wb').write(b'x' * 10**6)"),
    Attack("link", "files", "import os; os.symlink(a['secret'], a['folder'] + '/link')", layers="files"),
    Attack("chmod", "files", "import os; os.chmod(a['canary'], 0o777)"),
    Attack("parent_fds", "files", "import os\nfor n in range(64):\n    os.write(n, b'x')"),
    # network
    Attack(
        "tcp",
        "network",
        "import socket\ns = socket.socket()\ns.connect(('127.0.0.1', a['port']))\ns.send(b'x')",
    ),
    Attack(
        "tcp_raw",
        "network",
        "import _socket\ns = _socket.socket(2, 1)\ns.connect(('127.0.0.1', a['port']))\ns.send(b'x')",
        layers="network",
    ),
    Attack("udp", "network", "import _socket\n_socket.socket(2, 2).sendto(b'x', ('127.0.0.1', a['port']))"),
    Attack(
        "abstract_unix",
        "network",
        "import _socket\ns = _socket.socket(1, 1)\ns.connect('\\0' + a['name'])\ns.send(b'x')",
        layers="network",
    ),
    Attack("dns", "network", "import _socket\nreturn str(_socket.getaddrinfo('example.com', 80))"),
    # processes
    Attack("fork", "processes", "import os; return os.fork()"),
    Attack(
        "fork_bomb",
        "processes",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    ),
    Attack("shell", "processes", "import os; return os.system('echo x > ' + a['canary'])"),
    Attack("spawn", "processes", "import posix; return posix.posix_spawn('/bin/sh', ['sh'], {})"),
    Attack("exec", "processes", "import os; os.execv('/bin/sh', ['sh', '-c', 'true'])"),
    Attack("thread", "processes", "import _thread; return _thread.start_new_thread(print, ())"),
    Attack("libc_system", "processes", "import ctypes; ctypes.CDLL(None).system(b'true')"),
    # signals and other processes
    Attack("kill_parent", "signals", "import os; os.kill(a['parent'], 9)"),
    Attack("kill_all", "signals", "import os; os.kill(-1, 9)"),
    Attack("ignore_signals", "signals", "import signal; signal.signal(15, signal.SIG_IGN)"),
    Attack("alarm", "signals", "import signal; signal.setitimer(0, 1)"),
    Attack("abort", "signals", "import os; os.abort()"),
    Attack("ptrace_parent", "signals", "import ctypes; ctypes.CDLL(None).ptrace(16, a['parent'], 0, 0)"),
    Attack("limit_parent", "signals", "import resource; resource.prlimit(a['parent'], 0, (0, 0))"),
    # the fence itself
    Attack("raise_limits", "fence", "import resource; resource.setrlimit(9, (-1, -1))"),
    Attack("become_root", "fence", "import os; os.setuid(0)"),
    Attack("chroot_out", "fence", "import os; os.chroot('..')"),
    Attack("unshare", "fence", "import ctypes; ctypes.CDLL(None).unshare(0x10000000)"),
    Attack("mount", "fence", "import ctypes; ctypes.CDLL(None).mount(b'none', b'/', b'tmpfs', 0, None)"),
    Attack("drop_filter", "fence", "import ctypes; ctypes.CDLL(None).prctl(22, 0, 0, 0, 0)"),
    Attack(
        "native_code",
        "fence",
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
        "return libc.mmap(None, 4096, 7, 0x22, -1, 0)",
    ),
    Attack("x32_call", "fence", "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)"),
    Attack("close_socket", "fence", "import os, sys; os.close(int(sys.argv[1]))"),
    # resources
    Attack("memory", "resources", "return len(bytearray(10**12))"),
    Attack("memory_grows", "resources", "x = []\nwhile True:\n    x.append(bytearray(10**6))"),
    Attack("memory_kept", "resources", "import sys\nsys.k = []\nwhile True:\n    sys.k.append('x' * 10**6)"),
    Attack("spin", "resources", "while True: pass", (TIME,)),
    Attack("big_power", "resources", "return 9**9**9 % 2", (TIME, BREACH)),
    Attack("sleep", "resources", "import time; time.sleep(3600)", (BREACH, TIME)),
    Attack(
        "lock_up",
        "resources",
        "import _thread\nx = _thread.allocate_lock()\nwhile 1: x.acquire()",
        (TIME,),
    ),
    Attack("recursion", "resources", "f = lambda: f()\nf()", (DEFECT,)),
    Attack(
        "c_recursion",
        "resources",
        "import sys\nsys.setrecursionlimit(10**9)\nf = lambda: sorted([1, 2], key=lambda _: f())\nf()",
        (BREACH, DEFECT),
    ),
    Attack("compile_bomb", "resources", "compile('(' * 10**5, 'x', 'eval')", (DEFECT, BREACH)),
    Attack("giant_text", "resources", "return 'x' * (50 * 2**20)"),
    Attack("giant_error", "resources", "raise ToolError('x' * 50000000)", said=True),
    # the interpreter and the caller
    Attack("exit_process", "interpreter", "import os; os._exit(0)"),
    Attack("system_exit", "interpreter", "raise SystemExit(3)", (DEFECT,)),
    Attack("keyboard_interrupt", "interpreter", "raise KeyboardInterrupt", (DEFECT,)),
    Attack("segfault", "interpreter", "import ctypes; return ctypes.string_at(0)"),
    Attack("import_new", "interpreter", "import asyncio", (BREACH,)),
    Attack(
        "frames",
        "interpreter",
        "import sys\nframe, seen = sys._getframe(), []\n"
        "while frame:\n    seen.append(repr([frame.f_locals, frame.f_globals]))\n    frame = frame.f_back\n"
        "return ''.join(seen)",
        (ANSWERED, BREACH),
    ),
    Attack(
        "all_objects",
        "interpreter",
        "import gc\nreturn [repr(o)[:10**4] for o in gc.get_objects() if type(o) in (dict, list, tuple)]",
        (ANSWERED, BREACH, TIME),
    ),
    Attack(
        "closures",
        "interpreter",
        "g = type(state).get.__globals__\nreturn repr(sorted(g)) + repr(g['__builtins__'])[:10**5]",
        (ANSWERED,),
    ),
    Attack("format", "interpreter", "return '{0.__class__.get.__globals__}'.format(state)", (ANSWERED,)),
    Attack("environment", "interpreter", "import os; return dict(os.environ)", (ANSWERED,)),
    Attack(
        "arguments",
        "interpreter",
        "import sys; return [sys.argv, sys.path, list(sys.modules)]",
        (ANSWERED,),
    ),
    Attack("subclasses", "interpreter", "return [str(c) for c in object.__subclasses__()]", (ANSWERED,)),
    Attack("pickle", "interpreter", "import pickle; return pickle.loads(b'cposix\\nsystem\\n(Vtrue\\ntR.')"),
    Attack(
        "odd_object",
        "interpreter",
        "class X:\n    def __reduce__(self):\n        return (print, ())\nreturn X()",
        (DEFECT,),
    ),
    Attack("patch_builtins", "interpreter", "import builtins; builtins.len = print", (ANSWERED, BREACH)),
    # the grader
    Attack("patch_grader", "grader", "from envgen.runtime.grader import Grader; Grader.judge = None"),
    Attack(
        "lie_about_delta",
        "grader",
        "type(state).delta = lambda self: __import__('sys').modules['envgen.runtime.state'].Delta("
        "{'notes': {'N11': {'id': 'N11'}}}, {}, {})\nreturn 1",
        (ANSWERED,),
    ),
    Attack(
        "delta_of_rubbish",
        "grader",
        "type(state).delta = lambda self: (_ for _ in ()).throw(ValueError('x'))\nreturn 1",
        (ANSWERED,),
    ),
    Attack(
        "giant_state",
        "grader",
        "state.insert('notes', 'N9', {'id': 'x' * (50 * 2**20)})",
        (ANSWERED,),
    ),
    Attack(
        "deep_state",
        "grader",
        "d = {}\nfor _ in range(200): d = {'d': d}\nstate.insert('notes', 'N9', {'id': 'N9', 'd': d})",
        (ANSWERED,),
        said=True,
    ),
    # the protocol
    Attack(
        "two_answers",
        "protocol",
        "import os, sys\nos.write(int(sys.argv[1]), 2 * (b'\\x0a\\0\\0\\0' + b'[0,\"ok\",1]'))",
    ),
    Attack("giant_header", "protocol", "import os, sys\nos.write(int(sys.argv[1]), b'\\xff\\xff\\xff\\xff')"),
    Attack(
        "half_an_answer",
        "protocol",
        "import os, sys\nos.write(int(sys.argv[1]), b'\\x10\\0\\0\\0half')\nwhile True: pass",
        (TIME,),
    ),
    Attack(
        "drip",
        "protocol",
        "import os, sys\nos.write(int(sys.argv[1]), b'\\0\\0\\x10\\0')\n"
        "while True:\n    for _ in range(10**5): pass\n    os.write(int(sys.argv[1]), b' ')",
        (TIME,),
    ),
    Attack(
        "deep_json",
        "protocol",
        "import os, sys\nb = b'[' * 10**6\nos.write(int(sys.argv[1]), len(b).to_bytes(4, 'little') + b)",
        (BREACH, TIME),
    ),
    Attack("no_utf8", "protocol", "import os, sys\nos.write(int(sys.argv[1]), b'\\x02\\0\\0\\0\\xff\\xfe')"),
    Attack("not_a_number", "protocol", "return [float('nan'), float('inf')]", (ANSWERED,), said=True),
    Attack("surrogates", "protocol", "return chr(0xD800)", (DEFECT,), said=True),
)

WITHIN = (
    Attack("list_times", "resources", "return len([0] * 1000000 * 1000000)"),
    Attack("text_times", "resources", "return len('x' * 1000000 * 1000000)"),
    Attack(
        "loops",
        "resources",
        "n = 0\nfor i in range(1000000):\n    for j in range(1000000):\n        n = i - j\nreturn n",
        (TIME,),
    ),
    Attack("big_product", "resources", "n = 9\nfor i in range(1000000):\n    n = n * n\nreturn 1", (TIME,)),
    Attack("recursion", "resources", "return within_recursion(state, ctx, a)", (DEFECT,)),
    Attack("giant_text", "resources", "return 'x' * 50000000"),
    Attack("giant_error", "resources", "raise ToolError('x' * 50000000)"),
    Attack(
        "growing_list",
        "resources",
        "x = [1]\nfor i in range(1000000):\n    x = x + x\nreturn 1",
    ),
    Attack(
        "many_records",
        "resources",
        "for i in range(1000000):\n    state.insert('notes', str(i), {'id': 'x' * 1000})\nreturn 1",
        (BREACH, TIME),
    ),
    Attack(
        "find_bomb",
        "resources",
        "x = ('a' * 1000 + 'b') * 1000\nfor i in range(1000000):\n    x.replace('a', x[i:i + 9])\nreturn 1",
        (TIME, BREACH),
    ),
)


def source_of(attacks: tuple[Attack, ...], prefix: str, rest: str) -> str:
    """Module text: ``rest`` (an honest tools.py) with one more tool ``<prefix>_<name>`` per attack."""
    functions: list[str] = []
    entries: list[str] = []
    for attack in attacks:
        name = f"{prefix}_{attack.name}"
        lines = "\n".join("    " + line for line in attack.body.split("\n"))
        functions.append(f"def {name}(state, ctx, a):\n{lines}\n")
        entries.append(f'    "{name}": {name},\n')
    head, table = rest.split("TOOLS = {\n")
    return head + "\n\n".join(functions) + "\n\nTOOLS = {\n" + "".join(entries) + table
