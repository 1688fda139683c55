"""Attention maps: made again from what the fused attention used, told in figures, and drawn."""
import base64
import functools
import io
import json
import math
import re
import zlib

import browser
import numpy as np
import pytest
from attention_reference import softmax_map, visible_keys
from checkpoints import assert_near
from paths import ROOT

from diffattn import cli, maps
from diffattn.errors import InputError, RunError, UsageError
from diffattn.maps.attention import Attention
from diffattn.maps.figures import edges, pooled
from diffattn.maps.page import MOST_CELLS

TINY_LM = ROOT / "examples" / "tiny-lm"
TEXT = "And Boaz said unto her, </script> At mealtime come thou hither, and eat."
FACTORS = (0.0, 0.5, 1.0, 1.5)


@functools.lru_cache
def tiny(dtype="bf16"):
    return maps.inspect(TINY_LM, TEXT, factors=FACTORS, dtype=dtype)


def random_attention(heads=4, noise=2, length=70, **changes):
    rng = np.random.default_rng(2)
    q1, q2, k1, k2, v = (rng.normal(0, 1.5, shape).astype(np.float32)
                         for shape in ((heads, length, 8), (noise, length, 8), (noise, length, 8), (1, length, 8), (2, length, 6)))
    return Attention(q1, k1, q2, k2, v, rng.normal(0.5, 0.3, (heads, length)).astype(np.float32), 0.4, 0, **changes)


