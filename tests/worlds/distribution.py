"""A distribution that is installed as far as Python can tell: modules, and metadata with entry points."""

from collections.abc import Mapping
from pathlib import Path


def write_distribution(
    folder: Path,
    name: str,
    modules: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
) -> None:
    """Writes it into a folder that is on the path.

    Args:
        folder: The folder.
        name: The distribution's name.
        modules: Module → its source.
        entry_points: Group → name → ``module:object``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8"
    )
    lines = [
        line
        for group, points in entry_points.items()
        for line in (
            f"[{group}]",
            *(f"{point} = {value}" for point, value in points.items()),
        )
    ]
    (metadata / "entry_points.txt").write_text(
        "\n".join(lines) + "\n", encoding="utf-8"
    )
