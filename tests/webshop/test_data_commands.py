"""The commands `hgpo data … webshop`."""


def test_synthesis_and_build(hgpo, tmp_path):
    code, out, _ = hgpo("data", "synth", "webshop", "--products", 200, "--seed", 3, "--out", tmp_path / "raw")
    assert code == 0
    following = out[out.index("hgpo data build") :].split()[1:]
    following[-1] = str(tmp_path / "shop")
    code, out, _ = hgpo(*following, "--nouns", "stand-in")
    assert code == 0
    assert f'gym.make("HGPO/WebShop-v0", data="{tmp_path / "shop"}")' in out
    code, out, _ = hgpo("data", "show", "webshop", tmp_path / "shop", "--verify")
    assert code == 0
    assert "stand-in 1" in out


def test_bad_input_is_one_line(hgpo, tmp_path):
    (tmp_path / "items.json").write_text('[{"asin": "B1"')
    (tmp_path / "other.json").write_text("{}")
    other = tmp_path / "other.json"
    files = "--items", tmp_path / "items.json", "--attributes", other, "--human", other
    code, out, err = hgpo("data", "build", "webshop", *files, "--out", tmp_path / "shop")
    assert (code, out) == (2, "")
    assert err.strip().splitlines()[-1].startswith("error: ")
    assert "record 0" in err
    assert not (tmp_path / "shop").exists()
    code, _, err = hgpo("data", "show", "webshop", tmp_path)
    assert code == 2
    assert "no WebShop catalogue in" in err
    code, _, err = hgpo("data", "fetch", "webshop", "--from", tmp_path, "--out", tmp_path / "got")
    assert code == 2
    assert "no items_shuffle_1000.json in" in err
