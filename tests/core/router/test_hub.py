"""A router as a folder for the Hugging Face hub: the card is read by the hub's own library, the files serve."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from huggingface_hub import ModelCard

from cabs_core.errors import ProvenanceError
from cabs_core.router import Router, promote, read_manifest
from cabs_core.router.cli import export
from cabs_core.router.hub import write_hub_folder


def test_the_card_is_what_the_hub_reads(make_bundle, tmp_path) -> None:
    bundle = make_bundle("hier_mix")
    manifest = read_manifest(bundle)
    write_hub_folder(bundle, tmp_path / "hub")
    data = ModelCard.load(tmp_path / "hub" / "README.md").data
    assert data.library_name == "cabs-routing" and {"llm-routing", "hier_mix"} <= set(data.tags)
    (result,) = data.eval_results
    assert result.metric_value == pytest.approx(manifest.evidence["mean"], abs=1e-4)
    assert result.dataset_split == "validation" and result.metric_args["rho"] == 300.0
    text = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    assert (
        all(name in text for name in manifest.names)
        and "hf download" in text
        and "the words that occur" in text
    )


def test_it_decides_alike_and_keeps_no_prompt(make_bundle, tmp_path, test_prompts) -> None:
    bundle = make_bundle("ridge")
    write_hub_folder(bundle, tmp_path / "hub")
    write_hub_folder(bundle, tmp_path / "open", prompts=True)
    assert (tmp_path / "open" / "neighbours").is_dir() and not (tmp_path / "hub" / "neighbours").exists()
    decided = []
    for folder in (bundle, tmp_path / "hub"):
        router = Router.load(folder, seed=1)
        decided.append([router.route(text).probabilities for text in test_prompts[:20]])
        router.close()
    assert decided[0] == decided[1]


def test_what_the_hub_adds_is_no_damage(make_bundle, tmp_path) -> None:
    hub = tmp_path / "hub"
    made = write_hub_folder(make_bundle("ridge"), hub)
    (hub / ".gitattributes").write_text("*.npz filter=lfs\n")
    (hub / ".cache" / "huggingface").mkdir(parents=True)
    (hub / ".cache" / "huggingface" / "x.metadata").write_text("1")
    with open(hub / "README.md", "a", encoding="utf-8") as card:
        card.write("edited")
    assert read_manifest(hub).id == made.id
    promote(hub, tmp_path / "router")
    (hub / "policy" / "state.npz").write_bytes(b"other")
    with pytest.raises(ProvenanceError, match=r"state\.npz was altered"):
        read_manifest(hub)


@pytest.mark.slow
def test_of_models_and_prices_alone_there_is_no_result(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CABS_HOME", str(tmp_path / "home"))
    lines = (
        f"  {m}: {{url: 'http://127.0.0.1:9/v1', price: {{input: {p}, output: {p}}}}}\n"
        for m, p in (("a", 1), ("b", 9))
    )
    (tmp_path / "upstreams.yaml").write_text("models:\n" + "".join(lines))
    words = f"mine --cold --models {tmp_path}/upstreams.yaml --encoder tfidf-svd --hub".split()
    done = CliRunner().invoke(export, [*words, "--out", str(tmp_path / "hub")])
    assert done.exit_code == 0, done.output
    assert f"hf upload OWNER/NAME {tmp_path / 'hub'} ." in done.output
    data = ModelCard.load(tmp_path / "hub" / "README.md").data
    assert data.eval_results is None and data.model_name is None
    again = CliRunner().invoke(export, [*words, "--out", str(tmp_path / "hub")])
    assert again.exit_code == 0, again.output
    assert not (tmp_path / "hub.previous").exists()  # the same router again
    bucket = CliRunner().invoke(export, [*words, "--out", "s3://bucket/x"])
    assert bucket.exit_code == 2 and "--hub writes a folder" in bucket.output


def test_a_transformer_names_its_model(tmp_path, bert_pool, bert_artifacts) -> None:
    from cabs_core.router import build_bundle
    from cabs_core.router.hub import metadata

    build_bundle(tmp_path / "r", bert_pool, bert_artifacts, policy="ridge", rho=300.0)
    write_hub_folder(tmp_path / "r", tmp_path / "hub")
    assert ModelCard.load(tmp_path / "hub" / "README.md").data.base_model is None  # a local folder
    manifest = vars(read_manifest(tmp_path / "hub")) | {"encoder": {"name": "all-MiniLM-L6-v2"}}
    assert metadata(manifest).base_model == "sentence-transformers/all-MiniLM-L6-v2"
    shutil.rmtree(Path(tmp_path / "hub"))