def dense(attention, head):
    """A1, A2 and D in double precision, by the formulas of docs/spec.md."""
    noise, length = head // (attention.heads // attention.q2.shape[0]), attention.queries
    seen = visible_keys(length, length, attention.causal, None if attention.window is None else (attention.window, -1), None, None)
    bias = 0 if attention.mask is None else attention.mask[noise % attention.mask.shape[0]]

    def weights(q, k, head):
        return softmax_map(q[head].astype(float), k[head // (q.shape[0] // k.shape[0])].astype(float), attention.scale, None, bias, seen)[0]

    a1, a2 = weights(attention.q1, attention.k1, head), weights(attention.q2, attention.k2, noise)
    return a1, a2, a1 - attention.lam_of(head)[:, None] * a2


HIDES = np.where(np.random.default_rng(3).random((2, 70, 70)) < 0.3, -np.inf, 0).astype(np.float32)
HIDES[1, 5] = -np.inf


@pytest.mark.parametrize("changes", [{}, {"causal": False}, {"window": 9}, {"causal": False, "mask": HIDES}], ids=["causal", "all", "window", "mask"])
def test_tiles_and_figures(changes):
    attention = random_attention(**changes)
    summary = maps.summarize(attention)
    for head in range(attention.heads):
        a1, a2, d = dense(attention, head)
        for got, expected in zip(attention.rows(head, 0, 70), (a1, a2)):
            np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)
        np.testing.assert_allclose(attention.rows(head, 33, 51)[0], a1[33:51], rtol=0, atol=2e-6)
        size = np.abs(d)
        share = size / np.maximum(size.sum(-1, keepdims=True), 1e-30)

        def entropy(weights):
            return -(weights * np.log2(np.maximum(weights, 1e-300))).sum(-1)

        lam = attention.lam_of(head)[:, None]
        expected = {"lambda": lam, "entropy1": entropy(a1), "entropy2": entropy(a2), "entropy": entropy(share), "first1": a1[:, 0],
                    "first": share[:, 0], "negative": np.maximum(-d, 0).sum(-1), "cancelled": np.maximum(np.minimum(a1, lam * a2), 0).sum(-1)}
        assert expected.keys() == maps.FIGURES.keys()
        for name, rows in expected.items():
            assert summary.figures[name][head] == pytest.approx(rows.mean(), abs=2e-5), name
        at = edges(70)
        np.testing.assert_allclose(summary.pictures[head], pooled(d, at, at), rtol=0, atol=2e-6)
    assert summary.errors is None and summary.pictures.shape == (4, 64, 64)
    if "mask" in changes:  # a query that sees no key
        assert not attention.rows(2, 5, 6)[0].any()


def test_figures_of_a_map_that_cancels():
    """Equal maps: A1 - A2/2 is half of A1, nothing is negative, and half of map 1 is taken away."""
    attention = random_attention(heads=1, noise=1)
    attention.k2, attention.q2, attention.v = attention.k1, attention.q1, attention.v[:1]
    attention.lam = np.full((1,), 0.5, np.float32)
    figures = maps.summarize(attention).figures
    assert figures["negative"][0] == pytest.approx(0, abs=1e-6) and figures["cancelled"][0] == pytest.approx(0.5, abs=1e-6)
    assert figures["first"][0] == pytest.approx(figures["first1"][0], abs=1e-6)
    attention.lam = np.full((1,), 2, np.float32)  # all of map 1 is taken away, and as much again
    figures = maps.summarize(attention).figures
    assert figures["negative"][0] == pytest.approx(1, abs=1e-6) and figures["cancelled"][0] == pytest.approx(1, abs=1e-6)


def test_maps_that_are_not_the_models_are_found():
    attention = random_attention(out=np.zeros((4, 70, 6), np.float32))
    for head in range(4):
        attention.out[head] = dense(attention, head)[2] @ attention.values(head)
    collection = maps.Maps("a model", [str(i) for i in range(70)], [attention])
    collection.check()
    assert collection.largest_error < 1e-5 < collection.limit == 5e-5
    attention.lam = attention.lam.copy()
    attention.lam[2, 40] += 0.01
    collection = maps.Maps("a model", collection.tokens, [attention])
    with pytest.raises(RunError, match="layer 0, head 2: expected maps that give the model's own attention within 5e-05 of what is added up, but got 0.0"):
        collection.check()


@pytest.mark.oracle
def test_equal_eager_diffllama(tmp_path):
    import test_diffllama
    import torch

    oracle = test_diffllama.random_model(tmp_path, num_attention_heads=8, num_key_value_heads=4)
    oracle.set_attn_implementation("eager")
    ids = np.random.default_rng(0).integers(0, 96, 40)
    collection = maps.inspect(tmp_path, ids.tolist(), factors=(1,))
    assert collection.largest_error < 2e-5 and collection.tokens[3] == f"<{ids[3]}>" and collection.characters is None
    with torch.no_grad():
        out = oracle(torch.tensor(ids)[None], output_attentions=True)
    for layer in range(2):
        weights = out.attentions[layer][0].numpy()  # map 1 of all heads, then map 2
        module = oracle.model.layers[layer].self_attn
        with torch.no_grad():
            lam = float(torch.exp(module.lambda_q1 @ module.lambda_k1) - torch.exp(module.lambda_q2 @ module.lambda_k2)) + module.lambda_init
        for head in range(4):
            a1, a2 = collection.maps(layer, head)
            assert np.abs(a1 - weights[head]).max() < 1e-5 and np.abs(a2 - weights[4 + head]).max() < 1e-5
            assert np.abs(collection.difference(layer, head) - (weights[head] - lam * weights[4 + head])).max() < 1e-5
    log_p = torch.log_softmax(out.logits[0].double(), -1).numpy()
    assert_near(collection.runs[0].next_log_p, log_p[-1], 1e-5)
    assert_near(collection.runs[0].bits, -log_p[np.arange(39), ids[1:]] / math.log(2), 1e-5)


def test_a_trained_model():
    """Runs differ by their factor; one with factor 1 is what `eval` has, and figures are those of its maps."""
    collection = tiny("f32")
    assert collection.tokens[0] == "<|bos|>" and "".join(collection.tokens[1:]) == TEXT
    assert collection.characters == len(TEXT) and len(collection.runs[0].bits) == len(collection.tokens) - 1
    assert [run.factor for run in collection.runs] == list(FACTORS)
    assert len({round(collection.bits_per_unit(run), 3) for run in collection.runs}) == 4
    assert collection.layers == [0, 1, 2, 3] and collection.figures("negative").shape == (4, 4)
    assert collection.most_negative(1)[0] == tuple(np.unravel_index(collection.figures("negative").argmax(), (4, 4)))
    d = collection.difference(2, 1)
    assert collection.figures("negative")[2, 1] == pytest.approx(np.maximum(-d, 0).sum(-1).mean(), abs=1e-5)


def test_files_for_other_programs(tmp_path):
    from PIL import Image

    collection, heads = tiny(), [(0, 1), (3, 2)]
    arrays = np.load(io.BytesIO(maps.npz(collection, heads)))
    assert arrays["heads"].tolist() == [[0, 1], [3, 2]] and arrays["tokens"].tolist() == collection.tokens
    for at, head in enumerate(heads):
        np.testing.assert_array_equal(arrays["difference"][at], collection.difference(*head))
        np.testing.assert_array_equal(arrays["a1"][at] - arrays["lambda"][at][:, None] * arrays["a2"][at], arrays["difference"][at])
    assert arrays["factors"].tolist() == list(FACTORS) and arrays["bits"].shape == (4, len(collection.tokens) - 1)
    assert arrays["next_log_p"].shape == (4, 2048) and arrays["error"] <= arrays["limit"]
    np.testing.assert_array_equal(arrays["negative_2"], collection.figures("negative")[2])
    drawn = np.asarray(Image.open(io.BytesIO(maps.png(collection, heads))).convert("RGB"))
    # Purple, brown and the middle are all there.
    for colour in ((247, 247, 247), (127, 59, 8)):
        assert (np.abs(drawn.astype(int) - colour).sum(-1) < 12).any(), colour
    for part, of in (("a1", lambda a1, d: a1), ("difference", lambda a1, d: d), ("negative", lambda a1, d: np.maximum(-d, 0)),
                     ("positive", lambda a1, d: np.maximum(d, 0))):
        attention, tokens = maps.bertviz(collection, part)
        assert tokens == collection.tokens and [tuple(layer.shape) for layer in attention] == [(1, 4, len(tokens), len(tokens))] * 4
        np.testing.assert_array_equal(attention[3][0, 2].numpy(), of(collection.maps(3, 2)[0], collection.difference(3, 2)))


# ---- the report -----------------------------------------------------------------------------------------------------------

STOPS = np.array([[45, 0, 75], [128, 115, 172], [247, 247, 247], [224, 130, 20], [127, 59, 8]], float)


def colour(value, most):
    """The colour by which a report shows a value."""
    root = np.sign(value) * np.sqrt(min(1, abs(value) / most))
    at = (round((root + 1) * 128) / 128) * 2
    low = min(3, int(at))
    return STOPS[low] + (STOPS[low + 1] - STOPS[low]) * (at - low)


def numbers(text):
    return [float(number.replace("−", "-")) for number in re.findall(r"(?<![\w“])[-−]?\d+\.\d+", text)]


def test_report_holds_the_maps():
    """A report, read without a browser, holds the data that its script draws; and it names nothing to load."""
    collection, heads = tiny(), [(2, 0), (0, 3)]
    text, count = b"".join(maps.page(collection, heads)).decode(), len(tiny().tokens)
    assert re.findall(r"https?://[^\"' ]*", text) == ["http://www.w3.org/2000/svg"]  # a name
    assert not re.search(r"(?:src|href)\s*=|@import|url\(", text) and "default-src 'none'" in text
    parts = dict(re.findall(r'<script id="([\w-]+)" type="[^"]+">(.*?)</script>', text, re.S))
    data = json.loads(parts["data"])
    assert list(parts) == ["data", "pictures", "map-0", "map-1"] and data["tokens"] == collection.tokens and data["check"] == maps.check_text(collection)
    assert [run["factor"] for run in data["runs"]] == list(FACTORS)
    for run, own in zip(data["runs"], collection.runs):
        np.testing.assert_allclose(run["bits"], own.bits, atol=6e-4)
        assert run["per_unit"] == pytest.approx(collection.bits_per_unit(own), abs=1e-6)
        np.testing.assert_allclose(run["next"], np.exp(own.next_log_p[collection.likeliest()]), atol=1e-6)
    assert data["next"] == [collection.text_of(token) for token in collection.likeliest()]
    for number, head in enumerate(heads):
        planes = np.frombuffer(zlib.decompress(base64.b64decode(parts[f"map-{number}"])), "<u2").reshape(3, count, count)
        drawn = [planes[0] / 65535, planes[1] / 65535, planes[2].view("<i2") / 32767 * data["maps"][number]["most"]]
        # The sums of a model of bf16 are a little off, so a weight may be a little above 1.
        for got, expected in zip(drawn, (*(np.minimum(part, 1) for part in collection.maps(*head)), collection.difference(*head))):
            np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)
    pictures = np.frombuffer(zlib.decompress(base64.b64decode(parts["pictures"])), np.int8).reshape(4, 4, *data["picture"]) / 127
    for layer, summary in zip(data["layers"], collection.summaries):
        shown = np.sign(pictures[layer["layer"]]) * pictures[layer["layer"]] ** 2 * np.array(layer["most"])[:, None, None]
        np.testing.assert_allclose(shown, summary.pictures, rtol=0, atol=0.01 * max(layer["most"]))
        for name, values in layer["figures"].items():
            np.testing.assert_allclose(values, summary.figures[name], atol=1e-6)


