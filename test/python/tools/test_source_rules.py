"""The rules of CONTRIBUTING.md that a script can check."""
import ast
import io
import pathlib
import re
import shutil
import subprocess
import sys
import tokenize

import pytest


def tracked(root, *patterns):
    return subprocess.run(["git", "ls-files", *patterns], cwd=root, capture_output=True, text=True, check=True).stdout.split()


def test_layers_use_only_layers_above(root):
    done = subprocess.run([sys.executable, "scripts/check_includes.py"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_breach_is_seen(root, tmp_path):
    (tmp_path / "lib/IR").mkdir(parents=True)
    (tmp_path / "include/DiffAttn").mkdir(parents=True)
    (tmp_path / "lib/IR/Bad.cpp").write_text('#include "DiffAttn/Pipelines/AttentionPipeline.h"\n')
    (tmp_path / "lib/Runtime/Support").mkdir(parents=True)
    (tmp_path / "lib/Runtime/Support/Bad.cpp").write_text("using namespace mlir::diffattn;\nnamespace mlir {}\n")
    (tmp_path / "lib/Schedule").mkdir()
    (tmp_path / "lib/Schedule/Bad.cpp").write_text('#include "DiffAttn/Model/Passes.h"\n#include "DiffAttn/Testing/Reference/Attention.h"\n')
    (tmp_path / "lib/Model/Loops").mkdir(parents=True)
    (tmp_path / "lib/Model/Loops/Bad.cpp").write_text('#include "../../Codegen/CPU/KernelBuilder.h"\n#include "../Math/FloatBuilder.h"\n')
    (tmp_path / "lib/Conversion").mkdir()
    (tmp_path / "lib/Conversion/Bad.cpp").write_text('auto f = lookup("diffattn_rt_alloc");\n')
    done = subprocess.run([sys.executable, "scripts/check_includes.py", tmp_path], cwd=root, capture_output=True, text=True)
    assert done.returncode == 1
    assert "lib/IR/Bad.cpp:1: IR may not use Pipelines" in done.stdout
    assert "lib/Schedule/Bad.cpp:1: Schedule may not use Model" in done.stdout
    assert "lib/Schedule/Bad.cpp:2: Schedule may not use Testing/Reference" in done.stdout
    assert "lib/Model/Loops/Bad.cpp:1: expected a public header of the core" in done.stdout
    assert "lib/Model/Loops/Bad.cpp:2" not in done.stdout
    assert "lib/Conversion/Bad.cpp:1: expected the names of the runtime in Runtime/ABI alone" in done.stdout
    for line in (1, 2):
        assert f"lib/Runtime/Support/Bad.cpp:{line}: expected the namespace diffattn_rt in the runtime, but got mlir" in done.stdout


def test_cpp_is_formatted(root):
    tool = shutil.which("clang-format-22") or shutil.which("clang-format")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout if tool else ""
    if not re.search(r"version 22\.", version):
        pytest.fail("expected clang-format 22 (Debian: clang-format-22), but found " + (version.strip() or "none"))
    files = tracked(root, "*.cpp", "*.h")
    done = subprocess.run([tool, "--dry-run", "--Werror", *files], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def unread_lists(root, names):
    """The files CMakeLists.txt that no list above them adds."""
    def adds(folder):
        parents = [(root / above / "CMakeLists.txt", folder.relative_to(above)) for above in folder.parents if (root / above / "CMakeLists.txt").exists()]
        return any(re.search(rf"\b{part}\b", path.read_text()) for path, part in parents)

    return [name for name in names if name != "CMakeLists.txt" and not adds(pathlib.Path(name).parent)]


def test_workarounds_are_there(root):
    """The first column of the table names modules of python/diffattn/torch and their functions."""
    folder = root / "python/diffattn/torch"
    rows = re.findall(r"^\| (`[^|]*) \|", (folder / "WORKAROUNDS.md").read_text(), re.M)
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(names) > 35
    for module, _, function in (name.partition(".") for name in names):
        assert f"def {function}(" in (folder / f"{module}.py").read_text() or not function, f"{module}.{function}"


def test_every_cmake_list_is_read(root):
    assert unread_lists(root, tracked(root, "lib/**/CMakeLists.txt", "lib/CMakeLists.txt", "include/**/CMakeLists.txt", "tools/**/CMakeLists.txt",
                                      "unittests/CMakeLists.txt", "test/CMakeLists.txt")) == []


def test_a_cmake_list_that_is_left_behind_is_seen(tmp_path):
    (tmp_path / "lib/IR").mkdir(parents=True)
    (tmp_path / "lib/Old").mkdir()
    for name, text in [("", "add_subdirectory(lib)"), ("lib", "add_subdirectory(IR)"), ("lib/IR", ""), ("lib/Old", "")]:
        (tmp_path / name / "CMakeLists.txt").write_text(text)
    assert unread_lists(tmp_path, ["CMakeLists.txt", "lib/CMakeLists.txt", "lib/IR/CMakeLists.txt", "lib/Old/CMakeLists.txt"]) == ["lib/Old/CMakeLists.txt"]


BANNER = re.compile(r"(//|/\*)===- \S+ - \S.* -*(-\*- (C|C\+\+|tablegen) -\*)?-===//")


def test_banners_are_one_line(root):
    """Banners have at most 80 columns: clang-format breaks a longer one into two, with what it likes in the second."""
    first = {name: (root / name).read_text().partition("\n")[0] for name in tracked(root, "*.cpp", "*.h", "*.td") if not name.startswith("cmake/")}
    assert len(first) > 500
    broken = {name: line for name, line in first.items() if len(line) > 80 or not BANNER.fullmatch(line)}
    assert not broken


@pytest.mark.parametrize("line, good", [
    ("//===- Name.h - what it is -------------------------------------*- C++ -*-===//", True),
    ("//===- Name.cpp - what it is -------------------------------------------===//", True),
    ("/*===- Name.h - what it is ---------------------------------------*- C -*-===//", True),
    ("//===- Name.h - what it is -*- C++ -*-==//", False), ("//===- Name.h - what it is ----------*- C++", False),
    ("//===- Name.cpp - what it is --- ===//", False), ("//===- Name.cpp ---===//", False)])
def test_banners_that_are_broken_are_found(line, good):
    assert bool(BANNER.fullmatch(line)) == good


@pytest.mark.parametrize("limit, pattern", [(700, "*.cpp"), (700, "*.h"), (700, "*.td"), (700, "*.py")])
def test_files_stay_small(root, limit, pattern):
    long = {name: lines for name in tracked(root, pattern) if (lines := sum(1 for _ in open(root / name))) > limit}
    assert not long


def test_docs_are_wrapped(root):
    """At 100 columns, but for what cannot be: code, tables, headings, and one long word."""
    long = []
    for name in tracked(root, "*.md"):
        fenced = False
        for number, line in enumerate((root / name).read_text().splitlines(), 1):
            fence = line.lstrip().startswith("```")
            fenced ^= fence
            prose = not (fence or fenced or line.lstrip().startswith(("|", "#", "<")) or line.startswith("    "))
            words = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "x", line).split()
            if prose and len(line) > 100 and len(words) > 2:
                long.append(f"{name}:{number}")
    assert not long


def flags_of_passes(root):
    flags = set()
    for name in tracked(root, "include/*/Passes.td"):
        flags.update(re.findall(r'Pass<\s*"([a-z0-9-]+)"', (root / name).read_text()))
    assert len(flags) > 40
    return flags


def test_each_pass_has_its_place(root):
    """The page on architecture says of every pass to which plugin and folder it belongs."""
    text = (root / "docs/architecture.md").read_text()
    assert not [flag for flag in flags_of_passes(root) if f"`{flag}`" not in text]


def test_tests_are_named_after_flags(root):
    """`<flag>.mlir`, or `<flag>-<what>.mlir` beside it: a reader finds a pass by its name."""
    flags = flags_of_passes(root) | {"diffattn-attention-pipeline", "diffattn-cpu-pipeline", "diffattn-cuda-pipeline"}
    files = [pathlib.PurePath(name) for layer in ("Codegen", "Conversion", "Model", "Pipelines", "Schedule", "Transforms")
             for name in tracked(root, f"test/{layer}/*.mlir")]
    assert not flags - {file.stem for file in files}, "flags without a test of their name"
    for file in files:
        mine = [flag for flag in flags if file.stem == flag or file.stem.startswith(flag + "-")]
        assert mine and max(mine, key=len) in (root / file).read_text(), f"expected {file} to be named after a flag that it tests"


def test_libraries_read_no_environment_and_own_no_options(root):
    """cl::opt belongs to tools/, and a library's behaviour is in its options struct."""
    hits = []
    for name in tracked(root, "lib/*.cpp", "lib/*.h", "include/*.h"):
        for number, line in enumerate(open(root / name), 1):
            if re.search(r"\bcl::opt\b|\bgetenv\s*\(", line):
                hits.append(f"{name}:{number}: {line.strip()}")
    assert not hits


#: Reads of an object of CPython as memory: its layout is CPython's own, and another one in each build of it.
LAYOUT = re.compile(r"(from_address|string_at|cast|memmove)\(\s*id\(|\bid\([^()]*\)\s*[+-]|[+-]\s*id\(|__(basic|item|dictoff|weakrefoff)(size|set)__|\bPyObject_HEAD\b"
                    r"|\bPyGetSet|\bob_(type|refcnt|item)\b")


def test_python_reads_no_layout_of_cpython(root):
    hits = [f"{name}:{number}: {line.strip()}" for name in tracked(root, "python/*.py")
            for number, line in enumerate((root / name).read_text().splitlines(), 1) if LAYOUT.search(line)]
    assert not hits


@pytest.mark.parametrize("line, breach", [
    ("found = _Descriptor.from_address(id(base.__dict__[name]))", True), ("items = id(values) + readers.items", True),
    ("at = tuple.__basicsize__", True), ("data = ctypes.string_at(id(values) + at, 16)", True), ("word = read(8 + id(one))", True),
    ("names = {id(tensor): name for name, tensor in named}", False), ("key = tuple(map(id, tensors))", False),
    ("memory = kind.from_address(result.data)", False), ("f = sigmoid(x) + y", False), ("view = memoryview(held)[grid(n) - 1]", False)])
def test_a_layout_of_cpython_is_seen(line, breach):
    assert bool(LAYOUT.search(line)) == breach


#: Openings of comments that do not name the thing described; after a mark of a comment, in texts too.
OPENING = re.compile(r"\W*(What|Of|The same|Those)\b")
MARKED_OPENING = re.compile(r'(//|/\*|#|"""|\'\'\')' + OPENING.pattern)
#: Comments, texts and characters of C, C++ and TableGen, in this order.
PIECES = re.compile(r'(//[^\n]*|/\*.*?\*/)|R"(\w*)\(.*?\)\2"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\'', re.S)
#: Names that are verbs, or pictures, where a noun of the field says more.
NAME = re.compile(r"\b(said|told|sight|(say|said|tell|told|why)[A-Z]\w*)\b")
PYTHON_NAME = re.compile(r"_?(found|said|told|sight)")


def comments(name, text):
    """Line number, whether it stands alone on its line, and text of each comment and docstring of a file."""
    if name.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (docstring := ast.get_docstring(node)):
                yield node.body[0].lineno, False, docstring
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.line.lstrip().startswith("#"), token.string
    elif name.endswith((".sh", ".cmake", "CMakeLists.txt")):
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("#"):
                yield number, True, line
    else:
        for match in PIECES.finditer(text):
            if match[1]:
                begin = text.rfind("\n", 0, match.start()) + 1
                yield text.count("\n", 0, begin) + 1, not text[begin : match.start()].strip(), match[1]


def find_bad_words(name, text):
    """Faults of a file, by line: comments with an opening that names nothing, and names that are verbs."""
    last = -1
    for number, is_whole_line, comment in comments(name, text) if MARKED_OPENING.search(text) else ():
        if not (is_whole_line and number == last + 1) and (match := OPENING.match(comment)):
            yield f"{name}:{number}: expected a comment that begins with the thing described, but got {match[1]!r}"
        last = number if is_whole_line else -1
    names = []
    if name.endswith(".py") and PYTHON_NAME.search(text):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        names = [(token.start[0], token.string) for token in tokens if token.type == tokenize.NAME and PYTHON_NAME.fullmatch(token.string)]
    elif name.endswith((".h", ".cpp")) and NAME.search(text):
        code = PIECES.sub(lambda match: "\n" * match[0].count("\n"), text)
        names = [(code.count("\n", 0, match.start()) + 1, match[0]) for match in NAME.finditer(code)]
    for number, word in dict.fromkeys(names):
        yield f"{name}:{number}: expected a noun as a name, but got {word}"


def test_comments_name_their_subject_and_names_are_nouns(root):
    files = tracked(root, "*.h", "*.cpp", "*.def", "*.inc", "*.td", "*.c", "*.py", "*.sh", "*.cmake", "*CMakeLists.txt")
    assert len(files) > 1000
    assert not [fault for name in files for fault in find_bad_words(name, (root / name).read_text())]


@pytest.mark.parametrize("name, text, lines", [
    ("a.h", "/// Number of keys.\nint keys; ///< Of them.\n", [2]),
    ("a.cpp", "int x;\n  // What a row is,\n  // The same again.\n\n  // Those.\n", [2, 5]),
    ("a.cpp", "/* Of a block */ int y; // of it: no sentence\n", [1]),
    ("a.c", "/* Keys.\n * Of a row. */\n", []),
    ("a.cpp", 'auto url = "https://a // Of"; auto raw = R"(\n// What\n)";\n', []),
    ("a.td", "// Those of rows.\nlet summary = \"What it is\";\n", [1]),
    ("a.py", '"""What it is."""\n\ndef f():\n    """Of rows."""\n    return 1  # The same\n', [1, 4, 5]),
    ("a.py", '#: Rows,\n#: Of which some are empty.\nROWS = """\n# What\n"""\n', []),
    ("a.sh", "# What it needs\n# Of it\necho '# Of'\n", [1]),
    ("CMakeLists.txt", "  # Those that are built\n", [1]),
    ("a.cpp", 'int told = 0;\nsayChoice("said"); // what was said\nauto whyNoKernel = [] {};\n', [1, 2, 3]),
    ("a.cpp", "int tellers = saidst; os.tell(); bool whyte;\n", []),
    ("a.py", "found, unfound = 1, 2\ndef f(x, _told): return x.sight\n", [1, 2, 2]),
    ("a.py", "message = f'{1} said'  # found\n", []),
])
def test_bad_words_are_seen(name, text, lines):
    assert sorted(int(fault.split(":")[1]) for fault in find_bad_words(name, text)) == lines


def members_of_passes(text):
    """The fields that classes derived from a pass declare: each statement of their bodies that is no function, alias or macro."""
    for match in re.finditer(r"\b(?:struct|class) (\w+)[^;{}]*\b(?:\w+PassBase|PassWrapper)<[^;{}]*\{", text):
        body, depth, position = [], 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 1:
                body.append(";" if text[position] == "}" else text[position])
            position += 1
        for statement in re.sub(r"//.*|\b(?:public|private|protected):", "", "".join(body)).split(";"):
            statement = " ".join(statement.split())
            plain = statement
            while plain != (plain := re.sub(r"<[^<>]*>", "", plain)):
                pass
            if plain and "(" not in plain.split("=")[0] and not re.match(r"(using|static const\w*|Option|ListOption) ", plain):
                yield f"{match[1]}: {statement}"


def test_passes_keep_nothing_between_runs(root):
    """One pass visits many modules in turns or, as a clone with copies of its fields, in threads: what belongs to a run is local to it."""
    hits = [f"{name}: {member}" for name in tracked(root, "lib/*.cpp", "lib/*.h") for member in members_of_passes((root / name).read_text())]
    assert not hits


@pytest.mark.parametrize("member, breach", [
    ("llvm::StringMap<int64_t> numbers;", True),
    ("private:\n  /// A comment (with words).\n  int64_t counter = 0;", True),
    ("std::function<std::vector<int>()> told = nothing();", True),
    ("int64_t counter{0};", True),
    ("static int64_t counter;", True),
    ("using BadPassBase::BadPassBase;", False),
    ("LogicalResult convert(Op op, size_t number = 0) { int64_t local = 1; return success(); }", False),
    ("static constexpr auto kNames = getNames();", False),
])
def test_a_field_of_a_pass_is_seen(member, breach):
    text = f"""struct Bad final
    : diffattn::impl::BadPassBase<Bad> {{
  void runOnOperation() override {{ if (true) {{ int n; }} }}
  {member}
}};
"""
    assert bool(list(members_of_passes(text))) == breach


def test_nothing_depends_on_the_order_of_addresses(root):
    """Sets and maps of pointers are visited in another order in every process."""
    done = subprocess.run([sys.executable, "scripts/check_address_order.py"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("line, breach", [
    ("for (Operation *op : dying) erase(op);", True),
    ("SmallVector<Operation *> order(dying.begin(), dying.end());", True),
    ("for (auto &[value, role] : roles) print(role);", True),
    ("for (int64_t size : sizes) add(size);", False),
    ("for (Operation *op : ordered) erase(op);", False),
    ("if (dying.contains(op)) erase(op);", False),
    ("for (Operation *op : dying) ++count; // any order: it counts", False),
])
def test_an_order_of_addresses_is_seen(line, breach, root, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/Bad.cpp").write_text(
        "static void f(const llvm::SmallPtrSetImpl<Operation *> &dying, llvm::DenseMap<Value, Role> roles,\n"
        "              llvm::DenseSet<int64_t> sizes, llvm::SetVector<Operation *> ordered) {\n"
        f"  {line}\n}}\n")
    done = subprocess.run([sys.executable, "scripts/check_address_order.py", tmp_path], cwd=root, capture_output=True, text=True)
    assert done.returncode == breach, done.stdout
    assert ("lib/Bad.cpp:3" in done.stdout) == breach
