"""Runs Python code as `python -c` does, but in a fork of a process that has imported what takes seconds to import."""
import multiprocessing
import os
import sys
import traceback

_CONTEXT = multiprocessing.get_context("forkserver")
#: Modules that code may import; not the package under test, which reads the environment when it is imported.
_CONTEXT.set_forkserver_preload(["numpy", "torch", "torch._dynamo", "torch.export", "torch_mlir.fx"])


def _run(code, folder, output):
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv, sys.path[0] = ["-c"], ""
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None


def run(code, folder, output, timeout=300):
    """The exit status of `code` in `folder` (None: it took longer than `timeout` seconds), and what it wrote, which lies in `output`."""
    process = _CONTEXT.Process(target=_run, args=(code, str(folder), str(output)))
    process.start()
    process.join(timeout)
    status = process.exitcode
    process.kill()
    process.join()
    return status, output.read_text(errors="replace")