@pytest.fixture
def chromium(tmp_path):
    if browser.PATH is None:
        pytest.skip("no chromium is installed (Debian: chromium)")
    with browser.Browser(tmp_path / "profile") as opened:
        yield opened
        assert opened.errors == []
        assert [address for address in opened.requests if not address.startswith("file://")] == []


def test_report_in_a_browser(tmp_path, chromium):
    collection, heads = tiny(), [(2, 0), (0, 3)]
    path = tmp_path / "report.html"
    path.write_bytes(b"".join(maps.page(collection, heads)))
    chromium.open(path)
    count, page = len(collection.tokens), chromium
    assert page.text("#title") == "Attention maps of tiny-lm" and page.text("#check") == maps.check_text(collection)
    assert page.text("#head") == "Layer 2, head 0"
    # The text while hovering agrees with the maps.
    for row, column in ((20, 3), (count - 1, 8), (5, 5)):
        page.point("#panels .map:nth-of-type(1)", (column + 0.5) / count, (row + 0.5) / count)
        hover, (a1, a2) = page.text("#said"), collection.maps(2, 0)
        assert hover.startswith(f"query {row} “{collection.tokens[row]}” → key {column} “{collection.tokens[column]}”: A1 "), hover
        expected = [a1[row, column], a2[row, column], collection.attention(2).lam_of(0)[row], collection.difference(2, 0)[row, column]]
        np.testing.assert_allclose(numbers(hover.split("”: ")[1]), expected, rtol=0, atol=1e-4)
    page.press("#panels", "ArrowRight")
    assert f"key 6 “{collection.tokens[6]}”" in page.text("#said")
    # Pixels of the three maps have one scale; a key that is not seen has the middle's colour.
    parts = [*collection.maps(2, 0), collection.difference(2, 0)]
    most = max(np.abs(part).max() for part in parts)
    assert (parts[2] < -0.05).any()
    for panel, part in enumerate(parts):
        for row, column in ((20, 3), (count - 1, 8), (0, 0), (3, 9), np.unravel_index(parts[2].argmin(), parts[2].shape)):
            got = page.pixel(f"#panels figure:nth-of-type({panel + 1}) canvas", column, row)
            assert np.abs(np.array(got) - colour(part[row, column], most)).max() <= 4, (panel, row, column, got)
    assert page.pixel("#panels figure:nth-of-type(1) canvas", 9, 3) == [247, 247, 247]
    # The overview: pictures and figures of all heads, by mouse and keys.
    page.point("#overview canvas", 3.5 / 4, 0.5 / 4, click=True)
    page.wait("document.querySelector('#head').textContent === 'Layer 0, head 3'")
    assert page.text("#pointed").startswith("layer 0, head 3: ")
    np.testing.assert_allclose(numbers(page.text("#pointed")), [collection.figures(name)[0, 3] for name in maps.FIGURES], atol=6e-4)
    picture, all_of = collection.summaries[2].pictures[1], max(np.abs(summary.pictures).max() for summary in collection.summaries)
    side = picture.shape[0] + 2
    for row, column in ((10, 4), (11, 2), (2, 9)):
        got = page.pixel("#overview canvas", side + 1 + column, 2 * side + 1 + row)
        assert np.abs(np.array(got) - colour(picture[row, column], all_of)).max() <= 6
    for key in ("ArrowDown", "ArrowLeft", "Enter"):
        page.press("#overview", key)
    page.wait("document.querySelector('#head').textContent.startsWith('Layer 1, head 2: in this file as a small picture alone')")
    assert page.run("document.querySelector('#panels').offsetParent") is None  # not drawn
    page.run("(s => { s.value = '0'; s.dispatchEvent(new Event('change')); })(document.querySelector('#heads'))")
    page.wait("document.querySelector('#head').textContent === 'Layer 2, head 0'")
    # The slider: what the model said with each factor, and D of its maps.
    assert page.text("#chosen") == "1"
    for key, factor in (("ArrowLeft", 0.5), ("Home", 0.0), ("End", 1.5)):
        page.press("#factor", key)
        run = collection.runs[FACTORS.index(factor)]
        assert page.text("#chosen") == f"{factor:g}" and f"λ × {factor:g}: {collection.bits_per_unit(run):.4f} bits per character" == page.text("#bits")
        token = int(run.next_log_p.argmax())
        assert page.text("#next tr td").replace("↵", "\n") == f"“{collection.text_of(token)}”"
        assert float(page.text("#next tr td:nth-of-type(2)")) == pytest.approx(math.exp(run.next_log_p[token]), abs=1e-4)
        title = page.run("document.querySelector('#tokens').children[7].title")
        assert title == f"{run.bits[6]:.2f} bits"
        page.point("#panels .map:nth-of-type(1)", 3.5 / count, 20.5 / count)
        scaled = parts[0][20, 3] - factor * collection.attention(2).lam_of(0)[20] * parts[1][20, 3]
        assert numbers(page.text("#said"))[-1] == pytest.approx(scaled, abs=1e-4)
    assert page.run("document.querySelectorAll('#chart circle').length") == 4


