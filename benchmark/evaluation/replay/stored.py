"""The bytes under work/ that a Record was computed from, compared with the digests in the Record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from benchmark.data.images import SPLITS, Images, evaluation_index, load_split
from benchmark.evaluation.replay.findings import Verification
from benchmark.records.record import Record
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.rows import Row

KEPT = "images.safetensors"


@dataclass(frozen=True)
class Stored:
    """What is at hand of a Record: evaluation images and evidence, None where they are missing; whether its weights are; and
    the file with each attack's adversarial images.
    """

    images: Images | None
    weights: bool
    evidence: pa.Table | None
    adversarial: Mapping[str, Path]


@dataclass
class Digests:
    """The digests of a Record, with which files are compared.

    Where the files have to be the Record's own, other bytes contradict it. Otherwise they are of another build.
    """

    record: Record
    findings: Verification
    right: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def of_file(self, name: str, path: Path, recorded: str = "") -> bool:
        """Return whether the file has the Record's sha256 `name`, or `recorded`."""
        if not path.is_file():
            self.missing.append(name)
            return False
        return self.same(name, files.sha256_file(path), path, recorded)

    def same(self, name: str, digest: str, path: Path, recorded: str = "") -> bool:
        recorded = recorded or self.record.sha256.get(name, "none")
        if digest == recorded:
            self.right.append(name)
        elif self.findings.own:
            self.findings.contradict(f"sha256 of {name}, {path}", recorded, digest)
        else:
            words = f"{path} is of another build (sha256 {digest[:12]}, recorded {recorded[:12]})"
            self.findings.unchecked.append(f"{name}: {words}")
        return digest == recorded


def read(row: Row, record: Record, findings: Verification) -> Stored:
    """Return what is at hand of a Record whose row and rules are those of the working directory.

    Where the Record's own bytes have another digest, `findings` gets the contradiction. Its evidence and adversarial images
    are used all the same, which shows where they differ.
    """
    digests = Digests(record, findings)
    weights = digests.of_file("weights", row.weights)
    if row.given and not weights:  # published beside the Record
        findings.contradict(f"sha256 of weights, {row.given}", record.sha256["weights"], files.sha256_file(row.given))
    if record.settings.weights and record.settings.weights.path:
        digests.of_file("weights as given", Path(record.settings.weights.path))
    path = row.folder / "record" / "evidence.parquet"
    evidence = None
    if digests.of_file("evidence", path) or (findings.own and path.is_file()):
        try:
            evidence = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            findings.contradict(f"{path} cannot be read ({str(error).splitlines()[0]})")
    images = _data(row, digests)
    adversarial = _adversarial(row, digests)
    for picture in record.pictures:
        file = row.folder / "record" / "pictures" / picture.file
        digests.of_file(f"picture {picture.file}", file, picture.sha256)
    if digests.missing:
        findings.unchecked.append(f"{', '.join(digests.missing)}: not here, in {row.folder.parent}")
    findings.check(f"sha256 ({', '.join(digests.right) or 'none'})", len(digests.right))
    return Stored(images, weights, evidence, adversarial)


def _data(row: Row, digests: Digests) -> Images | None:
    """Return the evaluation images, where the test split is the Record's; compare the other splits too."""
    chosen = None
    for split in SPLITS:
        name, path = f"data {split}", row.data / f"{split}.safetensors"
        if not path.is_file() or not (row.data / "data.json").is_file():
            digests.missing.append(name)
            continue
        try:
            images = load_split(row.data, split)
        except BenchmarkError as error:
            digests.findings.contradict(f"{name}: {error}")
            continue
        if digests.same(name, images.digest(), path) and split == "test":
            rules = row.track.evaluation
            chosen = images.take(evaluation_index(len(images), rules.images, rules.seed))
    return chosen


def _adversarial(row: Row, digests: Digests) -> dict[str, Path]:
    """Return by attack the file with its images: its stage's, or else the Record's own, for suites that it keeps."""
    paths: dict[str, Path] = {}
    for suite in dict.fromkeys(attack.suite for attack in digests.record.attacks):
        name, ids = f"adversarial images {suite}", [a.id for a in digests.record.attacks if a.suite == suite]
        left = [row.folder / f"attack-{suite}" / file for file in (KEPT, "adversarial.safetensors")]
        path = next((path for path in left if path.is_file()), row.folder / "record" / KEPT)
        if path in left:
            right = digests.of_file(name, path)
        elif isinstance(content := read_tensors(path, ids), dict):
            right = digests.same(name, files.sha256_bytes(save(content)), path)
        else:
            digests.missing.append(name)
            continue
        if right or digests.findings.own:
            paths |= dict.fromkeys(ids, path)
    return paths


def read_tensors(path: Path, names: list[str]) -> dict[str, torch.Tensor] | str:
    """Return tensors of a safetensors file, or why they cannot be read."""
    if not path.is_file():
        return f"{path} is not here"
    try:
        with safe_open(path, "pt") as stored:
            return {name: stored.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        return f"{path} cannot be read ({' '.join(str(error).split())})"


def check_kept(row: Row, record: Record, stored: Stored, findings: Verification) -> None:
    """Compare the images that are published with a Record, clean and adversarial, with their source."""
    path = row.folder / "record" / KEPT
    attacks = [attack.id for attack in record.attacks if stored.adversarial.get(attack.id, path).name == KEPT]
    if stored.images is None:
        findings.unchecked.append(f"{path}: the data are not here")
        return
    content = read_tensors(path, ["clean", *attacks])
    if isinstance(content, str):
        findings.unchecked.append(content)
        return
    _compare("clean", torch.from_numpy(stored.images.floats()), content["clean"], path, findings)
    for name in attacks:
        source = stored.adversarial.get(name, path)
        if source != path and isinstance(other := read_tensors(source, [name]), dict):
            _compare(name, other[name], content[name], path, findings)
    findings.check(f"sets of images in {KEPT} compared with their source", len(content))


def _compare(name: str, source: torch.Tensor, kept: torch.Tensor, path: Path, findings: Verification) -> None:
    if source.shape != kept.shape or source.dtype != kept.dtype:
        recorded, rebuilt = (f"{side.dtype} {tuple(side.shape)}" for side in (source, kept))
        findings.contradict(f"{name} in {path}", recorded, rebuilt)
        return
    for image in (source != kept).flatten(1).any(1).nonzero()[:, 0].tolist():
        place = int((source[image] != kept[image]).flatten().nonzero()[0])
        recorded, rebuilt = (f"{float(side[image].flatten()[place]):.9g}" for side in (source, kept))
        findings.contradict(f"{name} in {path}, pixel {place}", recorded, rebuilt, image)
