"""Null for every pointer of every function of the C interfaces: an error that names the parameter, and never a crash.

The functions are those that the headers declare, so one that is added without a check fails here."""
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from paths import LLVM, MODULES, ROOT

HEADERS = {"libDiffAttnC.so": ("DiffAttn.h", "diffattn_"), "libDiffAttnBundle.so": ("Bundle.h", "diffattn_bundle_")}
#: Functions that give no status: the value of each without a program, bundle or graph.
NUMBERS = {"api_version", "program_from_cache", "num_entries", "num_weights", "num_diagnostics", "has_device", "object_facts_hold"}
NAMES = {"entry_name", "weight_name", "version_text", "last_error"}
TEXTS = {"program_diagnostics", "graph_fallback_reason", "replay_refusal"}
#: Functions that end or free something: null is ignored.
ENDS = {"options_destroy", "program_destroy", "graph_destroy", "replay_destroy", "close", "free"}
#: Parameters that the headers say may be null.
OPTIONAL = {("compile", "options"), ("emit", "options"), ("write_bundle", "options"), ("write_bundle", "model_folder"), ("judge", "options"),
            ("num_diagnostics", "program"), ("get_diagnostic", "program"), ("bind_weights_telling", "progress"),
            ("bind_weights_telling", "progress_data"), ("bind_weights_while", "go_on"), ("bind_weights_while", "data"),
            ("memory_stream", "stream"), ("open", "weights"), ("open_with", "options")}
#: Lists whose lengths a function knows.
LISTS = {"arguments": "'f': expected a list of arguments, but got null", "results": "'f': expected room for 1 results, but got null",
         ("judge", "results"): "'results of f': expected a list of arguments, but got null"}