def test_report_of_one_token(tmp_path, chromium):
    """No token is predicted, and nothing divides by their number."""
    collection = maps.inspect(TINY_LM, [7], factors=(0, 1))
    assert collection.characters == 0 and collection.bits_per_unit(collection.runs[0]) is None
    path = tmp_path / "report.html"
    path.write_bytes(b"".join(maps.page(collection)))
    chromium.open(path)
    assert chromium.text("#bits") == "A text of one token needs no bits." and "A1 1.0000, A2 1.0000" in chromium.text("#said")


def test_report_of_an_image_and_of_a_long_text(tmp_path, chromium):
    """Patches, of which a picture is shown; cells of several tokens where a text is longer than a map has cells."""
    attention = random_attention(causal=False)
    tokens = [f"patch {i}" for i in range(70)]
    tokens[31] = "</script><script>throw 'it ran'</script>\u2028"
    collection = maps.Maps("a <b>ViT</b>", tokens, [attention], grid=(8, 8), image=np.full((4, 4, 3), 200, np.uint8))
    path = tmp_path / "image.html"
    path.write_bytes(b"".join(maps.page(collection)))
    chromium.open(path)
    assert chromium.run("document.querySelector('#lambda').hidden") is True
    chromium.point("#picture", 2.5 / 8, 3.5 / 8)
    assert "query 32 “patch 32”" in chromium.text("#said")  # the 27th of the last 64 tokens
    chromium.point("#picture", 1.5 / 8, 3.5 / 8)
    assert f"query 31 “{tokens[31]}”" in chromium.text("#said") and chromium.text("#title") == "Attention maps of a <b>ViT</b>"
    assert chromium.pixel("#picture", 5, 5) != [200, 200, 200]
    length = MOST_CELLS + MOST_CELLS // 2
    attention = random_attention(heads=2, noise=1, length=length)
    collection = maps.Maps("a long text", [f"{i};" for i in range(length)], [attention])
    path.write_bytes(b"".join(maps.page(collection, [(0, 1)])))
    chromium.open(path)
    chromium.press("#panels", "ArrowDown")
    hover = chromium.text("#said")
    at = edges(length, MOST_CELLS)
    assert hover.startswith("queries 1–2 “1;2;” → key 0 “0;”: "), hover
    assert numbers(hover.split("”: ")[1])[0] == pytest.approx(pooled(collection.maps(0, 1)[0], at, at)[1, 0], abs=1e-4)


