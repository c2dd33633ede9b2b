"""A bundle as a folder that the Hugging Face hub shows as it is: a card with its metadata, and the files of the router.

Nothing is uploaded here; `hf upload` does that, by its user. What comes back with `hf download` is a router like any other.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from cabs_core.catalog import encoder_record
from cabs_core.router.bundle import CARD, Manifest, read_manifest, writing
from cabs_core.router.card import model_card
from cabs_core.router.encoder import FOLDER as ENCODER
from cabs_core.router.encoder import VALUES

_USE = """\
## How to get it

```sh
hf download OWNER/NAME --local-dir router          # the name of this page
python -m venv serving
serving/bin/pip install --no-deps -r router/requirements.txt
serving/bin/cabs-router route "your prompt" --router router
```

What it holds of the prompts that it was trained on: {holds}
"""


def write_hub_folder(bundle: str | Path, target: str | Path, *, prompts: bool = False) -> Manifest:
    """Write a bundle into `target` (whole or not at all) with a card that the hub reads.

    The card is no part of what the router verifies, so it may be edited there, for instance to add a licence.

    Args:
        prompts: keep the train prompts that explain decisions. Who can read the repository can read them.

    Raises:
        ProvenanceError: `bundle` is none, or damaged. StorageError: `target` holds something else.
    """
    bundle, manifest = Path(bundle), read_manifest(bundle)
    settings = asdict(manifest)
    names = [n for n in manifest.files if n != CARD and (prompts or not n.startswith("neighbours/"))]
    with writing(target, settings, unlisted={CARD: hub_card(settings, names)}) as folder:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle / name, folder / name)
    return read_manifest(target)


def hub_card(manifest: dict[str, Any], files: list[str]) -> str:
    """The model card, with the metadata that the hub searches and shows, and what the files tell about prompts.

    Args:
        manifest: as in `router.json`. files: names of the files beside the card.
    """
    card = model_card(manifest)
    before, _, _ = card.partition("## Serving it")
    last_line = card.rstrip().rpartition("\n")[2]
    return f"---\n{metadata(manifest).to_yaml()}\n---\n\n{before}{_USE.format(holds=_holds(files))}\n{last_line}\n"


def metadata(manifest: dict[str, Any]) -> ModelCardData:
    """What stands before the card: library, tags, the encoder's model, and the result on validation where there is one."""
    evidence = manifest["evidence"]
    results = [
        EvalResult(
            task_type="text-classification", task_name="choice of a language model", dataset_name=f"pool {manifest['pool']}",
            dataset_type=re.sub(r"[^\w.-]", "-", manifest["pool"]), dataset_split="validation", metric_type="utility",
            metric_name=f"utility over always {manifest['fallback']}", metric_value=round(evidence["mean"], 4),
            metric_args={"rho": manifest["rho"], "standard_error": round(evidence["se"], 4)},
        )
    ] if evidence else None  # fmt: skip
    encoder = manifest["encoder"]["name"]
    record = encoder_record(encoder)
    base = record.hub_id if record else encoder if re.fullmatch(r"[\w.-]+/[\w.-]+", encoder) else ""
    policy = manifest["policy"].replace("@", "-")
    return ModelCardData(
        library_name="cabs-routing", pipeline_tag="text-classification", base_model=base or None,
        model_name=f"router-{manifest['pool']}" if results else None,
        tags=["llm-routing", "model-selection", "contextual-bandit", policy], eval_results=results,
    )  # fmt: skip


def _holds(files: list[str]) -> str:
    contents = [
        "numbers that were learnt from them, embeddings among them where the policy compares prompts",
        "hashes (`seen.npy`), by which one can tell whether a text was among them",
    ]
    if any(name.startswith("neighbours/") for name in files):
        contents.append("some of them in full (`neighbours/`), to explain decisions")
    if f"{ENCODER}/{VALUES}" in files:
        contents.append("the words that occur in them (`encoder/`)")
    return "; ".join(contents) + "."
