"""docs/spec.md and the op descriptions say what the code does: labels, examples, and files that survive a round trip."""
import re
import subprocess

import pytest

from paths import ROOT

LABEL = (r"(?:attention|attention_backward|online_attention|merge|finalize|layer_weight|gated_gemm|quantized_gemm|cpu_prefill|cpu_split_kv|gpu_forward|gpu_split_kv|gpu_plain|when|import)"
         r"_c\d+")
EXAMPLE = re.compile(r"^[ ]*```mlir\n(.*?)^[ ]*```", re.M | re.S)


@pytest.fixture(scope="module")
def opt(build_dir):
    def run(*arguments, source=None):
        return subprocess.run([str(build_dir / "bin/diffattn-opt"), *arguments], input=source, capture_output=True, timeout=60)
    return run


def labels_in(text):
    """The labels in a text; "x_c3 to x_c9" names all between."""
    labels = set(re.findall(rf"\b{LABEL}\b", text))
    for op, first, last in re.findall(r"\b([a-z_]+)_c(\d+) to \1_c(\d+)", text):
        labels |= {f"{op}_c{i}" for i in range(int(first), int(last) + 1)}
    return labels


def test_every_label_is_specified_checked_and_tested():
    spec = set(re.findall(rf"^\| `({LABEL})`", (ROOT / "docs/spec.md").read_text(), re.M))
    checks = set().union(*(labels_in(p.read_text()) for folder in ("lib/IR", "lib/Transforms/Import") for p in (ROOT / folder).glob("*.cpp")))
    tests = set()
    for path in [*(ROOT / "test/IR").glob("*-invalid.mlir"), *(ROOT / "test/Transforms").glob("diffattn-import-*-invalid.mlir")]:
        tests |= set(re.findall(rf"func\.func (?:private )?@({LABEL})", path.read_text()))
    assert len(spec) > 50
    assert checks == spec
    assert tests == spec


def document_examples():
    for path in sorted((ROOT / "docs").glob("*.md")) + [ROOT / "README.md"]:
        if path.exists():
            text = path.read_text()
            for match in EXAMPLE.finditer(text):
                yield pytest.param(match.group(1), id=f"{path.name}:{text[:match.start()].count(chr(10)) + 2}")


@pytest.mark.parametrize("text", list(document_examples()))
def test_examples_of_documents_parse(opt, text):
    done = opt("-", "--verify-roundtrip", source=text.encode())
    assert done.returncode == 0, done.stderr.decode()


def description_examples():
    for path in sorted((ROOT / "include/DiffAttn/IR").glob("*Ops.td")):
        text = path.read_text()
        for match in EXAMPLE.finditer(text):
            yield pytest.param(match.group(1), id=f"{path.name}:{text[:match.start()].count(chr(10)) + 2}")


def at_top_level(text):
    """`text` cut at commas outside of brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def as_function(example):
    """An op of a description with arguments for what it uses: types stand beside the operands or are index."""
    types = {}
    for names, kinds in re.findall(r"\w+\s*\(((?:%\w+[,\s]*)+):((?:[^()]|\([^()]*\))*)\)", example):
        types.update(zip(at_top_level(names), at_top_level(kinds)))
    used = dict.fromkeys(re.findall(r"%\w+", example.split("=", 1)[1]))
    weights = [f'ml_program.global private {name}(#ml_program.extern<{kind}>) : {kind}'
               for name, kind in re.findall(r'(@"[^"]+")\[%\w+\]\s*:\s*(\S+)', example)]
    arguments = ", ".join(f"{name}: {types.get(name, 'index')}" for name in used)
    return "\n".join([*weights, f"func.func @example({arguments}) {{", example, "return", "}"])


@pytest.mark.parametrize("example", [p for p in description_examples() if "diffattn." in p.values[0]])
def test_examples_of_descriptions_parse(opt, example):
    source = as_function(example)
    done = opt("-", "--verify-roundtrip", source=source.encode())
    assert done.returncode == 0, source + done.stderr.decode()


def mlir_files():
    tracked = subprocess.run(["git", "ls-files", "test/*.mlir"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    names = tracked or [str(p.relative_to(ROOT)) for p in sorted((ROOT / "test").rglob("*.mlir"))]
    # Files that are wrong on purpose say so.
    return [n for n in names if "expected-error" not in (ROOT / n).read_text()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", mlir_files())
def test_files_survive_text_and_bytecode(opt, name):
    options = ("-", "--split-input-file", "--allow-unregistered-dialect")
    source = re.sub(r"^//--- .*$", "// -----", (ROOT / name).read_text(), flags=re.M)
    plain = opt("--verify-roundtrip", *options, source=source.encode())  # by bytecode
    assert plain.returncode == 0, plain.stderr.decode()
    again = opt(*options, source=plain.stdout)
    assert again.returncode == 0, again.stderr.decode()
    assert plain.stdout == again.stdout


def test_a_file_of_bytecode_is_its_text(opt, tmp_path):
    source, code = ROOT / "test/IR/ops.mlir", tmp_path / "code.mlirbc"
    assert opt(str(source), "--emit-bytecode", "-o", str(code)).returncode == 0
    plain, again = opt(str(source)), opt(str(code))
    assert again.returncode == 0, again.stderr.decode()
    assert plain.stdout == again.stdout
