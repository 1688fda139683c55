"""Facts of the GPU by nvidia-smi."""
import shutil
import subprocess


def smi(fields):
    """Values of nvidia-smi, by field; {} without it."""
    if not shutil.which("nvidia-smi"):
        return {}
    done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"], capture_output=True,
                          text=True, timeout=20, check=False)
    values = [v.strip() for v in done.stdout.strip().split(",")]
    return dict(zip(fields.split(","), values)) if done.returncode == 0 and len(values) == fields.count(",") + 1 else {}
