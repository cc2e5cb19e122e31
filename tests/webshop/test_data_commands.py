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
