"""Ray's workers of these tests, forked from a process that has imported NeMo-RL: imports take longer than most tests.

Ray starts `setup_worker.py` for each worker. There `sitecustomize` calls `hand_over`, before anything is imported: it
sends arguments, environment and streams to the process with the imports, which forks the worker, and waits for its end.
The first worker of an import path starts that process. Workers with a Python of their own start as Ray starts them.
"""

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time

#: In the environment: the process whose tests these are, and a folder for sockets.
VARIABLE = "FORKED_WORKERS"
MODULES = ["nemo_rl.algorithms.grpo", "nemo_rl.environments.math_environment", "nemo_uecr.nemo.task"]
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="


def hand_over() -> None:
    """In Ray's `setup_worker.py`: return only where the worker has another Python."""
    words = sys.orig_argv
    place = next(n for n, word in enumerate(words) if word.endswith("/setup_worker.py"))
    given = words[place + 1 :]
    context = json.loads(next((word for word in given if word.startswith(CONTEXT)), f"{CONTEXT}{{}}")[len(CONTEXT) :])
    if context.get("py_executable") not in (None, sys.executable) or context.get("command_prefix"):
        return
    for name, value in (context.get("env_vars") or {}).items():  # as Ray's `update_envs`
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    arguments = [word for word in given if not word.startswith((CONTEXT, LANGUAGE))]
    connection = _connected()
    asked = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(connection, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(asked)
    connection.recv(1)  # nothing is ever sent: this is the worker's end
    os._exit(0)


def _connected() -> socket.socket:
    parent, _, folder = os.environ[VARIABLE].partition(":")
    path = os.path.join(folder, hashlib.sha256(os.environ["PYTHONPATH"].encode()).hexdigest()[:16])
    connection = socket.socket(socket.AF_UNIX)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            with open(f"{path}.log", "w") as log:
                started = subprocess.Popen(
                    [sys.executable, "-W", "ignore", __file__, path, parent], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, start_new_session=True,
                )  # fmt: skip
            while not os.path.exists(path):
                if started.poll() is not None:
                    sys.exit(f"no process to fork workers from: {path}.log")
                time.sleep(0.05)
    connection.connect(path)
    return connection


def serve(path: str, parent: int) -> None:
    """Import, then fork a worker for each connection until the tests' process is gone."""
    worker = ["nemo_uecr.nemo.ray_worker"] if "WORKERS_ON_CPU" in os.environ else []
    for module in [*worker, *MODULES]:
        importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    listener.settimeout(2.0)
    os.rename(f"{path}.new", path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while os.path.exists(f"/proc/{parent}"):
        with contextlib.suppress(TimeoutError):
            connection = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                _become(connection)
            connection.close()


def _become(connection: socket.socket) -> None:
    """The worker that a process asked for; it ends with that process, as that does with it."""
    connection.settimeout(None)
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    asked = connection.makefile("rb").read(int.from_bytes(size, "big"))
    arguments, environment, folder = json.loads(asked)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for given, own in zip(streams, (0, 1, 2), strict=True):
        os.dup2(given, own)
        os.close(given)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    random.seed()
    sys.modules["numpy"].random.seed()
    threading.Thread(target=lambda: (connection.recv(1), os._exit(1)), daemon=True).start()
    sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
    runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
