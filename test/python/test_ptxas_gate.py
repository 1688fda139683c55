"""Every shipped GPU kernel assembles without a spill."""
import os
import shutil
import subprocess
import sysconfig


def test_no_kernel_spills(root, build_dir, full):
    folders = [os.environ["PATH"], "/usr/local/cuda/bin", os.path.join(sysconfig.get_paths()["purelib"], "nvidia/cu13/bin")]
    path = os.pathsep.join(folders)
    assert shutil.which("ptxas", path=path), "expected ptxas of the CUDA Toolkit or of the package nvidia-cuda-nvcc"
    command = ["python3", "scripts/ptxas_report.py", "--opt", str(build_dir / "bin/diffattn-opt")]
    command += ["--chips", "sm_80,sm_86,sm_89,sm_90"] if full else ["--chips", "sm_80,sm_90", "--types", "bf16"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "diffattn_decode_64x128" in done.stdout and "FAILED" not in done.stdout