# ---- the command ----------------------------------------------------------------------------------------------------------

def test_command(tmp_path, capsys):
    (tmp_path / "prompt.txt").write_text(TEXT)
    out = [tmp_path / f"report.{kind}" for kind in ("html", "npz")]
    given = ["maps", str(TINY_LM), "--prompt-file", str(tmp_path / "prompt.txt"), "--layers", "1,3", "--heads", "3:0,1:2", "--lambda-scale", "0:1.5:0.5"]
    assert cli.main([*given, *(word for path in out for word in ("-o", str(path)))]) == 0
    errors = capsys.readouterr().err
    assert "Maps were compared with what the model used" in errors and f"wrote {out[0]}, {out[1]} for {len(tiny().tokens)} tokens" in errors
    arrays = np.load(out[1])
    assert arrays["factors"].tolist() == [0, 0.5, 1, 1.5] and arrays["heads"].tolist() == [[3, 0], [1, 2]] and arrays["layers"].tolist() == [1, 3]
    assert b"</script> At" not in out[0].read_bytes() and out[0].stat().st_size < 1 << 20


@pytest.mark.parametrize("given, message", [
    (["--prompt", "And"], "the following arguments are required: -o/--output"),
    (["--prompt", "And", "-o", "x.pdf"], "--output: expected a name that ends with .html, .npz or .png, but got 'x.pdf'"),
    (["-o", "x.html"], "expected one of --prompt, --prompt-file and --ids, but got none"),
    (["--prompt", "And", "--ids", "1,2", "-o", "x.html"], "expected one of --prompt, --prompt-file and --ids, but got --prompt and --ids"),
    (["--ids", "1,5000", "-o", "x.html"], "prompt: expected token ids below 2048, but got 5000"),
    (["--prompt", "And", "--layers", "1,9", "-o", "x.html"], "layers: expected an integer from 0 to 3, but got 9"),
    (["--prompt", "And", "--heads", "1-2", "-o", "x.html"], "expected layers and heads as 0:3,1:2, or all, but got '1-2'"),
    (["--prompt", "And", "--heads", "0:4", "-o", "x.html"], "heads: expected heads from 0 to 3 of layer 0, but got 4"),
    (["--prompt", "And", "--heads", "7:0", "-o", "x.html"], "layer: expected one of 0, 1, 2, 3, but got 7"),
    (["--prompt", "And", "--lambda-scale", "1:0:0.1", "-o", "x.html"], "expected A:B:STEP with A at most B and STEP above 0, but got '1:0:0.1'"),
    (["--prompt", "And", "--lambda-scale", "0:1:1e-9", "-o", "x.html"], "expected A:B:STEP or a list as 0,0.5,1, but got '0:1:1e-9'"),
    (["--prompt", "And", "--lambda-scale", "0:1:0.001", "-o", "x.html"], "expected at most 101 factors, but got '0:1:0.001'"),
    (["--prompt", "And", "--lambda-scale", "5000", "-o", "x.html"], "factors[0]: expected a number from -1000 to 1000, but got 5000.0"),
])
def test_wrong_commands(given, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(["maps", str(TINY_LM), *given])
    except SystemExit as stopped:
        code = stopped.code
    assert code and message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_wrong_arguments():
    collection = tiny()
    for call, message in ((lambda: collection.maps(1, 4), "head: expected an integer from 0 to 3, but got 4"),
                          (lambda: collection.maps(4, 0), "layer: expected one of 0, 1, 2, 3, but got 4"),
                          (lambda: collection.figures("size"), "name: expected 'lambda' or .*, but got 'size'"),
                          (lambda: maps.bertviz(collection, "all"), "part: expected 'a1' or .*, but got 'all'"),
                          (lambda: maps.inspect(TINY_LM, "And", layers=[]), "layers: expected layers with attention, 0, 1, 2, 3, but got None")):
        with pytest.raises(UsageError, match=message):
            call()
    with pytest.warns(UserWarning, match="257 tokens are more than the 256 that the model was made for"):
        maps.inspect(TINY_LM, [7] * 257, layers=[0])
    with pytest.raises(InputError, match="prompt: expected at least one token, but got none"):
        maps.inspect(TINY_LM, [])