MODULE = b"""func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def functions(library):
    """The functions of a header: name without prefix, type of the result, and of each parameter its name and how it is given: by
    value, by a pointer, or by one that a handle is written to."""
    header, prefix = HEADERS[library]
    text = (ROOT / "include" / "diffattn-c" / header).read_text()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    for result, name, parameters in re.findall(r"DIFFATTN_EXPORT\s+([\w\s]+?\s*\**)\s*\b(diffattn_\w+)\((.*?)\)\s*;", text, re.S):
        pointers = []
        # A parameter that is a function has commas of its own.
        for parameter in re.split(r",\s*(?![^()]*\))", " ".join(parameters.split())):
            if parameter != "void":
                named = re.search(r"\(\*(\w+)\)", parameter) or re.search(r"(\w+)$", parameter)
                writes = re.search(r"diffattn_\w+ \*\*", parameter)
                pointers.append((named.group(1), "handle" if writes else "pointer" if "*" in parameter else ""))
        yield name.removeprefix(prefix), " ".join(result.split()), pointers


@pytest.mark.parametrize("library", HEADERS)
def test_what_is_exported_is_declared(library, build_dir):
    out = subprocess.run([LLVM / "llvm-nm", "-D", "--defined-only", build_dir / "lib" / library], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in out.stdout.splitlines()}
    declared = {HEADERS[library][1] + name for name, _, _ in functions(library)}
    if library == "libDiffAttnC.so":
        # Functions with structs of MLIR's C API, which are passed by value (test/CAPI/dialect.test).
        header = (ROOT / "include" / "diffattn-c" / "Dialect.h").read_text()
        declared |= {"mlirGetDialectHandle__diffattn__", *re.findall(r"\b(diffattn_\w+)\(", re.sub(r"/\*.*?\*/", " ", header, flags=re.S))}
    assert exported == declared


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p)]


class BundleOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_int32), ("gpu", ctypes.c_int32), ("weights", ctypes.c_void_p), ("cuda_driver", ctypes.c_void_p),
                ("cublaslt", ctypes.c_void_p), ("package_folders", ctypes.c_void_p), ("device", ctypes.c_void_p),
                ("progress", ctypes.c_void_p), ("progress_data", ctypes.c_void_p), ("read_only", ctypes.c_int32),
                ("go_on", ctypes.c_void_p)]


class Caller:
    """Calls functions of one library with arguments that are right, but for those that are given."""

    def __init__(self, build, library, folder):
        self.signatures = {name: (result, parameters) for name, result, parameters in functions(library)}
        self.prefix, self.library = HEADERS[library][1], ctypes.CDLL(str(build / "lib" / library))
        self.kept = [(ctypes.c_int64 * 1)(4), (ctypes.c_float * 4)(1, 2, 3, 4)]
        shape, data = map(ctypes.addressof, self.kept)
        places = [ctypes.create_string_buffer(1024) for _ in range(2)]
        self.kept += [*places, Array(data, 0, 1, shape, None), ctypes.create_string_buffer(b"f"), ctypes.create_string_buffer(MODULE),
                      ctypes.create_string_buffer(b"llvm"), ctypes.create_string_buffer(str(folder).encode())]
        out, results, array, entry, module, stage, place = map(ctypes.addressof, self.kept[2:])
        self.kept.append((ctypes.c_void_p * 1)(place))
        texts = ctypes.addressof(self.kept[-1])
        self.values = {
            "entry": entry, "ir": module, "ir_bytes": len(MODULE), "stage": stage, "directory": place, "chip": place, "name": entry,
            "value": entry, "arguments": array, "num_arguments": 1, "results": results, "num_results": 1, "threads": 1, "bytes": 16,
            "rows": 1, "to_pitch": 16, "from_pitch": 16, "i": 0, "copy_weights": 1, "paths": texts, "count": 1, "weights": texts,
            "num_weights": 1, "names": texts, "arrays": array,
        }
        self.out = out

    def call(self, name, /, **given):
        result, parameters = self.signatures[name]
        function = getattr(self.library, self.prefix + name)
        function.restype = {"void": None, "int32_t": ctypes.c_int32, "const char *": ctypes.c_char_p}.get(result, ctypes.c_void_p)
        arguments = []
        for parameter, is_pointer in parameters:
            value = given.get(parameter, self.values.get(parameter, self.out if is_pointer else 0))
            # Results that are judged are given.
            if name == "judge" and parameter == "results" and parameter not in given:
                value = self.values["arguments"]
            # Counts are pointers where they are given back.
            if parameter not in given and (is_pointer == "handle" or is_pointer and parameter == "count"):
                value = self.out
            arguments.append(ctypes.c_void_p(value) if is_pointer else ctypes.c_int64(value))
        return function(*arguments)

    def error(self):
        return self.call("last_error").decode()

    def make(self, name, /, **given):
        """Calls what must succeed; what it gave through a pointer."""
        if self.call(name, **given):
            raise RuntimeError(self.error())
        return ctypes.c_int64.from_address(self.out).value


def text(caller, content):
    caller.kept.append(ctypes.create_string_buffer(content))
    return ctypes.addressof(caller.kept[-1])


def prepare(build, library, folder):
    """A caller whose program, bundle, options and graph are real, on a device that is simulated."""
    compiler = Caller(build, "libDiffAttnC.so", folder)
    options = compiler.call("options_create")
    if compiler.call("options_set", options=options, name=text(compiler, b"target"), value=text(compiler, b"cuda-sim:sm_80")):
        raise RuntimeError(compiler.error())
    compiler.values["options"] = options
    if library == "libDiffAttnC.so":
        compiler.values["program"] = compiler.make("compile")
        compiler.values["graph"] = compiler.make("graph_capture")
        compiler.values["to"] = compiler.values["from"] = compiler.make("memory_allocate")
        return compiler
    compiler.make("write_bundle", num_weights=0, weights=None, model_folder=None)
    caller = Caller(build, library, folder)
    caller.kept.append(compiler)
    opening = BundleOptions(ctypes.sizeof(BundleOptions), device=compiler.make("open_simulated_device", chip=text(compiler, b"sm_80")))
    caller.kept.append(opening)
    caller.values["options"] = ctypes.addressof(opening)
    caller.values["bundle"] = caller.make("open_with")
    caller.values["graph"] = caller.make("graph_capture")
    caller.values["to"] = caller.values["from"] = caller.make("memory_allocate")
    return caller


def call_all(build, library, folder):
    """Each function with null for each of its pointers, in turn; prints what came of it, and before what is tried."""
    caller = prepare(pathlib.Path(build), library, folder)
    for name, (result, parameters) in caller.signatures.items():
        for parameter, is_pointer in parameters:
            if not is_pointer:
                continue
            print(json.dumps([name, parameter]), flush=True)
            got = caller.call(name, **{parameter: None})
            print(json.dumps([name, parameter, got.decode() if isinstance(got, bytes) else got, caller.error()]), flush=True)
    # Nothing of that has harmed them.
    caller.make("call")
    caller.make("graph_launch")


@pytest.mark.parametrize("library", HEADERS)
def test_null_is_an_error_that_names_the_parameter(library, build_dir, tmp_path):
    done = subprocess.run([sys.executable, __file__, str(build_dir.resolve()), library, str(tmp_path / "bundle")], capture_output=True,
                          text=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"crashed at {lines[-1:]}: {done.stderr}"
    tried = [line for line in lines if len(line) == 4]
    assert len(tried) == sum(is_pointer != "" for _, _, parameters in functions(library) for _, is_pointer in parameters)
    for name, parameter, got, message in tried:
        what = f"{name}({parameter} = null) gave {got!r} and said {message!r}"
        if name in ENDS or (name, parameter) in OPTIONAL:
            continue
        if name in NUMBERS | NAMES | TEXTS:
            assert got == (0 if name in NUMBERS else None if name in NAMES else ""), what
        else:
            assert got == 2, what
        expected = LISTS.get((name, parameter)) or LISTS.get(parameter) or f"{parameter}: expected an address, but got null"
        assert message == expected, what


def test_lists_of_texts(build_dir, tmp_path):
    """Null in a list, and lengths that are none."""
    code = f"""
import ctypes, pathlib, sys
sys.path[:0] = {[str(folder) for folder in MODULES]!r}
import test_capi_nulls as nulls
caller = nulls.prepare(pathlib.Path({str(build_dir.resolve())!r}), 'libDiffAttnC.so', {str(tmp_path / 'b')!r})
pair = (ctypes.c_void_p * 2)(nulls.text(caller, b"somewhere"), None)
for name, lists in (("bind_weights", "paths"), ("bind_weights_telling", "paths"), ("bind_weights_while", "paths"), ("write_bundle", "weights"), ("bind_weight_arrays", "names")):
    count = "num_weights" if lists == "weights" else "count"
    print(caller.call(name, **{{lists: ctypes.addressof(pair), count: 2}}), caller.error())
    print(caller.call(name, **{{lists: ctypes.addressof(pair), count: -1}}), caller.error())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = [f"2 {name}{rest}" for name in ["paths"] * 3 + ["weights", "names"]
                for rest in ("[1]: expected an address, but got null", ": expected a number of them from 0, but got -1")]
    assert done.stdout.splitlines() == expected


if __name__ == "__main__":
    call_all(*sys.argv[1:])
