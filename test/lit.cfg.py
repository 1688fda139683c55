import os
import sysconfig

import lit.formats

config.name = "diffattn"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs", "graphs", "python", "consumer"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.diffattn_build_dir, "test")

# ptxas is the CUDA Toolkit's, else the one that the tests' Python packages bring.
ptxas_dirs = ["/usr/local/cuda/bin", os.path.join(sysconfig.get_paths()["purelib"], "nvidia/cu13/bin")]
config.environment["PATH"] = os.pathsep.join(
    [os.path.join(config.diffattn_build_dir, "bin"), config.llvm_tools_dir, os.environ["PATH"], *ptxas_dirs]
)
# A sanitizer's runtime, which every process of a test must load first.
preload = os.environ.get("DIFFATTN_PRELOAD")
if preload:
    config.environment["LD_PRELOAD"] = preload
    # A project that links our archives must link the runtime too.
    config.environment["LDFLAGS"] = f"-fsanitize=address,undefined -shared-libsan -Wl,-rpath,{os.path.dirname(preload)}"
config.environment["FILECHECK_OPTS"] = "-enable-var-scope --allow-unused-prefixes=false"
config.substitutions += [
    ("%mlir_lib_dir", config.mlir_lib_dir),
    ("%cc", os.path.join(config.llvm_tools_dir, "clang")),
    ("%build", config.diffattn_build_dir),
    ("%source", config.diffattn_source_dir),
    ("%plugin", os.path.join(config.diffattn_build_dir, "lib", "libDiffAttnPlugin.so")),
    ("%model_plugin", os.path.join(config.diffattn_build_dir, "lib", "libDiffAttnModelPlugin.so")),
    ("%preloaded", preload + ":" if preload else ""),
    ("%runtime", os.path.join(config.diffattn_build_dir, "lib", "libDiffAttnRuntime.so")),
]

# Every file is printed and read again before a pass sees it, unless lit is given --param roundtrip=off.
if lit_config.params.get("roundtrip", "on") != "off":
    config.substitutions.append((r"(?<![\w/=-])diffattn-opt(?![\w-])", "diffattn-opt --verify-roundtrip"))

# Built with the unit tests: libraries in the place of CUDA's.
mock_cuda = os.path.join(config.diffattn_build_dir, "unittests", "mocks", "libMockCuda.so")
if os.path.exists(mock_cuda):
    config.available_features.add("mocks")
    config.substitutions.append(("%mock_cuda", mock_cuda))
